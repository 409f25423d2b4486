"""What people and programs read: made of records and facts, and honest about what is not known (SNAP-1…SNAP-22)."""
