"""Calls to agents that dial in."""
