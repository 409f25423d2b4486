"""The calls of ``/v1`` and of channels: one table from a method to a command or query, and back to JSON."""
