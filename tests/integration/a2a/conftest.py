"""Fixture: one rig for each test."""

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from tests.integration.a2a.rig import Rig, run_rig
from tests.support.engine import Server, engine_server, started_legs

__all__ = ["engine_server", "rig", "started_legs"]


@pytest.fixture
async def rig(engine_server: Server, tmp_path: Path, anyio_backend: str) -> AsyncGenerator[Rig]:
    async with run_rig(engine_server, tmp_path / "blobs") as made:
        yield made
