"""Servers for the contract suite."""

from tests.support.engine import engine_server, server, started_legs, store

__all__ = ["engine_server", "server", "started_legs", "store"]
