"""Trimming: only archived and unneeded events are removed, and the cursor at the line still holds."""

from __future__ import annotations

import pytest

from passerelle.core.batch import (
    ABSENT,
    Appended,
    Batch,
    EntityKind,
    EntityRef,
    OpenChange,
    Stamp,
    TargetChange,
)
from passerelle.store.retention import Archived, NotTrimmed, PrefixHeld, Trimmed
from passerelle.store.store import Store
from passerelle.store.targets import Target
from tests.support.batches import EPOCH, TaskPlace, event, make_place, operation

pytestmark = pytest.mark.anyio

ARCHIVE = Archived("blob:1", "ab" * 32, 500)
LONG_AGO_MS = 1


async def begin(
    store: Store, count: int = 20, *, open_from: int | None = None, at_once: int = 1
) -> TaskPlace:
    """Creates a session with ``count`` events, ``at_once`` of them in each append."""
    at, stamp = make_place(), ABSENT
    for first in range(1, count + 1, at_once):
        events = tuple(event() for _ in range(first, min(first + at_once, count + 1)))
        opens = open_from is not None and first <= open_from < first + at_once
        change = OpenChange(at.task, (open_from or 0) - first)
        one = Batch(
            at.session,
            operation(),
            0,
            EPOCH,
            entities=(at.write(stamp),),
            events=events,
            open=(change,) if opens else (),
        )
        assert isinstance(await store.log.append(one), Appended)
        stamp = Stamp(stamp.version + 1, one.op)
    return at


async def server_now(store: Store, at: TaskPlace) -> int:
    return (await store.due.claim(at.shard, 1, 1)).now_ms


async def test_trimmed_prefix_is_gone_and_its_last_cursor_still_verifies(store: Store) -> None:
    at = await begin(store)
    before = await store.log.read_page(at.stream, 0)
    assert await store.retention.trim(at.session, 12, ARCHIVE) == Trimmed(13)
    head, page = await store.log.read_resume(at.stream, 12)
    assert head is not None
    assert (head.first, head.sequence) == (13, 20)
    assert page == before[12:]
    assert page[0].previous == before[12].previous
    (session,) = await store.log.load(
        [type(at.task_ref)(type(at.task_ref.kind).SESSION, at.session)]
    )
    assert session.fields["archive"] == f"blob:1 {'ab' * 32}".encode()


@pytest.mark.parametrize(("upto", "first"), [(11, 9), (12, 13), (15, 13), (16, 17), (20, 21)])
async def test_events_of_one_append_are_trimmed_together(
    store: Store, upto: int, first: int
) -> None:
    at = await begin(store, at_once=4)
    before = await store.log.read_page(at.stream, 0)
    (session,) = await store.log.load([EntityRef(EntityKind.SESSION, at.session)])
    assert await store.retention.trim(at.session, upto, ARCHIVE) == Trimmed(first)
    head, page = await store.log.read_resume(at.stream, first - 1)
    assert head is not None
    assert (head.first, page) == (first, before[first - 1 :])
    assert await store.log.read_page(at.stream, 0) == page
    (after,) = await store.log.load([session.ref])
    assert int(after.fields["bytes"]) == int(session.fields["bytes"]) - ARCHIVE.bytes


async def test_a_line_inside_the_first_append_trims_nothing(store: Store) -> None:
    at = await begin(store, at_once=4)
    assert await store.retention.trim(at.session, 3, ARCHIVE) == NotTrimmed("nothing")
    assert len(await store.log.read_page(at.stream, 0)) == 20


async def test_reader_from_before_the_line_gets_the_remaining_events(store: Store) -> None:
    at = await begin(store, 200, at_once=20)
    assert await store.retention.trim(at.session, 180, ARCHIVE) == Trimmed(181)
    page = await store.log.read_page(at.stream, 0, 4)
    assert [entry.sequence for entry in page] == [181, 182, 183, 184]
    head, page = await store.log.read_resume(at.stream, 5, 4)
    assert head is not None
    assert (head.first, [entry.sequence for entry in page]) == (181, [181, 182, 183, 184])


async def test_nothing_is_trimmed_without_an_archive(store: Store) -> None:
    at = await begin(store)
    for nothing in (Archived("", "ab", 1), Archived("blob:1", "", 1)):
        assert await store.retention.trim(at.session, 5, nothing) == NotTrimmed("unarchived")
    assert len(await store.log.read_page(at.stream, 0)) == 20


async def test_trim_past_the_end_or_below_the_line_does_nothing(store: Store) -> None:
    at = await begin(store)
    await store.retention.trim(at.session, 5, ARCHIVE)
    for upto in (5, 21):
        assert await store.retention.trim(at.session, upto, ARCHIVE) == NotTrimmed("nothing")


