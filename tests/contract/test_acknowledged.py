"""Acknowledged events are verified without reading the archive; unproven sessions are listed."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

import pytest

from passerelle.core.batch import Appended
from passerelle.delegation.runs.lost_tail import has_event
from passerelle.store import keys
from passerelle.store.archive.locator import place_row
from passerelle.store.connection import pack
from passerelle.store.store import Store, StoreSettings
from tests.contract.test_archive import begin, leave

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.engine import Server

pytestmark = pytest.mark.anyio


async def list_unproven(store: Store) -> set[str]:
    """The sessions that have to be read for a proof."""
    found = store.log.list_acknowledged(-inf)
    return {one.session for one in await store.log.find_unproven(found)}


async def test_acknowledged_events_are_proven_in_engine_and_archive(
    store: Store, tmp_path: Path
) -> None:
    stays, leaves = [await begin(store, 2) for _ in range(2)]
    await leave(store, leaves)
    for path in (tmp_path / "blobs" / "archive").rglob("*"):
        if path.is_file():
            path.unlink()
    found = store.log.list_acknowledged(-inf)
    assert {one.session for one in found} == {stays.at.session, leaves.at.session}
    assert await list_unproven(store) == set()


async def test_head_at_another_position_proves_nothing(store: Store) -> None:
    shorter, other, gone, whole = [await begin(store, 2) for _ in range(4)]
    head = keys.head(shorter.at.stream)
    await store.nodes.update(shorter.at.shard, pack("HSET", head, "seq", 3))
    head = keys.head(other.at.stream)
    await store.nodes.update(other.at.shard, pack("HSET", head, "chain", "00000000"))
    head = keys.head(gone.at.stream)
    await store.nodes.update(gone.at.shard, pack("UNLINK", head))
    assert await list_unproven(store) == {one.at.session for one in (shorter, other, gone)}
    assert whole.at.session not in await list_unproven(store)


async def test_missing_or_different_row_proves_nothing(store: Store) -> None:
    gone, moved, whole = [await begin(store, 2) for _ in range(3)]
    for story in (gone, moved, whole):
        await leave(store, story)
    await store.nodes.update(
        gone.at.shard, pack("HDEL", *place_row(gone.at.shard, gone.at.session))
    )
    place = place_row(moved.at.shard, moved.at.session)
    await store.nodes.update(moved.at.shard, pack("HSET", *place, b"\0\0\0\2" + b"x" * 10))
    assert await list_unproven(store) == {gone.at.session, moved.at.session}


async def test_session_archived_beyond_the_acknowledged_event_is_read(
    store: Store, server: Server, tmp_path: Path
) -> None:
    """Another writer continued it: the row does not prove that the acknowledged event was there before."""
    story = await begin(store, 2)
    async with await Store.open(StoreSettings(server.url, tmp_path / "blobs")) as second:
        assert isinstance(await second.log.append(story.tell("theirs")), Appended)
    await leave(store, story)
    [one] = store.log.list_acknowledged(-inf)
    assert await store.log.find_unproven([one]) == [one]
    assert await has_event(store.log, one.session, one.last, one.chain)


async def test_revived_session_is_proven_in_the_engine_again(store: Store) -> None:
    story = await begin(store, 2)
    await leave(store, story)
    assert isinstance(await store.log.append(story.tell("more")), Appended)
    [one] = store.log.list_acknowledged(-inf)
    assert (one.last, one.row) == (6, None)
    assert await list_unproven(store) == set()
