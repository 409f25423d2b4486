"""The life of an approval request: machine, votes, guards, audience and record."""
