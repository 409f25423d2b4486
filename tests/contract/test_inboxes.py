"""How long inboxes keep events, and what a returning device finds."""

from __future__ import annotations

from functools import partial

import pytest

from passerelle.channels.cursor_check import CursorBroken, verify_again
from passerelle.core.events import EncodedEvent, Event, Fact, VendorPayload, encode_event
from passerelle.core.facts import Scope
from passerelle.core.ids import ALL_SHARDS, Shard
from passerelle.core.ports.log import Entry, Head, StreamKind, StreamRef
from passerelle.core.ports.projections import InboxRow
from passerelle.core.wire.json import JsonObject
from passerelle.core.wire.times import format_ms, parse_ms
from passerelle.protocol.cursor import Cursor, GapReason
from passerelle.store import keys
from passerelle.store.acks import KEEP_MS
from passerelle.store.connection import pack
from passerelle.store.store import Store
from tests.contract.test_projections import make_owner

pytestmark = pytest.mark.anyio

SOURCE = Shard(63)
DAY_MS = 24 * 3600 * 1000
NOW_MS = parse_ms("2026-11-20T12:00:00.000Z")
BEHIND_NOW = 2_048
"""Events that are kept regardless of their bytes, since they may be repeated."""


def say(name: str, at_ms: int, words: str = "") -> EncodedEvent:
    """An event of that time whose payload names another time."""
    reported: JsonObject = {"words": words, "quoted": '"timestamp":"1999-01-01T00:00:00.000Z"'}
    fact = Fact(Scope("se_1"), VendorPayload("x.said", reported))
    return encode_event(Event(name, format_ms(at_ms), "rt_1", fact))


async def fill(store: Store, owner: str, shard: Shard, feed: int, *events: EncodedEvent) -> None:
    rows = [InboxRow(owner, event, None, None) for event in events]
    await store.projections.advance(SOURCE, shard, f"{feed}-0", rows)


async def read(store: Store, owner: str) -> tuple[Head, list[Entry]]:
    head, entries = await store.log.read_resume(StreamRef(StreamKind.INBOX, owner), 0, 10_000)
    assert head is not None
    return head, entries


async def read_bytes(store: Store, owner: str) -> int:
    inbox = StreamRef(StreamKind.INBOX, owner)
    [kept] = await store.nodes.query_all(inbox.shard, pack("HGET", keys.head(inbox), "bytes"))
    assert isinstance(kept, bytes)
    return int(kept)


async def test_old_events_are_trimmed_and_the_cursor_at_the_line_holds(store: Store) -> None:
    shard, owner = make_owner()
    for day in range(10):
        at_ms = NOW_MS - (10 - day) * DAY_MS
        await fill(
            store, owner, shard, day + 1, *(say(f"ev_{day}_{n}", at_ms + n) for n in range(3))
        )
    before, entries = await read(store, owner)
    size = await read_bytes(store, owner)
    assert await store.inboxes.trim(owner, NOW_MS - 7 * DAY_MS, NOW_MS) == 3
    head, left = await read(store, owner)
    assert (head.epoch, head.sequence, head.chain) == (before.epoch, before.sequence, before.chain)
    assert (head.first, left) == (10, entries[9:])
    assert await read_bytes(store, owner) == size - size * 3 // 10
    for sequence, why in ((9, None), (8, GapReason.TRIMMED)):
        cursor = Cursor(head.epoch, sequence, entries[sequence].previous)
        page = await store.log.read_page(StreamRef(StreamKind.INBOX, owner), sequence)
        found = verify_again(head, page, cursor)
        assert found.why is why if isinstance(found, CursorBroken) else why is None


async def test_inbox_of_an_absent_person_becomes_empty_and_continues_its_sequence(
    store: Store,
) -> None:
    shard, owner = make_owner()
    for number in range(300):
        await fill(store, owner, shard, number + 1, say(f"ev_{number}", NOW_MS - 30 * DAY_MS))
    before, _ = await read(store, owner)
    assert await store.inboxes.trim(owner, NOW_MS - 7 * DAY_MS, NOW_MS) == 300
    assert await store.inboxes.trim(owner, NOW_MS - 7 * DAY_MS, NOW_MS) == 0
    head, left = await read(store, owner)
    assert (head.first, head.sequence, left) == (301, 300, [])
    assert await read_bytes(store, owner) == 0
    await fill(store, owner, shard, 301, say("ev_new", NOW_MS))
    head, (entry,) = await read(store, owner)
    assert (entry.sequence, entry.previous, head.first) == (301, before.chain, 301)


