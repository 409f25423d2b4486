"""Fixture: a store over a real engine."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from passerelle.store.store import Store, StoreSettings
from tests.support.engine import Server, engine_server, started_legs

__all__ = ["engine_server", "started_legs", "store"]


@pytest.fixture
async def store(engine_server: Server, tmp_path: Path, anyio_backend: str) -> AsyncGenerator[Store]:
    """An open store over a standalone engine."""
    async with await Store.open(StoreSettings(engine_server.url, tmp_path / "blobs")) as opened:
        yield opened
