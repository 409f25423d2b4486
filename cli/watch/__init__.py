"""``passerelle tasks watch``: tasks as they go on, on a screen or line by line."""
