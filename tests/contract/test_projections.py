"""Projections: applied once per source, in the order of the feed, and rebuildable."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from passerelle.core.batch import Batch, IdempotencyRow
from passerelle.core.ids import Shard
from passerelle.core.payloads.approval import ClosingState
from passerelle.core.ports.log import StreamKind, StreamRef
from passerelle.core.ports.projections import InboxRow, IndexRow
from passerelle.store import keys
from passerelle.store.connection import RespValue, pack
from passerelle.store.projections import KEEP_AT_LEAST_MS, KEEP_ROWS
from passerelle.store.store import Store
from passerelle.store.stream_entries import as_entry_rows
from tests.support.batches import EPOCH, event, make_place, mint, operation
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio

AGENT = "echo"
SOURCE = Shard(63)


def make_owner() -> tuple[Shard, str]:
    shard = make_place().shard
    return shard, mint("pr", shard)


def pending(owner: str, name: str, view: bytes | None) -> InboxRow:
    return InboxRow(owner, event(f"ev_{name}_{view is None}"), name, view)


@pytest.mark.requirement("I10")
async def test_later_time_wins_in_the_owner_index(store: Store) -> None:
    shard, owner = make_owner()
    await store.projections.advance(SOURCE, shard, "5-0", [IndexRow(owner, AGENT, "task_a", 300)])
    await store.projections.index_now(IndexRow(owner, AGENT, "task_a", 200))
    await store.projections.index_now(IndexRow(owner, AGENT, "task_b", 250))
    assert await store.projections.read_index(owner, AGENT, None, 10) == [
        ("task_a", 300),
        ("task_b", 250),
    ]


async def test_index_is_paged_without_loss_where_times_are_equal(store: Store) -> None:
    shard, owner = make_owner()
    rows = [IndexRow(owner, AGENT, f"task_{number:03}", 100 + number // 7) for number in range(60)]
    await store.projections.advance(SOURCE, shard, "1-0", rows)
    before: tuple[int, str] | None = None
    seen: list[tuple[int, str]] = []
    while page := await store.projections.read_index(owner, AGENT, before, 4):
        seen += [(at_ms, facade) for facade, at_ms in page]
        before = seen[-1]
    assert seen == sorted(((row.at_ms, row.facade) for row in rows), reverse=True)


async def test_rows_that_were_applied_are_skipped_by_their_feed_id(store: Store) -> None:
    shard, owner = make_owner()
    inbox = StreamRef(StreamKind.INBOX, owner)
    for feed_id in ("9-1", "9-1", "9-0", "8-7", "10-0", "9-2"):
        row = InboxRow(owner, event(), None, None)
        await store.projections.advance(SOURCE, shard, feed_id, [row])
    head = await store.log.read_head(inbox)
    assert head is not None
    assert head.sequence == 2
    await store.projections.advance(Shard(62), shard, "1-0", [InboxRow(owner, event(), None, None)])
    head = await store.log.read_head(inbox)
    assert head is not None
    assert head.sequence == 3


@pytest.mark.requirement("I10")
async def test_new_epoch_of_the_source_repeats_rows_without_doubling_entries(store: Store) -> None:
    shard, owner = make_owner()
    inbox = StreamRef(StreamKind.INBOX, owner)
    rows = [pending(owner, f"act_{number}", b"view") for number in range(5)]
    for number, row in enumerate(rows):
        await store.projections.advance(SOURCE, shard, f"{number + 1}-0", [row])
    before = await store.log.read_page(inbox, 0)
    await store.log.bump_epoch(SOURCE, 0)
    fresh = InboxRow(owner, event("ev_fresh"), None, None)
    for number, row in enumerate([*rows, fresh]):
        await store.projections.advance(SOURCE, shard, f"{number + 1}-0", [row])
    after = await store.log.read_page(inbox, 0)
    assert after[:-1] == before
    assert after[-1].event_id == "ev_fresh"


@pytest.mark.requirement("I10")
@pytest.mark.parametrize("is_old", [False, True])
async def test_repeats_are_recognized_in_either_form_of_an_entry(
    store: Store, *, is_old: bool
) -> None:
    """More events than fit an entry arrive at once; with schema 2 each has its own entry."""
    shard, owner = make_owner()
    inbox = StreamRef(StreamKind.INBOX, owner)
    rows = [InboxRow(owner, event(), None, None) for _ in range(70)]
    await store.projections.advance(SOURCE, shard, "1-0", rows)
    before = await store.log.read_page(inbox, 0)
    assert [entry.event_id for entry in before] == [row.event.event_id for row in rows]
    if is_old:
        await store.nodes.write(shard, pack("DEL", keys.entries(inbox)))
        for one in before:
            members = ("i", one.event_id, "k", one.type, "p", one.previous, "d", one.data)
            place = f"{one.sequence}-0"
            await store.nodes.write(shard, pack("XADD", keys.entries(inbox), place, *members))
    await store.log.bump_epoch(SOURCE, 0)
    fresh = InboxRow(owner, event("ev_fresh"), None, None)
    await store.projections.advance(SOURCE, shard, "1-0", [*rows, fresh])
    after = await store.log.read_page(inbox, 0)
    assert after[:-1] == before
    assert (after[-1].event_id, after[-1].sequence) == ("ev_fresh", 71)


async def test_inbox_lists_open_approvals_and_drops_closed_ones(store: Store) -> None:
    shard, owner = make_owner()
    other = mint("pr", shard)
    rows = [
        pending(owner, "act_1", b'{"title":"one"}'),
        pending(owner, "act_2", b'{"title":"two"}'),
        pending(other, "act_3", b'{"title":"three"}'),
    ]
    await store.projections.advance(SOURCE, shard, "1-0", rows)
    await store.projections.advance(SOURCE, shard, "2-0", [pending(owner, "act_1", None)])
    assert await store.projections.read_inbox(owner) == [("act_2", b'{"title":"two"}')]
    assert await store.projections.read_inbox(other) == [("act_3", b'{"title":"three"}')]


async def test_closed_approvals_are_listed_by_outcome_and_time(store: Store) -> None:
    shard, owner = make_owner()
    ended: list[tuple[str, ClosingState, int]] = [
        ("act_a", "allowed", 3_000),
        ("act_b", "expired", 2_000),
        ("act_c", "allowed", 1_000),
        ("act_d", "rejected", 2_000),
    ]
    rows = [
        replace(pending(owner, name, None), closed=state, closed_ms=at_ms)
        for name, state, at_ms in ended
    ]
    opened = [pending(owner, name, b"{}") for name, _, _ in ended]
    await store.projections.advance(SOURCE, shard, "1-0", opened)
    # A closing that is carried twice, in the events of one end too, is listed once.
    await store.projections.advance(SOURCE, shard, "2-0", [*rows, *rows])
    listed = store.projections.list_closed
    assert await store.projections.list_inbox(owner) == []
    assert await listed(owner, ("allowed",), 10) == [("act_a", 3_000), ("act_c", 1_000)]
    both: tuple[ClosingState, ...] = ("allowed", "expired", "rejected")
    walked: list[tuple[str, int]] = []
    before: tuple[int, str] | None = None
    while page := await listed(owner, both, 1, before):
        walked += page
        before = (page[-1][1], page[-1][0])
    assert walked == [("act_a", 3_000), ("act_d", 2_000), ("act_b", 2_000), ("act_c", 1_000)]
    assert await listed(make_owner()[1], both, 10) == []


async def list_names(store: Store, owner: str, limit: int | None = None) -> list[str]:
    return [name for name, _ in await store.projections.list_inbox(owner, limit)]


async def test_page_of_an_inbox_lists_the_newest_first(store: Store) -> None:
    shard, owner = make_owner()
    asked = {"act_b": 2_000, "act_c": 1_000, "act_a": 3_000, "act_d": 4_000}
    rows = [replace(pending(owner, name, b"{}"), asked_ms=at_ms) for name, at_ms in asked.items()]
    await store.projections.advance(SOURCE, shard, "1-0", [*rows, pending(owner, "act_d", None)])
    assert await list_names(store, owner, 2) == ["act_a", "act_b"]
    assert await list_names(store, owner) == ["act_a", "act_b", "act_c"]


async def test_pages_of_an_inbox_have_no_gap_or_overlap_at_equal_times(
    store: Store,
) -> None:
    shard, owner = make_owner()
    asked = {f"act_{number:02}": 1_000 + number // 5 for number in range(17)}
    rows = [replace(pending(owner, name, b"{}"), asked_ms=at_ms) for name, at_ms in asked.items()]
    await store.projections.advance(SOURCE, shard, "1-0", rows)
    before: tuple[int, str] | None = None
    walked: list[tuple[str, int]] = []
    while page := await store.projections.list_inbox(owner, 3, before):
        assert len(page) <= 3
        walked += page
        before = (page[-1][1], page[-1][0])
    assert walked == sorted(asked.items(), key=lambda row: (row[1], row[0]), reverse=True)


async def test_page_of_an_inbox_is_complete_when_an_approval_closes_during_the_read(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard, owner = make_owner()
    asked = {f"act_{number}": 1_000 + number // 2 for number in range(8)}
    rows = [replace(pending(owner, name, b"{}"), asked_ms=at_ms) for name, at_ms in asked.items()]
    await store.projections.advance(SOURCE, shard, "1-0", rows)
    reads: list[Shard] = []
    read = store.nodes.query_all

    async def close_one_meanwhile(shard: Shard, *commands: bytes) -> list[RespValue]:
        replies = await read(shard, *commands)
        reads.append(shard)
        if len(reads) == 1:
            closed = pending(owner, "act_6", None)
            await store.projections.advance(SOURCE, shard, "2-0", [closed])
        return replies

    monkeypatch.setattr(store.nodes, "query_all", close_one_meanwhile)
    page = await store.projections.list_inbox(owner, 3, (1_003, "act_6"))
    assert len(reads) > 1, "the closing approval is on the first of two reads"
    assert [name for name, _ in page] == ["act_5", "act_4", "act_3"]


async def test_index_of_an_inbox_is_rebuilt_after_writes_of_an_earlier_version(
    store: Store,
) -> None:
    shard, owner = make_owner()
    copies, order = keys.inbox_open(shard, owner), keys.inbox_order(shard, owner)
    asked = {"act_b": "2026-11-20T10:00:00.000Z", "act_a": "2026-11-20T09:00:00.000Z"}
    fields = [part for name, at in asked.items() for part in (name, f'{{"createdAt":"{at}"}}')]
    await store.nodes.write(shard, pack("HSET", copies, *fields, "act_c", "{}"))
    assert await list_names(store, owner, 2) == ["act_b", "act_a"]
    assert await list_names(store, owner) == ["act_b", "act_a", "act_c"]
    await store.nodes.write(shard, pack("HDEL", copies, "act_b"))
    assert await list_names(store, owner, 1) == ["act_a"]
    assert await store.nodes.read(shard, pack("ZCARD", order)) == [2]


async def test_index_of_an_inbox_is_current_after_an_earlier_version_closed_one_and_opened_another(
    store: Store,
) -> None:
    shard, owner = make_owner()
    copies, order = keys.inbox_open(shard, owner), keys.inbox_order(shard, owner)
    head = keys.head(StreamRef(StreamKind.INBOX, owner))
    view = b'{"createdAt":"2026-11-20T09:00:00.000Z"}'
    await store.projections.advance(SOURCE, shard, "1-0", [pending(owner, "act_a", view)])
    assert await list_names(store, owner, 1) == ["act_a"]
    await store.nodes.write(shard, pack("HDEL", copies, "act_a"))
    await store.nodes.write(shard, pack("HSET", copies, "act_b", view))
    await store.nodes.write(shard, pack("HINCRBY", head, "seq", 2))
    # One more is opened before any reader arrives.
    await store.projections.advance(SOURCE, shard, "2-0", [pending(owner, "act_c", view)])
    assert set(await list_names(store, owner, 3)) == {"act_b", "act_c"}
    assert await store.nodes.read(shard, pack("HMGET", head, "seq", "ordered")) == [[b"4", b"4"]]
    await store.projections.advance(SOURCE, shard, "3-0", [pending(owner, "act_b", None)])
    assert await store.nodes.read(shard, pack("HMGET", head, "seq", "ordered")) == [[b"5", b"5"]]
    assert await list_names(store, owner, 3) == ["act_c"]
    assert await store.nodes.read(shard, pack("ZCARD", order)) == [1]


@pytest.mark.requirement("I1", "I3")
async def test_inbox_is_a_stream_like_any_other_with_hints(store: Store) -> None:
    shard, owner = make_owner()
    inbox = StreamRef(StreamKind.INBOX, owner)
    received: list[bytes] = []
    await store.hints.subscribe(inbox, received.append)
    rows = [InboxRow(owner, event(), None, None) for _ in range(3)]
    await store.projections.advance(SOURCE, shard, "1-0", rows)
    head, page = await store.log.read_resume(inbox, 0)
    assert head is not None
    assert [entry.sequence for entry in page] == [1, 2, 3]
    assert page[0].data.startswith(b'{"sequence":1,')
    await wait_until(lambda: received, 15, "a hint")
    assert received[0].startswith(f"e 1-3.{page[0].previous}.{head.chain}\n".encode())


async def test_newer_epoch_of_the_target_is_learned(store: Store) -> None:
    shard, owner = make_owner()
    await store.log.bump_epoch(shard, 0)
    await store.projections.advance(SOURCE, shard, "1-0", [IndexRow(owner, AGENT, "task_a", 1)])
    assert await store.projections.read_index(owner, AGENT, None, 10) == [("task_a", 1)]


async def test_row_of_another_shard_is_refused(store: Store) -> None:
    one, two = make_owner(), make_owner()
    assert one[0] != two[0]
    with pytest.raises(ValueError, match="not in shard"):
        await store.projections.advance(
            SOURCE, one[0], "1-0", [IndexRow(two[1], AGENT, "task_a", 1)]
        )


async def test_feed_is_read_from_the_mark_and_marks_never_go_back(store: Store) -> None:
    at = make_place()
    for number in range(5):
        row = IdempotencyRow(f"key_{number}", "d", b"", 60_000)
        await store.log.append(
            Batch(at.session, operation(), 0, EPOCH, events=(event(),), idem=row)
        )
    feed = await store.projections.read_feed(at.shard, None)
    assert [(row.session, row.first, row.last) for row in feed] == [
        (at.session, number, number) for number in range(1, 6)
    ]
    assert await store.projections.read_feed(at.shard, feed[1].id, 2) == feed[2:4]
    assert await store.projections.read_mark(at.shard, "relay") is None
    await store.projections.move_mark(at.shard, "relay", feed[3].id)
    await store.projections.move_mark(at.shard, "relay", feed[2].id)
    assert await store.projections.read_mark(at.shard, "relay") == f"0.{feed[3].id}"
    assert await store.projections.read_feed(at.shard, None) == feed


async def test_feed_rows_far_behind_the_mark_are_dropped(store: Store) -> None:
    at = make_place()
    row = IdempotencyRow("key", "d", b"", 60_000)
    await store.log.append(Batch(at.session, operation(), 0, EPOCH, events=(event(),), idem=row))
    (only,) = await store.projections.read_feed(at.shard, None)
    milliseconds = int(only.id.partition("-")[0])
    await store.projections.move_mark(at.shard, "relay", f"{milliseconds + 16 * 60_000}-0")
    assert await store.projections.read_feed(at.shard, None) == []


@pytest.mark.parametrize("reach_s", [600, 120, 30])
async def test_feed_with_many_rows_keeps_less_but_at_least_a_minute(
    store: Store, reach_s: int
) -> None:
    shard, rows, mark_ms = Shard(reach_s % 61), 2 * KEEP_ROWS, 10_000_000
    feed, reach_ms = keys.feed(shard), reach_s * 1000
    await store.nodes.write(shard, pack("DEL", feed))
    for number in range(1, rows + 1):
        row_id = f"{mark_ms - reach_ms + reach_ms * number // rows}-{number}"
        row = ("s", "se_a", "f", 1, "t", 1)
        await store.nodes.write(shard, pack("XADD", feed, row_id, *row))
    await store.projections.move_mark(shard, "relay", f"{mark_ms}-{rows}")
    [left] = await store.nodes.query_all(shard, pack("XRANGE", feed, "-", "+"))
    oldest_ms = int(as_entry_rows(left)[0][0].partition(b"-")[0])
    wanted_ms = min(max(reach_ms / 2, KEEP_AT_LEAST_MS), reach_ms)
    assert mark_ms - oldest_ms == pytest.approx(wanted_ms, abs=reach_ms / rows + 1)


async def test_two_relays_of_one_shard_apply_every_row_once(store: Store) -> None:
    shard, owner = make_owner()
    rows = [(f"{number}-0", InboxRow(owner, event(), None, None)) for number in range(1, 41)]

    async def relay() -> None:
        for feed_id, row in rows:
            await store.projections.advance(SOURCE, shard, feed_id, [row])

    await asyncio.gather(relay(), relay())
    page = await store.log.read_page(StreamRef(StreamKind.INBOX, owner), 0)
    assert [entry.event_id for entry in page] == [row.event.event_id for _, row in rows]


@pytest.mark.requirement("I10")
async def test_ended_task_leaves_the_open_part_and_stays_in_its_end(store: Store) -> None:
    shard, owner = make_owner()
    index = store.projections
    rows = [IndexRow(owner, AGENT, f"task_{number}", 100 + number) for number in range(4)]
    await index.advance(SOURCE, shard, "1-0", rows)
    ended = [
        IndexRow(owner, AGENT, "task_1", 300, "completed"),
        IndexRow(owner, AGENT, "task_2", 200, "failed"),
    ]
    await index.advance(SOURCE, shard, "2-0", ended)
    await index.index_now(IndexRow(owner, AGENT, "task_9", 250, "completed"))
    whole = [("task_1", 300), ("task_9", 250), ("task_2", 200), ("task_3", 103), ("task_0", 100)]
    assert await index.read_index(owner, AGENT, None, 10) == whole
    assert await index.read_index(owner, AGENT, (250, "task_9"), 2) == whole[2:4]
    assert await index.read_index(owner, AGENT, None, 10, ["completed"]) == whole[:2]
    assert await index.read_index(owner, AGENT, None, 10, ["open"]) == whole[3:]
    assert await index.count_index(owner, AGENT, None) == len(whole)
    assert await index.count_index(owner, AGENT, 200) == 2
    assert await index.count_index(owner, AGENT, 250, ["completed", "canceled"]) == 1


@pytest.mark.requirement("I10", "TEV-5")
async def test_transferred_task_leaves_the_open_part_of_one_list_only(store: Store) -> None:
    shard, owner = make_owner()
    index = store.projections
    rows = [IndexRow(owner, agent, "task_1", 100) for agent in (AGENT, "other")]
    await index.advance(SOURCE, shard, "1-0", [*rows, IndexRow(owner, AGENT, "task_2", 50)])
    gone = IndexRow(owner, AGENT, "task_1", 100, "gone")
    await index.advance(SOURCE, shard, "2-0", [gone])
    assert await index.read_index(owner, AGENT, None, 10) == [("task_2", 50)]
    assert await index.count_index(owner, AGENT, None) == 1
    assert await index.read_index(owner, "other", None, 10) == [("task_1", 100)]
    await index.advance(SOURCE, shard, "3-0", [rows[0]])
    assert await index.read_index(owner, AGENT, None, 10) == [("task_1", 100), ("task_2", 50)]
    await index.advance(SOURCE, shard, "2-0", [gone])
    assert await index.count_index(owner, AGENT, None) == 2, "what was applied is not applied again"
    await index.index_now(gone)
    assert await index.read_index(owner, AGENT, None, 10) == [("task_2", 50)]