async def test_damaged_entry_does_not_keep_old_events_after_it(store: Store) -> None:
    shard, owner = make_owner()
    await fill(store, owner, shard, 1, say("ev_1", NOW_MS - 30 * DAY_MS))
    entries = keys.entries(StreamRef(StreamKind.INBOX, owner))
    await store.nodes.write(shard, pack("DEL", entries))
    await store.nodes.write(shard, pack("XADD", entries, "1-0", "p", "", "d", b"\xffrubbish"))
    await fill(store, owner, shard, 2, say("ev_2", NOW_MS - 30 * DAY_MS))
    await fill(store, owner, shard, 3, say("ev_3", NOW_MS))
    assert await store.inboxes.trim(owner, NOW_MS - 7 * DAY_MS, NOW_MS) == 2
    head, left = await read(store, owner)
    assert (head.first, [one.event_id for one in left]) == (3, ["ev_3"])


async def test_pending_approvals_stay_whatever_their_age(store: Store) -> None:
    shard, owner = make_owner()
    asked = InboxRow(owner, say("ev_old", NOW_MS - 30 * DAY_MS), "act_1", b"{}", NOW_MS)
    await store.projections.advance(SOURCE, shard, "1-0", [asked])
    assert await store.inboxes.trim(owner, NOW_MS - 7 * DAY_MS, NOW_MS) == 1
    assert await store.projections.read_inbox(owner) == [("act_1", b"{}")]


async def test_acks_of_long_absent_devices_are_removed(store: Store) -> None:
    shard, owner = make_owner()
    inbox = StreamRef(StreamKind.INBOX, owner)
    await fill(store, owner, shard, 1, say("ev_1", NOW_MS))
    head, _ = await read(store, owner)
    cursor = f"{head.epoch}.1.{head.chain}"
    await store.acks.store_ack(inbox, "lately", 1, cursor, NOW_MS - KEEP_MS)
    await store.acks.store_ack(inbox, "long ago", 1, cursor, NOW_MS - KEEP_MS - 1)
    assert await store.inboxes.trim(owner, NOW_MS - 7 * DAY_MS, NOW_MS) == 0
    assert await store.acks.read_ack(inbox, "lately") == cursor
    assert await store.acks.read_ack(inbox, "long ago") is None


async def test_owners_are_found_in_the_requested_shards(store: Store) -> None:
    people = [make_owner() for _ in range(4)]
    for number, (shard, owner) in enumerate(people):
        await fill(store, owner, shard, number + 1, say(f"ev_{number}", NOW_MS))
    for shard, owner in people:
        assert owner in await store.inboxes.list_owners({shard})
        assert owner not in await store.inboxes.list_owners(set(ALL_SHARDS) - {shard})
    assert await store.inboxes.list_owners(()) == []


@pytest.mark.parametrize("size", [1, 7, 64])
async def test_bytes_beyond_the_inbox_limit_are_trimmed_by_new_events(
    store: Store, size: int
) -> None:
    shard, owner = make_owner()
    store.projections.inbox_bytes = 600_000
    add = partial(fill, store, owner, shard)
    number = feed = 0
    most = 0
    while number < 3 * BEHIND_NOW:
        part = [say(f"ev_{number + n}", NOW_MS, "x" * (n % 90)) for n in range(size)]
        number, feed = number + size, feed + 1
        await add(feed, *part)
        most = max(most, await read_bytes(store, owner))
    head, entries = await read(store, owner)
    assert [one.event_id for one in entries] == [f"ev_{n}" for n in range(head.first - 1, number)]
    kept = await read_bytes(store, owner)
    assert BEHIND_NOW <= len(entries) < 2 * BEHIND_NOW
    assert most < 1.6 * 600_000
    assert kept <= 600_000 or len(entries) <= BEHIND_NOW + size
    assert head.sequence == number


async def test_events_that_may_be_repeated_stay_whatever_their_size(store: Store) -> None:
    shard, owner = make_owner()
    store.projections.inbox_bytes = 1
    events = [say(f"ev_{number}", NOW_MS) for number in range(BEHIND_NOW + 100)]
    for feed, first in enumerate(range(0, len(events), 60), 1):
        await fill(store, owner, shard, feed, *events[first : first + 60])
    head, entries = await read(store, owner)
    assert len(entries) >= BEHIND_NOW
    await store.log.bump_epoch(SOURCE, 0)
    await fill(store, owner, shard, 1, *events[-BEHIND_NOW // 2 :])
    again, after = await read(store, owner)
    assert (again.sequence, after) == (head.sequence, entries)


async def test_oversized_inbox_of_an_earlier_version_shrinks(store: Store) -> None:
    shard, owner = make_owner()
    for feed in range(1, 101):
        await fill(store, owner, shard, feed, *(say(f"ev_{feed}_{n}", NOW_MS) for n in range(64)))
    size = await read_bytes(store, owner)
    store.projections.inbox_bytes = size // 5
    for feed in range(101, 104):
        await fill(store, owner, shard, feed, say(f"ev_{feed}", NOW_MS))
    head, entries = await read(store, owner)
    assert BEHIND_NOW <= len(entries) <= BEHIND_NOW + 64
    assert entries[-1].sequence == head.sequence == 6_403
