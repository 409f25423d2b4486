"""Agents that dial in: their sockets, calls over them, and how a run reaches the instance that has the socket."""
