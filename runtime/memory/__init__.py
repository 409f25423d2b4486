"""How much memory callers and agents may have the process hold: one budget, with a share for each of them."""
