"""The seams to the outside: what the inside asks of a store, a clock and chance, and the values that cross.

Each Protocol is named after a role and knows no Redis type. What an append takes and answers is in ``core/batch.py``.
"""
