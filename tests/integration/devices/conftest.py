"""A whole gateway over one real engine, and devices that come to it."""

from tests.integration.callers.conftest import engine_server, rig, started_legs

__all__ = ["engine_server", "rig", "started_legs"]
