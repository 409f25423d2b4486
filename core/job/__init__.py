"""Jobs: one objective over many inputs or agents, one task per item."""
