"""Routing: chooses the agent of a task if its caller left that to the gateway. Pure (EXT-5, PRS-10)."""
