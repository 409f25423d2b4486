"""Reads: entities, heads, pages, and empty results where nothing is stored."""

from __future__ import annotations

import asyncio

import pytest

from passerelle.core.batch import ABSENT, Batch, EntityKind, EntityRef, Loaded
from passerelle.core.ids import Shard
from passerelle.core.ports.log import StreamKind, StreamRef
from passerelle.store.store import Store
from tests.support.batches import EPOCH, event, make_place, mint, operation

pytestmark = pytest.mark.anyio


async def test_entities_are_returned_in_the_requested_order_over_all_shards(store: Store) -> None:
    places = [make_place() for _ in range(40)]
    for number, at in enumerate(places[:20]):
        write = at.write(snapshot=(f"{number}".encode(),))
        await store.log.append(Batch(at.session, operation(), 0, EPOCH, entities=(write,)))
    refs = [at.task_ref for at in reversed(places)]
    loaded = await store.log.load([*refs, refs[-1]])
    assert [one.ref for one in loaded] == [*refs, refs[-1]]
    assert [one.snapshot for one in loaded[20:]] == [
        f"{number}".encode() for number in (*range(19, -1, -1), 0)
    ]
    assert loaded[0] == Loaded(refs[0], ABSENT, b"", {})


async def test_empty_read_returns_nothing(store: Store) -> None:
    async with asyncio.timeout(1):  # a missing reply is waited for twice as long
        assert await store.nodes.query_all(Shard(7)) == []
        assert await store.nodes.query_in_background(Shard(7)) == []
        assert await store.nodes.query_each_in_background([]) == []


async def test_every_kind_of_entity_has_a_separate_key(store: Store) -> None:
    at = make_place()
    refs = [
        EntityRef(EntityKind.SESSION, at.session),
        EntityRef(EntityKind.THREAD, mint("th", at.shard)),
        at.task_ref,
        EntityRef(EntityKind.ACTION, mint("act", at.shard)),
        EntityRef(EntityKind.DEVICES, mint("se", at.shard)),
        EntityRef(EntityKind.GRANTS, mint("se", at.shard)),
        EntityRef(EntityKind.RULES, mint("se", at.shard)),
    ]
    assert {ref.kind for ref in refs} == set(EntityKind)
    writes = tuple(type(at.write())(ref, ABSENT, (ref.kind.encode(), b" at ", 0)) for ref in refs)
    await store.log.append(
        Batch(at.session, operation(), 0, EPOCH, entities=writes, events=(event(),))
    )
    loaded = await store.log.load(refs)
    assert [one.snapshot for one in loaded] == [f"{ref.kind} at 1".encode() for ref in refs]
    assert loaded[0].fields["epoch"] == EPOCH.encode()


async def test_stream_that_does_not_exist_has_no_head_and_no_page(store: Store) -> None:
    at = make_place()
    assert await store.log.read_head(at.stream) is None
    assert await store.log.read_resume(at.stream, 3) == (None, [])
    assert await store.log.read_page(StreamRef(StreamKind.INBOX, mint("pr", at.shard)), 0) == []
    assert await store.log.read_open(at.session) == []
    assert await store.log.read_session_tasks(at.session) == []


async def test_page_begins_after_the_position_and_ends_at_the_limit(store: Store) -> None:
    at = make_place()
    batch = Batch(
        at.session,
        operation(),
        0,
        EPOCH,
        entities=(at.write(),),
        events=tuple(event() for _ in range(30)),
    )
    await store.log.append(batch)
    page = await store.log.read_page(at.stream, 11, 7)
    assert [entry.sequence for entry in page] == list(range(12, 19))
    head, rest = await store.log.read_resume(at.stream, 28)
    assert head is not None
    assert head.sequence == 30
    assert [entry.event_id for entry in rest] == [fact.event_id for fact in batch.events[28:]]
    assert await store.log.read_page(at.stream, 30) == []
    assert await store.log.read_page(at.stream, 0, 0) == []
