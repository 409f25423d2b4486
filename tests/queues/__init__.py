"""Many turns wait for a few agents: the order of service, and the cost of waiting: ``make queues``."""