async def test_open_task_holds_its_first_fact(store: Store) -> None:
    at = await begin(store, open_from=8)
    assert await store.retention.trim(at.session, 8, ARCHIVE) == PrefixHeld("open", 8)
    assert await store.retention.trim(at.session, 7, ARCHIVE) == Trimmed(8)


async def test_recent_device_keeps_its_unacknowledged_events(store: Store) -> None:
    at = await begin(store)
    now = await server_now(store, at)
    await store.acks.store_ack(at.stream, "lately", 1, f"{EPOCH}.6.0badcafe", now)
    await store.acks.store_ack(at.stream, "long ago", 1, f"{EPOCH}.2.0badcafe", LONG_AGO_MS)
    assert await store.retention.trim(at.session, 7, ARCHIVE) == PrefixHeld("ack", 6)
    assert await store.acks.read_ack(at.stream, "long ago") is not None
    assert await store.retention.trim(at.session, 6, ARCHIVE) == Trimmed(7)
    assert await store.acks.read_ack(at.stream, "long ago") is None


async def test_tab_keeps_its_unacknowledged_events_for_an_hour_and_its_position_for_longer(
    store: Store,
) -> None:
    at = await begin(store)
    now = await server_now(store, at)
    two_hours_ago_ms = now - 2 * 3600 * 1000
    await store.acks.store_ack(at.stream, "laptop#1", 1, f"{EPOCH}.6.0badcafe", now)
    await store.acks.store_ack(at.stream, "laptop#2", 1, f"{EPOCH}.2.0badcafe", two_hours_ago_ms)
    assert await store.retention.trim(at.session, 7, ARCHIVE) == PrefixHeld("ack", 6)
    await store.acks.store_ack(at.stream, "laptop", 1, f"{EPOCH}.3.0badcafe", two_hours_ago_ms)
    assert await store.retention.trim(at.session, 6, ARCHIVE) == PrefixHeld("ack", 3)
    assert await store.retention.trim(at.session, 3, ARCHIVE) == Trimmed(4)
    assert await store.acks.read_ack(at.stream, "laptop#2") == f"{EPOCH}.2.0badcafe"


async def hook_on(store: Store, at: TaskPlace, name: str, outcome: Target) -> None:
    """A target whose delivery has the outcome ``outcome``."""
    (task,) = await store.log.load([at.task_ref])
    change = TargetChange(name, "*", whole=True)
    await store.log.append(
        Batch(at.session, operation(), 0, EPOCH, (at.write(task.stamp),), targets=(change,))
    )
    (row,) = (await store.due.claim(at.shard, 1, 60_000)).rows
    assert (await store.targets.settle(at.stream, name, row.token, outcome)).claimed


async def test_live_target_keeps_undelivered_events_and_a_dead_one_does_not(store: Store) -> None:
    at = await begin(store)
    await hook_on(store, at, "dead", Target("dead", "*", f"{EPOCH}.1.0badcafe", 9, 1))
    await hook_on(store, at, "hook", Target("backoff", "*", f"{EPOCH}.4.0badcafe", 1, 1))
    assert await store.retention.trim(at.session, 5, ARCHIVE) == PrefixHeld("target", 4)
    assert await store.retention.trim(at.session, 4, ARCHIVE) == Trimmed(5)


async def test_older_half_is_trimmed_beyond_the_cap_whatever_keeps_it(store: Store) -> None:
    at = await begin(store, open_from=1)

    async def trim(upto: int) -> object:
        return await store.retention.trim(at.session, upto, ARCHIVE, cap_entries=15)

    assert await trim(11) == PrefixHeld("open", 1)
    assert await trim(10) == Trimmed(11)
    assert await trim(15) == PrefixHeld("open", 1)


async def test_empty_trimmed_stream_continues_its_sequence(store: Store) -> None:
    at = await begin(store, 3)
    before = await store.log.read_head(at.stream)
    assert before is not None
    assert await store.retention.trim(at.session, 3, ARCHIVE) == Trimmed(4)
    assert await store.log.read_resume(at.stream, 3) == (
        type(before)(before.epoch, 3, before.chain, 4),
        [],
    )
    (task,) = await store.log.load([at.task_ref])
    assert task.stamp != Stamp(0, "")
    await store.log.append(
        Batch(
            at.session,
            operation(),
            0,
            EPOCH,
            entities=(at.write(task.stamp),),
            events=(event(),),
        )
    )
    (entry,) = await store.log.read_page(at.stream, 0)
    assert (entry.sequence, entry.previous) == (4, before.chain)
