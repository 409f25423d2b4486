"""Policy enforcement: judges commands, and edits, tests and follows rules."""
