"""Runs: one agent, one task, one driver; from the first send to the last fact."""
