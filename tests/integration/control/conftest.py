"""Fixtures: the control plane over a gateway's services, with two scripted peers."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from tests.support.desk import Desk
from tests.support.engine import Server, engine_server, started_legs
from tests.support.house import House, open_house

__all__ = ["desk", "engine_server", "house", "started_legs"]


@pytest.fixture
async def desk(engine_server: Server, tmp_path: Path, anyio_backend: str) -> AsyncGenerator[Desk]:
    """A desk over a house with the peers ``echo`` and ``other``; its stored events are verified after the test."""
    async with open_house(engine_server.url, tmp_path / "blobs", "echo", "other") as opened:
        yield Desk(opened)


@pytest.fixture
async def house(engine_server: Server, tmp_path: Path, anyio_backend: str) -> AsyncGenerator[House]:
    """A house with the peer ``echo``."""
    async with open_house(engine_server.url, tmp_path / "blobs") as opened:
        yield opened
