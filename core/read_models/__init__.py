"""Read models, made from records and facts, and marked where something is unknown (SNAP-1…SNAP-22)."""
