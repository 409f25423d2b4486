"""Bounds the memory that callers and agents can make the process use: one budget, with a share for each of them."""
