"""The life of an approval request: its machine, votes, guards, audience and record."""
