"""The hub, one rule at a time: each guard has a scenario that goes wrong without it."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest

from passerelle.channels.hub import Hub, HubSettings, Start
from passerelle.channels.pages import Page
from passerelle.channels.position import CursorGap, Position, PositionItem, ReplayBounds, ReplayEnd
from passerelle.channels.ring import RingBounds
from passerelle.channels.views import FullView, PlainView, TaskView
from passerelle.core.errors import StoreUnavailable
from passerelle.core.ids import Shard, derive_id
from passerelle.core.ports.log import StreamKind, StreamRef
from passerelle.protocol.cursor import Cursor, GapReason
from tests.support.waiting import wait_until
from tests.unit.channels.history import History
from tests.unit.channels.streams import STREAM, TASK, GatedLog, HeldHints

pytestmark = pytest.mark.anyio


@dataclass
class Scene:
    history: History
    log: GatedLog
    hints: HeldHints
    hub: Hub
    lost: list[GapReason]


@asynccontextmanager
async def scene(
    length: int = 0, *, linger_s: float = 3600, ring: int = 1_024
) -> AsyncGenerator[Scene]:
    history, lost = History(), list[GapReason]()
    if length:
        history.append(length)
    log, hints = GatedLog(history), HeldHints()
    settings = HubSettings(
        jitter=lambda: 0.5,
        audit_s=3600,
        linger_s=linger_s,
        retry_s=0.01,
        bounds=RingBounds(events=ring),
    )
    async with Hub(log, hints, settings, lambda _stream, why: lost.append(why)) as hub:
        yield Scene(history, log, hints, hub, lost)


async def take(position: Position) -> PositionItem:
    async with asyncio.timeout(10):
        return await anext(position)


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def sequences(item: PositionItem) -> list[int]:
    assert isinstance(item, Page)
    return [linked.entry.sequence for linked in item.entries]


async def test_a_reader_gets_what_follows_its_cursor_and_then_what_is_new() -> None:
    async with scene(5) as at, at.hub.open(STREAM, FullView(), at.history.at(2)) as position:
        assert sequences(await take(position)) == [3, 4, 5]
        assert await take(position) == ReplayEnd(at.history.end, 3)
        at.hints.publish(at.history.append(2))
        at.hints.deliver()
        reads = at.log.reads
        assert sequences(await take(position)) == [6, 7]
        assert at.log.reads == reads, "a hint with its entries saves the read"


async def test_a_stream_without_events_has_a_cursor() -> None:
    async with scene() as at, at.hub.open(STREAM, FullView(), Start.LIVE) as position:
        assert position.cursor == at.history.at(0)
        assert isinstance(await take(position), ReplayEnd)


@pytest.mark.requirement("I8")
async def test_a_stream_that_does_not_exist_is_a_gap() -> None:
    async with scene() as at:
        at.history.flush()
        async with at.hub.open(STREAM, FullView(), Start.BEGINNING) as position:
            assert await take(position) == CursorGap(GapReason.LOST, None, None, None)


@pytest.mark.requirement("I3")
async def test_a_hint_that_arrives_while_the_head_is_read_is_applied() -> None:
    async with scene(1) as at:
        at.log.gated = True
        opening = asyncio.create_task(_first_items(at, 2))
        await settle()
        at.log.open_gate()
        await settle()
        at.hints.publish(at.history.append())
        at.hints.deliver()
        at.log.gated = False
        at.log.open_gate()
        page, live = await opening
        assert sequences(page) == [2]
        assert isinstance(live, ReplayEnd)
        assert at.log.reads == 0


async def _first_items(at: Scene, count: int) -> list[PositionItem]:
    async with at.hub.open(STREAM, FullView(), at.history.at(1)) as position:
        return [await take(position) for _ in range(count)]


@pytest.mark.requirement("I3", "I8")
async def test_a_lost_hint_is_repaired_by_the_next_one() -> None:
    async with scene(1) as at, at.hub.open(STREAM, FullView(), Start.LIVE) as position:
        assert isinstance(await take(position), ReplayEnd)
        at.hints.publish(at.history.append())
        at.hints.held.clear()
        at.hints.publish(at.history.append())
        at.hints.deliver()
        assert sequences(await take(position)) == [2, 3]


async def test_a_lost_hint_is_repaired_by_the_audit() -> None:
    async with scene(1) as at, at.hub.open(STREAM, FullView(), Start.LIVE) as position:
        assert isinstance(await take(position), ReplayEnd)
        at.history.append(2)
        at.hints.lost()
        assert sequences(await take(position)) == [2, 3]


@pytest.mark.parametrize("is_late", [False, True])
async def test_an_event_stored_during_an_audit_is_no_mismatch(*, is_late: bool) -> None:
    async with scene(1) as at, at.hub.open(STREAM, FullView(), Start.LIVE) as position:
        assert isinstance(await take(position), ReplayEnd)
        at.log.gated = True
        at.hub.audit_soon()
        await wait_until(lambda: at.log.waiting, 10, "the audit reads the head")
        at.hints.publish(at.history.append())
        if not is_late:
            at.hints.deliver()
        at.log.gated = False
        at.log.open_gate()
        await settle()
        if is_late:
            at.hints.deliver()
        assert sequences(await take(position)) == [2]
        await asyncio.sleep(2 * HubSettings(lambda: 0.5).hint_s)
        assert (at.hub.counts.audit_mismatches, at.log.reads) == (0, 0)
        at.history.append()
        at.hub.audit_soon()
        assert sequences(await take(position)) == [3]
        assert at.hub.counts.audit_mismatches == 1


async def test_an_audited_stream_is_released_after_its_last_reader() -> None:
    async with scene(5, linger_s=0) as at:
        async with at.hub.open(STREAM, FullView(), Start.LIVE) as position:
            assert isinstance(await take(position), ReplayEnd)
            ring = weakref.ref(next(iter(at.hub._followed.values())).follower)  # pyright: ignore[reportPrivateUsage]
            at.hub.audit_soon()
            await settle()
        del position
        await settle()
        gc.collect()
        assert ring() is None


async def test_a_doubled_or_late_hint_repeats_nothing() -> None:
    async with scene(1) as at, at.hub.open(STREAM, FullView(), Start.LIVE) as position:
        assert isinstance(await take(position), ReplayEnd)
        at.hints.publish(at.history.append())
        at.hints.publish(at.history.append())
        at.hints.deliver(0, keep=True)
        at.hints.deliver(1, keep=True)
        at.hints.deliver(0, keep=True)
        at.hints.deliver(1, keep=True)
        assert sequences(await take(position)) == [2, 3]
        assert at.log.reads == 0
        at.hints.publish(at.history.append())
        at.hints.deliver(2)
        assert sequences(await take(position)) == [4]


@pytest.mark.requirement("I8")
async def test_a_sequence_that_is_used_again_is_noticed_by_its_hint_and_the_reader_sees_a_gap() -> (
    None
):
    async with scene(5) as at, at.hub.open(STREAM, FullView(), at.history.at(3)) as position:
        assert sequences(await take(position)) == [4, 5]
        old = at.history.end
        assert isinstance(await take(position), ReplayEnd)
        at.history.lose_tail(2)
        at.hints.publish(at.history.append(2))
        at.hints.deliver()
        assert await take(position) == CursorGap(GapReason.FORKED, old, at.history.end, 1)
        assert at.lost == [GapReason.FORKED]


@pytest.mark.requirement("I8")
async def test_a_lost_tail_is_noticed_by_the_audit_before_anything_is_written_again() -> None:
    async with scene(5) as at, at.hub.open(STREAM, FullView(), at.history.end) as position:
        assert isinstance(await take(position), ReplayEnd)
        old = at.history.end
        at.history.lose_tail(2)
        at.hub.audit_soon()
        assert await take(position) == CursorGap(GapReason.AHEAD, old, at.history.end, 1)
        assert at.lost == [GapReason.AHEAD]


@pytest.mark.requirement("I8")
async def test_a_reader_whose_position_survived_a_lost_tail_goes_on_untouched() -> None:
    async with scene(5) as at, at.hub.open(STREAM, FullView(), at.history.end) as ahead:
        assert isinstance(await take(ahead), ReplayEnd)
        kept = at.history.at(3)
        at.history.lose_tail(2)
        at.hints.publish(at.history.append(2))
        at.hints.deliver()
        await settle()
        async with at.hub.open(STREAM, FullView(), kept) as behind:
            page = await take(behind)
            assert sequences(page) == [4, 5]
            assert isinstance(page, Page)
            assert [linked.entry.event_id for linked in page.entries] == ["ev_6", "ev_7"]
        assert isinstance(await take(ahead), CursorGap)


async def test_two_readers_at_one_sequence_with_different_chains_have_different_answers() -> None:
    async with scene(5) as at, at.hub.open(STREAM, FullView(), Start.LIVE):
        sound = at.history.at(3)
        forged = Cursor(sound.epoch, 3, "00000000")
        at.log.gated = True
        async with (
            at.hub.open(STREAM, FullView(), forged) as first,
            at.hub.open(STREAM, FullView(), sound) as second,
        ):
            items = [asyncio.create_task(take(one)) for one in (first, second)]
            await settle()
            at.log.gated = False
            at.log.open_gate()
            gap, page = [await item for item in items]
        assert isinstance(gap, CursorGap)
        assert gap.why is GapReason.FORKED
        assert sequences(page) == [4, 5]
        assert at.lost == [], "a cursor that anyone can make up proves nothing"


async def test_equal_page_reads_share_one_call() -> None:
    async with scene(5) as at, at.hub.open(STREAM, FullView(), Start.LIVE) as warm:
        assert isinstance(await take(warm), ReplayEnd)
        at.log.gated = True
        async with (
            at.hub.open(STREAM, FullView(), at.history.at(2)) as first,
            at.hub.open(STREAM, PlainView(), at.history.at(2)) as second,
        ):
            items = [asyncio.create_task(take(one)) for one in (first, second)]
            await settle()
            at.log.gated = False
            at.log.open_gate()
            assert [sequences(await item) for item in items] == [[3, 4, 5], [3, 4, 5]]
        assert at.log.reads == 1


async def test_a_reader_ahead_of_the_hub_makes_the_hub_read_on() -> None:
    async with scene(2) as at, at.hub.open(STREAM, FullView(), Start.LIVE) as warm:
        assert isinstance(await take(warm), ReplayEnd)
        at.history.append(3)
        async with at.hub.open(STREAM, FullView(), at.history.end) as ahead:
            assert await take(ahead) == ReplayEnd(at.history.end, 0)
        assert sequences(await take(warm)) == [3, 4, 5]


async def test_a_filtered_view_names_the_event_before_and_passes_over_the_rest() -> None:
    async with scene() as at:
        at.history.append(2, task=TASK)
        at.history.append(2, "reasoning.delta", TASK)
        at.history.append(1)
        at.history.append(1, task=TASK)
        async with at.hub.open(STREAM, TaskView(TASK), at.history.at(0)) as position:
            page = await take(position)
            assert isinstance(page, Page)
            assert (sequences(page), page.previous) == ([1, 2, 6], 0)
            assert await take(position) == ReplayEnd(at.history.end, 3)
            at.hints.publish(at.history.append(1))
            at.hints.publish(at.history.append(1, task=TASK))
            at.hints.deliver()
            at.hints.deliver()
            later = await take(position)
            assert isinstance(later, Page)
            assert (sequences(later), later.previous) == ([8], 6)


@pytest.mark.requirement("CHN-4")
async def test_more_missed_events_than_the_limit_are_a_gap_before_anything_is_sent() -> None:
    bounds = ReplayBounds(events=3, size_bytes=1_000_000)
    async with scene(9) as at:
        async with at.hub.open(STREAM, FullView(), at.history.at(5), bounds) as position:
            gap = await take(position)
        assert gap == CursorGap(GapReason.LIMIT, at.history.at(5), at.history.end, 1)
        async with at.hub.open(STREAM, FullView(), at.history.at(6), bounds) as position:
            assert sequences(await take(position)) == [7, 8, 9]


@pytest.mark.parametrize("ring", [1_024, 1])
async def test_limit_that_a_view_meets_on_its_way_names_the_end_of_the_stream(ring: int) -> None:
    """How much a view shows is known when it is read; the stream has an end all the same."""
    async with scene(ring=ring) as at:
        at.history.append(9, task=TASK)
        bounds, start = ReplayBounds(events=3, size_bytes=1_000_000), at.history.at(2)
        async with at.hub.open(STREAM, TaskView(TASK), start, bounds) as position:
            gap = await take(position)
        assert gap == CursorGap(GapReason.LIMIT, start, at.history.end, 1)


async def test_an_invalid_cursor_is_reported_whatever_the_limit() -> None:
    bounds = ReplayBounds(events=1, size_bytes=1_000_000)
    async with scene(9) as at:
        forged = Cursor(at.history.epoch, 2, "00000000")
        async with at.hub.open(STREAM, FullView(), forged, bounds) as position:
            gap = await take(position)
        assert isinstance(gap, CursorGap)
        assert gap.why is GapReason.FORKED


async def test_a_reader_that_falls_off_the_ring_reads_pages_and_becomes_live_again() -> None:
    async with scene(1, ring=4) as at, at.hub.open(STREAM, FullView(), Start.LIVE) as position:
        assert isinstance(await take(position), ReplayEnd)
        for _ in range(20):
            at.hints.publish(at.history.append())
            at.hints.deliver()
        seen: list[int] = []
        while isinstance(item := await take(position), Page):
            seen += sequences(item)
        assert seen == list(range(2, 22))
        assert item == ReplayEnd(at.history.end, 20)


async def test_a_reader_that_fell_too_far_behind_gets_a_gap_for_being_slow() -> None:
    bounds = ReplayBounds(events=10, size_bytes=1_000_000)
    async with (
        scene(1, ring=4) as at,
        at.hub.open(STREAM, FullView(), Start.LIVE, bounds) as position,
    ):
        assert isinstance(await take(position), ReplayEnd)
        for _ in range(20):
            at.hints.publish(at.history.append())
            at.hints.deliver()
        gap = await take(position)
        assert isinstance(gap, CursorGap)
        assert (gap.why, gap.have) == (GapReason.SLOW, at.history.at(1))
        with pytest.raises(StopAsyncIteration):
            await take(position)


async def test_the_last_release_starts_a_linger_and_a_new_reader_ends_it() -> None:
    async with scene(3, linger_s=0.01) as at:
        async with at.hub.open(STREAM, FullView(), Start.LIVE):
            assert at.hub.streams == 1
        async with at.hub.open(STREAM, FullView(), Start.LIVE):
            over_s = asyncio.get_running_loop().time() + 0.03
            await wait_until(
                lambda: asyncio.get_running_loop().time() > over_s,
                10,
                "the linger would have ended",
            )
            assert (at.hub.streams, at.hints.subscribed) == (1, 1)
        await wait_until(
            lambda: not at.hub.streams and at.hints.on_hint is None, 10, "the stream is left"
        )
        async with at.hub.open(STREAM, FullView(), Start.LIVE) as position:
            assert isinstance(await take(position), ReplayEnd)
            assert at.hints.subscribed == 2


async def test_a_failed_opening_leaves_nothing_behind_and_the_next_one_works() -> None:
    async with scene(3) as at:
        at.log.fails = True
        with pytest.raises(StoreUnavailable):
            async with at.hub.open(STREAM, FullView(), Start.LIVE):
                pytest.fail("opened without a store")
        at.log.fails = False
        async with at.hub.open(STREAM, FullView(), at.history.at(1)) as position:
            assert sequences(await take(position)) == [2, 3]


async def test_a_step_that_failed_can_be_tried_again_without_a_loss() -> None:
    async with scene(5) as at, at.hub.open(STREAM, FullView(), at.history.at(2)) as position:
        at.log.fails = True
        with pytest.raises(StoreUnavailable):
            await take(position)
        at.log.fails = False
        assert sequences(await take(position)) == [3, 4, 5]


async def test_reading_on_goes_on_by_itself_when_the_store_is_back() -> None:
    async with scene(1) as at, at.hub.open(STREAM, FullView(), Start.LIVE) as position:
        assert isinstance(await take(position), ReplayEnd)
        at.log.fails = True
        at.history.append(1)
        at.hints.publish(at.history.append(1))
        at.hints.deliver()
        await settle()
        at.log.fails = False
        assert sequences(await take(position)) == [2, 3]


async def test_a_hub_ends_while_a_stream_that_lingers_is_left() -> None:
    other = StreamRef(StreamKind.SESSION, derive_id("se", Shard(4), "other"))
    async with scene(5, linger_s=0) as at:
        opened = at.hub.open(STREAM, FullView(), at.history.at(1))
        position = await opened.__aenter__()
        at.hints.on_hint = None  # the other stream has hints of its own
        async with at.hub.open(other, FullView(), Start.LIVE):
            at.log.gated = True
            reading = asyncio.create_task(take(position))
            await settle()
        # The hub ends here: it waits for the read of the one stream, and meanwhile the other one is over.
    assert at.hub.streams == 1
    reading.cancel()
    await asyncio.gather(reading, opened.__aexit__(None, None, None), return_exceptions=True)
