"""Uploads of agents: separate per agent, bounded, and removed after their time."""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path
from typing import cast

import pytest

from passerelle.core.ids import Shard, derive_shard
from passerelle.core.ports.blobs import Uploaded
from passerelle.core.ports.due import DueRow
from passerelle.store.blobs import DirectoryBlobs
from passerelle.store.connection import pack
from passerelle.store.store import Store
from passerelle.store.uploads import RedisUploads
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio
ROOM = 100


def name(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


async def put(
    uploads: RedisUploads, agent: str, content: bytes, media_type: str = "text/plain"
) -> bool:
    return await uploads.put(agent, name(content), content, media_type, ROOM)


async def claim(store: Store, agent: str) -> DueRow:
    """The row of the pending removal, once it is due."""

    async def look() -> DueRow | None:
        rows = (await store.due.claim(derive_shard("agent", agent), 8, 60_000)).rows
        return next((row for row in rows if row.member == f"upload:{agent}"), None)

    found = await wait_until(look, 15, "the row is due")
    assert found is not None
    return found


async def test_content_is_visible_to_its_agent_only(store: Store) -> None:
    assert await put(store.uploads, "owner", b"secret", "image/png; a=b")
    assert await store.uploads.get("owner", name(b"secret")) == Uploaded(
        b"secret", "image/png; a=b"
    )
    assert await store.uploads.get("other", name(b"secret")) is None
    assert await store.uploads.get("owner", name(b"never")) is None


async def test_agent_has_a_quota_and_equal_content_counts_once(store: Store) -> None:
    assert await put(store.uploads, "full", b"a" * 60)
    assert await put(store.uploads, "full", b"a" * 60)
    assert not await put(store.uploads, "full", b"b" * 41)
    assert await store.uploads.get("full", name(b"b" * 41)) is None
    assert await put(store.uploads, "full", b"b" * 40)
    assert await put(store.uploads, "roomy", b"b" * 41)


async def test_old_content_is_removed_with_its_note_and_row_and_new_content_stays(
    store: Store, tmp_path: Path
) -> None:
    contents = DirectoryBlobs(tmp_path)
    uploads = RedisUploads(store.nodes, contents, keep_ms=1)
    shard = derive_shard("agent", "old")
    assert await put(uploads, "old", b"one")
    row = await claim(store, "old")
    # A row of another claim settles nothing, and a permanent upload does not expire.
    lasting = RedisUploads(store.nodes, contents)
    await lasting.expire(row)
    assert await lasting.get("old", name(b"one")) == Uploaded(b"one", "text/plain")

    async def is_gone() -> bool:
        await uploads.expire(row)
        return await contents.get(shard, name(b"one")) is None

    await wait_until(is_gone, 15, "the content is gone")
    assert await uploads.get("old", name(b"one")) is None
    assert await put(uploads, "old", b"a" * ROOM)


async def test_a_row_is_settled_once_nothing_is_left(store: Store, tmp_path: Path) -> None:
    contents = DirectoryBlobs(tmp_path)
    uploads = RedisUploads(store.nodes, contents, keep_ms=20)
    shard = derive_shard("agent", "brief")
    assert await put(uploads, "brief", b"one")
    row = await claim(store, "brief")
    await wait_until(
        lambda: contents.expire(shard, name(b"one"), 1 << 60), 15, "the content is gone"
    )
    await uploads.expire(row)
    assert await uploads.get("brief", name(b"one")) is None
    rows = (await store.due.claim(shard, 64, 60_000)).rows
    assert [one for one in rows if one.member == "upload:brief"] == []


class Slow(DirectoryBlobs):
    """Removes 32 contents once all of them are due, and never reaches another one."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self._together = asyncio.Barrier(32)
        self._begun = 0

    async def expire(self, shard: Shard, sha256: str, before_ms: int) -> bool:
        self._begun += 1
        if self._begun > 32:
            await asyncio.Event().wait()
        await self._together.wait()
        return await super().expire(shard, sha256, before_ms + 60_000)


async def test_interrupted_removal_has_removed_some(store: Store, tmp_path: Path) -> None:
    uploads = RedisUploads(store.nodes, Slow(tmp_path), keep_ms=1)
    shard = derive_shard("agent", "busy")
    for number in range(40):
        assert await put(uploads, "busy", f"{number:02}".encode())
    row = await claim(store, "busy")

    async def read_ms() -> int:
        [time] = await store.nodes.read(shard, pack("TIME"))
        seconds, micros = cast("list[bytes]", time)
        return int(seconds) * 1000 + int(micros) // 1000

    last_ms = await read_ms()

    async def is_old() -> bool:
        return await read_ms() > last_ms + 1

    await wait_until(is_old, 15, "all of them are old")
    assert not await put(uploads, "busy", b"a" * (ROOM - 16))
    forgetting = asyncio.create_task(uploads.expire(row))
    try:
        await wait_until(
            lambda: put(uploads, "busy", b"a" * (ROOM - 16)), 15, "32 of them are forgotten"
        )
        assert not forgetting.done()
    finally:
        forgetting.cancel()
        await asyncio.gather(forgetting, return_exceptions=True)
    # The rest was not confirmed, and is still pending as it was claimed.
    assert (await store.due.claim(shard, 64, 60_000)).rows == ()
    await RedisUploads(store.nodes, DirectoryBlobs(tmp_path / "none"), keep_ms=1).expire(row)
    assert await put(uploads, "busy", b"b" * (ROOM - 16))
