"""Concurrent answers to one approval, of which one wins: ``make races``."""
