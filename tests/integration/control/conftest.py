"""The control plane over a gateway's inside, with two scripted peers."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from tests.support.control_client import ControlClient
from tests.support.engine import Server, engine_server, started_legs
from tests.support.harness import Harness, open_harness

__all__ = ["control", "engine_server", "harness", "started_legs"]


@pytest.fixture
async def control(
    engine_server: Server, tmp_path: Path, anyio_backend: str
) -> AsyncGenerator[ControlClient]:
    """A desk over a house with the peers ``echo`` and ``other``; what it stored is proved after the test."""
    async with open_harness(engine_server.url, tmp_path / "blobs", "echo", "other") as opened:
        yield ControlClient(opened)


@pytest.fixture
async def harness(
    engine_server: Server, tmp_path: Path, anyio_backend: str
) -> AsyncGenerator[Harness]:
    """A house with the peer ``echo``."""
    async with open_harness(engine_server.url, tmp_path / "blobs") as opened:
        yield opened
