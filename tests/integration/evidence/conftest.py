"""A whole gateway over one real engine, whose facts are exported."""

from tests.integration.callers.conftest import engine_server, rig, started_legs

__all__ = ["engine_server", "rig", "started_legs"]
