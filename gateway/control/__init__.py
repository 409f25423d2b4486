"""The command service: one way in for every edge, one way to write."""
