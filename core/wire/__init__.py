"""How values are read and written: JSON, its canonical form, times, headers, server-sent events."""
