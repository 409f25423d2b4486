"""What becomes of the output of agents: files are copied, patterns are taken out, copies expire."""
