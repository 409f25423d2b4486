"""The demo: the whole story on one machine, played and checked."""
