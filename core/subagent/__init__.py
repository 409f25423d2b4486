"""Contexts at agents as children of what opened them: their ids, what is asked of them, what they live through."""
