"""One engine for all tests of the folder, emptied before each."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from passerelle.store.store import Store, StoreSettings
from tests.integration.channels.rig import BackEnd, Rig, serve
from tests.support.engine import Server, engine_server, started_legs

__all__ = ["engine_server", "other_store", "rig", "started_legs", "store"]


@pytest.fixture
async def store(engine_server: Server, tmp_path: Path, anyio_backend: str) -> AsyncGenerator[Store]:
    """A store over the empty engine."""
    async with await Store.open(StoreSettings(engine_server.url, tmp_path / "blobs")) as opened:
        yield opened


@pytest.fixture
async def other_store(
    engine_server: Server, tmp_path: Path, anyio_backend: str
) -> AsyncGenerator[Store]:
    """The store of a second instance: separate connections to the same engine."""
    async with await Store.open(StoreSettings(engine_server.url, tmp_path / "blobs")) as opened:
        yield opened


@pytest.fixture
def backend(request: pytest.FixtureRequest) -> BackEnd:
    """The back-end of the channels: ASGI, or the one that ``OVER_BOTH`` sets."""
    carried: BackEnd = getattr(request, "param", "asgi")
    return carried


@pytest.fixture
async def rig(store: Store, backend: BackEnd) -> AsyncGenerator[Rig]:
    """A server with the product's default limits."""
    async with serve(store, backend=backend) as served:
        yield served
