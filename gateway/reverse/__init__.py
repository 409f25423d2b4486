"""Agents that dial in: their sockets here, calls over them, and how a run comes to the instance that has one."""
