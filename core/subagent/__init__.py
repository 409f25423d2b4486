"""Contexts at agents as children of what opened them: their ids, requests and events."""
