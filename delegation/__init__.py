"""Work that is handed to agents: runs, and the duties that keep them going."""
