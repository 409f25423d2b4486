"""The inner services of a gateway on one real engine, with one or two scripted agents."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from tests.support.engine import Server, engine_server, started_legs
from tests.support.harness import Harness, open_harness

__all__ = ["engine_server", "harness", "started_legs", "street"]


@pytest.fixture
async def harness(
    engine_server: Server, tmp_path: Path, anyio_backend: str
) -> AsyncGenerator[Harness]:
    """A house with the agent ``echo``; its stored streams are verified after the test."""
    async with open_harness(engine_server.url, tmp_path / "blobs") as opened:
        yield opened


@pytest.fixture
async def street(
    engine_server: Server, tmp_path: Path, anyio_backend: str
) -> AsyncGenerator[Harness]:
    """A house with the agents ``echo`` and ``other``."""
    async with open_harness(engine_server.url, tmp_path / "blobs", "echo", "other") as opened:
        yield opened
