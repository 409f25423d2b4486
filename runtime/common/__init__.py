"""Time, secrets, screening, durations and the context of a request."""
