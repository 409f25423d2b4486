"""``passerelle tasks watch``: live tasks on a screen or line by line."""
