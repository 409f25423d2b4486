"""Many turns wait for a few agents: who is served when, and what it costs to wait: ``make queues``."""
