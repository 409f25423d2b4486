"""The ports of the core: its interfaces to the store, the clock and random numbers, and the values passed.

Each Protocol is named after a role and knows no Redis type. The input and results of an append are in
``core/batch.py``.
"""
