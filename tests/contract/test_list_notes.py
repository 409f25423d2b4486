"""Followers of a tenant's lists: every shard reports them with the rows that it applies, until none is left."""

from __future__ import annotations

import pytest

from passerelle.core.ids import ALL_SHARDS, shard_of
from passerelle.core.ports.log import StreamKind, StreamRef
from passerelle.core.ports.projections import Behind, IndexRow, NoteRow, Taken
from passerelle.core.principal import name_tenant_lists
from passerelle.core.read_models.list_rows import note_row
from passerelle.store import keys
from passerelle.store.connection import pack
from passerelle.store.list_notes import WATCH_LISTS
from passerelle.store.store import Store
from tests.contract.test_projections import AGENT, SOURCE, make_owner

pytestmark = pytest.mark.anyio


def head_of(tenant: str) -> StreamRef:
    return StreamRef(StreamKind.TENANT_TASKS, name_tenant_lists(tenant))


async def bring(store: Store, owner: str, feed_id: str) -> set[str]:
    """The followers, as a shard reports them for a row of the tenant."""
    row = IndexRow(owner, AGENT, "task_a", 1)
    said = await store.projections.advance(SOURCE, shard_of(owner), feed_id, [row])
    assert isinstance(said, Taken)
    return set(said.watched)


async def watched_in(store: Store) -> set[bytes | None]:
    """The notes of all shards."""
    found = [
        (await store.nodes.query_all(shard, pack("HGET", keys.meta(shard), "watched")))[0]
        for shard in ALL_SHARDS
    ]
    return {one if isinstance(one, bytes) else None for one in found}


async def test_every_shard_reports_followers_with_the_rows_that_it_applies(store: Store) -> None:
    one, two = name_tenant_lists("one"), name_tenant_lists("two")
    _, owner = make_owner()
    assert await bring(store, owner, "1-0") == set()
    await store.projections.watch_tenant(one, 1_000)
    await store.projections.watch_tenant(two, 1_000)
    [reported] = await watched_in(store)
    assert reported is not None
    for feed_id in ("2-0", "2-0"):
        # Rows that were applied before report it as well: their notes may not have been sent.
        assert await bring(store, owner, feed_id) == {one, two}
    await store.projections.watch_tenant(one, 2_000)
    assert await watched_in(store) == {reported}, "said once, by a process that has said it"
    await store.inboxes.trim_notes(one, 1_500, 1_500)
    assert await watched_in(store) == {reported}, "it was asked for since"
    assert await store.inboxes.trim_notes(two, 1_500, 1_500) == 1
    assert await bring(store, owner, "3-0") == {one}
    assert await store.inboxes.trim_notes(one, 9_000, 9_000) == 1
    assert await watched_in(store) == {None}


async def test_end_of_an_earlier_stream_leaves_the_newer_one(store: Store) -> None:
    tenant = name_tenant_lists("again")
    await store.projections.watch_tenant(tenant, 1_000)
    old = await store.log.read_head(head_of("again"))
    await store.projections.restart_notes(tenant)
    new = await store.log.read_head(head_of("again"))
    assert old is not None
    assert new is not None
    assert new.epoch != old.epoch
    [before] = await watched_in(store)
    assert before == f"{tenant}={new.epoch}".encode()
    control: dict[str, str | bool] = {"tenant": tenant, "epoch": old.epoch, "is_over": True}
    for shard in ALL_SHARDS:
        assert await store.nodes.run(WATCH_LISTS, shard, [keys.meta(shard)], control) == 0
    assert await watched_in(store) == {before}


async def test_notes_have_a_separate_mark(store: Store) -> None:
    tenant = name_tenant_lists("marks")
    shard = shard_of(tenant)
    await store.projections.watch_tenant(tenant, 1_000)
    row = IndexRow(tenant, AGENT, "task_a", 1)
    note = note_row(row, "5-0")
    assert note is not None
    await store.projections.advance(SOURCE, shard, "5-0", [row])
    taken = await store.projections.advance(SOURCE, shard, "5-0", [NoteRow(tenant, note)])
    assert isinstance(taken, Taken)
    assert await store.projections.advance(SOURCE, shard, "5-0", [NoteRow(tenant, note)]) == taken
    head = await store.log.read_head(head_of("marks"))
    assert head is not None
    # The row's own list is followed here too: its owner is named like the tenant.
    assert head.sequence == 2
    await store.nodes.update(shard, pack("HDEL", keys.marks(shard), f"{SOURCE.tag}+"))
    lost = await store.projections.advance(
        SOURCE, shard, "6-0", [NoteRow(tenant, note)], taken.mark
    )
    assert isinstance(lost, Behind)
