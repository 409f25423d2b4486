"""Reading and writing values: JSON, its canonical form, times, headers, server-sent events."""
