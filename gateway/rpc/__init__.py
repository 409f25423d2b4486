"""The calls that ``/v1`` and channels offer: one table from a method to a command, and back to JSON."""
