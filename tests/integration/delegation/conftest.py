"""The inner services of a gateway on one real engine, with one or two scripted agents."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from tests.support.engine import Server, engine_server, started_legs
from tests.support.house import House, open_house

__all__ = ["engine_server", "house", "started_legs", "street"]


@pytest.fixture
async def house(engine_server: Server, tmp_path: Path, anyio_backend: str) -> AsyncGenerator[House]:
    """A house with the agent ``echo``; its stored streams are verified after the test."""
    async with open_house(engine_server.url, tmp_path / "blobs") as opened:
        yield opened


@pytest.fixture
async def street(
    engine_server: Server, tmp_path: Path, anyio_backend: str
) -> AsyncGenerator[House]:
    """A house with the agents ``echo`` and ``other``."""
    async with open_house(engine_server.url, tmp_path / "blobs", "echo", "other") as opened:
        yield opened
