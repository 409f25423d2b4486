"""A2A 0.3 against the SDK."""
