"""Replays stored streams, compares the result with stored data, and repairs derived data."""
