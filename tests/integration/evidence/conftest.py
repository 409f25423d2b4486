"""A whole gateway on one real engine, whose facts are exported."""

from tests.integration.callers.conftest import engine_server, rig, started_legs

__all__ = ["engine_server", "rig", "started_legs"]
