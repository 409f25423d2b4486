"""Fixture: a whole gateway over one real engine, a scripted peer, and a webhook receiver on loopback."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from tests.integration.push.rig import Rig, run_rig
from tests.support.engine import Server, engine_server, started_legs

__all__ = ["engine_server", "rig", "started_legs"]


@pytest.fixture
async def rig(engine_server: Server, tmp_path: Path, anyio_backend: str) -> AsyncGenerator[Rig]:
    """A rig with push enabled and the receiver on the allow-list."""
    async with run_rig(engine_server.url, tmp_path) as started:
        yield started
