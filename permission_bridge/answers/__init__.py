"""Decisions on approval requests, and the lists of pending requests."""
