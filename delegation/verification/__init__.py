"""Stored streams replayed and compared; what is derived from them repaired."""
