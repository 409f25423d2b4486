"""Following over a real server: no event missing or repeated, whatever connection is cut (CHN-3, I1, I3, I8)."""

from __future__ import annotations

import asyncio
import random  # noqa: TID251 - chooses where to cut; the seed is a parameter
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import orjson
import pytest

from passerelle.channels.limits import ChannelLimits
from passerelle.client.channel import GapError, StreamClosed
from passerelle.client.cursor_stores import FileCursors, MemoryCursors
from passerelle.client.items import Connected, Event, Gap, Item, Live
from passerelle.core.ports.log import StreamKind, StreamRef
from passerelle.protocol.cursor import GapReason
from passerelle.store import keys
from passerelle.store.retention import Archived, PrefixHeld, Trimmed
from passerelle.store.store import Store
from tests.integration.channels.rig import BOB, OVER_BOTH, Application, Rig, serve
from tests.support.engine import Server, ask
from tests.support.stored_events import rewrite_stream
from tests.support.tcp_proxy import FaultProxy, fault_proxy
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio


async def follow(
    rig: Rig, stream: str, app: Application, *, cursors: MemoryCursors | None = None, url: str | None = None,
    ready: asyncio.Event | None = None, device: str = "phone",
) -> None:  # fmt: skip
    """Folds a stream until it is cancelled; acknowledges every item."""
    async with rig.client(device, cursors=cursors, on_gap=app.on_gap, url=url) as channel:
        async for item in channel.stream(stream):
            app.take(item)
            if isinstance(item, Live) and ready is not None:
                ready.set()
            if not isinstance(item, Gap):
                await item.ack()


@pytest.mark.requirement("I3")
async def test_a_new_device_gets_a_snapshot_and_then_every_event(rig: Rig) -> None:
    session, app, ready = rig.make_session(), Application(), asyncio.Event()
    ids = await rig.append(session, 3)
    task = asyncio.create_task(follow(rig, f"session:{session}", app, ready=ready))
    await ready.wait()
    assert app.events == ids
    ids += await rig.append(session, 2)
    ids += await rig.append(session, 100)
    await wait_until(lambda: len(app.events) == len(ids), 15, "all events arrive")
    assert (app.events, app.repeats, app.gaps) == (ids, 0, [])
    task.cancel()


def goes_on(proxy: FaultProxy, count: int, app: Application, ids: list[str]) -> bool:
    """A cut may hit a link before the proxy has joined it; then all events arrive over that link."""
    return proxy.accepted >= count or len(app.events) >= len(ids)


@OVER_BOTH
@pytest.mark.requirement("CHN-3", "I1", "I3", "I8")
@pytest.mark.parametrize("seed", [1, 2])
async def test_fifty_random_cuts_lose_nothing_and_repeat_nothing(rig: Rig, seed: int) -> None:
    chance = random.Random(seed)  # noqa: S311 - chooses where to cut, nothing secret
    session, app, ready = rig.make_session(), Application(), asyncio.Event()
    ids = await rig.append(session, 1)
    async with fault_proxy(f"127.0.0.1:{rig.port}") as proxy:
        url = f"ws://127.0.0.1:{proxy.port}/v1/channel"
        task = asyncio.create_task(follow(rig, f"session:{session}", app, url=url, ready=ready))
        await ready.wait()
        for _ in range(50):
            ids += await rig.append(session, chance.randint(1, 6))
            for _ in range(chance.randint(0, 8)):
                await asyncio.sleep(0)
            target = proxy.accepted + 1
            proxy.cut()
            if chance.random() < 0.3:
                ids += await rig.append(session, chance.randint(1, 3))
            await wait_until(partial(goes_on, proxy, target, app, ids), 15, "it connects again")
        await wait_until(lambda: len(app.events) >= len(ids), 10, f"all arrive (seed {seed})")
        task.cancel()
    assert app.events == ids, f"seed {seed}"
    assert (app.repeats, app.gaps) == (0, [])


@pytest.mark.requirement("CHN-3")
async def test_a_restarted_client_continues_after_its_saved_cursor(
    rig: Rig, tmp_path: Path
) -> None:
    session = rig.make_session()
    ids = await rig.append(session, 5)
    path = tmp_path / "cursors.json"
    seen: list[str] = []

    async def run_until(count: int) -> None:
        async with rig.client(cursors=FileCursors(path)) as channel:
            async for item in channel.stream(f"session:{session}", start="start"):
                if isinstance(item, Event):
                    seen.append(str(item.data["eventId"]))
                if len(seen) == count and isinstance(item, Live):
                    break

    await run_until(5)
    ids += await rig.append(session, 4)
    await run_until(9)
    assert seen == ids


@pytest.mark.requirement("I1")
async def test_a_device_receives_the_stored_bytes_in_order(rig: Rig) -> None:
    session = rig.make_session()
    stream = StreamRef(StreamKind.SESSION, session)
    events: list[Event] = []
    async with rig.client() as channel:
        reading = asyncio.create_task(
            _collect(channel.stream(f"session:{session}", start="start"), events, 20)
        )
        await rig.append(session, 20)
        async with asyncio.timeout(15):
            await reading
    stored = await rig.store.log.read_page(stream, 0)
    assert [orjson.loads(entry.data) for entry in stored] == [event.data for event in events]
    assert [event.sequence for event in events] == list(range(1, 21))


async def _collect(items: AsyncIterator[Item], events: list[Event], count: int) -> None:
    async for item in items:
        if isinstance(item, Event):
            events.append(item)
            if len(events) == count:
                return


async def test_subscribing_to_a_stream_without_events_is_a_gap_and_ends(rig: Rig) -> None:
    """A session without a stored event has no head: the client gets the gap ``lost`` and the stream closes."""
    session = rig.make_session()
    async with rig.client(on_gap=Application().on_gap) as channel:
        items = channel.stream(f"session:{session}")
        gap = await anext(items)
        assert isinstance(gap, Gap)
        assert (gap.why, gap.top) == (GapReason.LOST, None)
        with pytest.raises(StreamClosed, match="gone"):
            await anext(items)


async def test_a_task_view_shows_only_its_events_and_advances_with_the_heartbeat(
    store: Store,
) -> None:
    async with serve(store, ChannelLimits(heartbeat_s=0.1)) as rig:
        session, app, ready = rig.make_session(), Application(), asyncio.Event()
        rig.control.tasks["task_x"] = session
        cursors = MemoryCursors()
        await rig.append(session, 1)
        task = asyncio.create_task(follow(rig, "task:task_x", app, cursors=cursors, ready=ready))
        await ready.wait()
        app.events.clear()
        mine = await rig.append(session, 1, task="task_x")
        await rig.append(session, 3)
        mine += await rig.append(session, 2, task="task_x")
        await rig.append(session, 2)
        await wait_until(lambda: app.events == mine, 15, "the events of the task arrive")
        end = await rig.cursor(session)

        async def acknowledged() -> bool:
            held = await store.acks.read_ack(
                StreamRef(StreamKind.SESSION, session), "phone@task:task_x"
            )
            return held == end

        await wait_until(acknowledged, 15, "hidden events are passed over and acknowledged")
        task.cancel()


GAPS = ["trimmed", "epoch", "ahead", "forked", "lost"]


@pytest.mark.requirement("CHN-4", "I8")
@pytest.mark.parametrize("why", GAPS)
async def test_every_broken_cursor_is_a_gap_and_a_snapshot_then_live(
    rig: Rig, engine_server: Server, why: str
) -> None:
    session, app, ready = rig.make_session(), Application(), asyncio.Event()
    await rig.append(session, 8)
    cursors = MemoryCursors()
    stream = StreamRef(StreamKind.SESSION, session)
    [entry] = await rig.store.log.read_page(stream, 4, 1)
    cursors.save(f"session:{session}", f"0a1b2c3d.4.{entry.previous}")
    if why in {"ahead", "forked"}:
        cursors.save(f"session:{session}", await rig.cursor(session))
    await damage(rig, engine_server, session, why)
    task = asyncio.create_task(follow(rig, f"session:{session}", app, cursors=cursors, ready=ready))
    await wait_until(ready.is_set, 15, "live after the repair")
    assert app.reasons == [GapReason(why)]
    ids = app.events + await rig.append(session, 2, epoch="0badcafe")
    await wait_until(lambda: app.events == ids, 15, "events after the snapshot arrive")
    assert app.repeats == 0
    stored = await rig.store.log.read_page(stream, 0, 1_000)
    assert [entry.event_id for entry in stored] == app.events
    task.cancel()


@pytest.mark.requirement("CHN-4", "CHN-5", "I8")
async def test_unacknowledged_events_stay_until_the_cap_and_are_a_gap_afterwards(
    rig: Rig, engine_server: Server
) -> None:
    session, app, ready = rig.make_session(), Application(), asyncio.Event()
    ids = await rig.append(session, 10)
    stream, archived = f"session:{session}", Archived("blob", "0" * 64, 100)
    async with rig.client("phone") as channel:
        async for item in channel.stream(stream, start="start"):
            if isinstance(item, Event) and item.sequence == 4:
                await item.ack()
                break
    log = StreamRef(StreamKind.SESSION, session)

    async def read_ack() -> str | None:
        return await rig.store.acks.read_ack(log, "phone") or None

    held = await wait_until(read_ack, 15, "the ack is stored")
    trim = rig.store.retention.trim
    rewrite_stream(engine_server.url, log)
    assert await trim(session, 5, archived) == PrefixHeld("ack", 4)
    assert await trim(session, 5, archived, cap_entries=9) == Trimmed(6)
    # It brings no cursor of its own: the stored ack cannot be honoured.
    task = asyncio.create_task(follow(rig, stream, app, ready=ready))
    await wait_until(ready.is_set, 15, "live after the repair")
    assert (app.reasons, app.gaps[0].have) == ([GapReason.TRIMMED], held)
    assert app.events == ids[5:]
    task.cancel()


async def damage(rig: Rig, engine: Server, session: str, why: str) -> None:
    """Invalidates the client's cursor in one way, in the real store."""
    stream = StreamRef(StreamKind.SESSION, session)
    match why:
        case "trimmed":
            archived = Archived("blob", "0" * 64, 100)
            rewrite_stream(engine.url, stream)
            assert isinstance(await rig.store.retention.trim(session, 6, archived), Trimmed)
        case "epoch":
            ask(engine.url, "DEL", keys.head(stream), keys.entries(stream))
            await rig.append(session, 8, epoch="00c0ffee")
        case "ahead":
            await lose_tail(rig, engine, session, 2)
        case "forked":
            await lose_tail(rig, engine, session, 2)
            await rig.append(session, 3)
        case _:
            rewrite_stream(engine.url, stream, lambda entry: entry if entry.sequence != 5 else None)


async def lose_tail(rig: Rig, engine: Server, session: str, count: int) -> None:
    """Does what a failover does: acknowledged writes are gone, and their sequences will be reused."""
    stream = StreamRef(StreamKind.SESSION, session)
    current = await rig.store.log.read_head(stream)
    assert current is not None
    last = current.sequence - count
    tail = await rig.store.log.read_page(stream, last)
    # XTRIM cannot cut a tail, and XDEL keeps the last id: rewrite the rest, as a replica has it.
    rewrite_stream(engine.url, stream, lambda entry: entry if entry.sequence <= last else None)
    ask(engine.url, "HSET", keys.head(stream), "seq", last, "chain", tail[0].previous)


@pytest.mark.requirement("CHN-4", "I8")
async def test_a_lost_tail_under_an_open_stream_is_announced(
    store: Store, engine_server: Server
) -> None:
    async with serve(store, audit_s=0.1) as rig:
        session, app, ready = rig.make_session(), Application(), asyncio.Event()
        await rig.append(session, 6)
        task = asyncio.create_task(follow(rig, f"session:{session}", app, ready=ready))
        await ready.wait()
        ready.clear()
        await lose_tail(rig, engine_server, session, 2)
        await wait_until(lambda: app.reasons, 15, "the loss is announced")
        assert app.reasons[0] in {GapReason.AHEAD, GapReason.FORKED}
        await wait_until(ready.is_set, 15, "live after the repair")
        ids = app.events + await rig.append(session, 3)
        await wait_until(lambda: app.events == ids, 15, "the new history arrives")
        stream = StreamRef(StreamKind.SESSION, session)
        stored = await store.log.read_page(stream, 0, 1_000)
        assert app.events == [entry.event_id for entry in stored]
        task.cancel()


@pytest.mark.requirement("I8")
async def test_too_many_missed_events_are_a_gap_with_reason_limit(store: Store) -> None:
    async with serve(store, ChannelLimits(replay_events=5)) as rig:
        session, app, ready = rig.make_session(), Application(), asyncio.Event()
        await rig.append(session, 1)
        cursors = MemoryCursors()
        cursors.save(f"session:{session}", await rig.cursor(session))
        ids = (await rig.append(session, 10))[-10:]
        task = asyncio.create_task(
            follow(rig, f"session:{session}", app, cursors=cursors, ready=ready)
        )
        await wait_until(ready.is_set, 15, "live after the repair")
        assert app.reasons == [GapReason.LIMIT]
        assert app.events[-10:] == ids
        task.cancel()


@pytest.mark.requirement("I8")
async def test_without_a_handler_a_gap_is_an_error(rig: Rig, engine_server: Server) -> None:
    session = rig.make_session()
    await rig.append(session, 8)
    cursors = MemoryCursors()
    cursors.save(f"session:{session}", await rig.cursor(session))
    await damage(rig, engine_server, session, "ahead")
    async with rig.client(cursors=cursors) as channel:
        with pytest.raises(GapError) as raised:
            await anext(channel.stream(f"session:{session}"))
    assert raised.value.gap.why is GapReason.AHEAD


@pytest.mark.parametrize(
    "name", ["session:se_nothing", "task:task_nothing", "vault:x", "inbox:other"]
)
async def test_an_unknown_stream_equals_one_of_another_owner(rig: Rig, name: str) -> None:
    foreign = rig.make_session(BOB)
    await rig.append(foreign, 2)
    async with rig.client() as channel:
        for stream in (name, f"session:{foreign}"):
            with pytest.raises(StreamClosed) as closed:
                await anext(channel.stream(stream))
            assert closed.value.code == "not_found"


async def test_the_inbox_has_a_cursor_before_its_first_entry(rig: Rig) -> None:
    async with rig.client(on_gap=Application().on_gap) as channel:
        items = channel.stream("inbox")
        first = await anext(items)
        assert not isinstance(first, Gap)
        assert isinstance(await anext(items), Live)


async def test_many_devices_of_one_stream_share_its_reads(rig: Rig) -> None:
    session = rig.make_session()
    await rig.append(session, 1)
    apps = [Application() for _ in range(10)]
    ready = [asyncio.Event() for _ in apps]
    tasks = [
        asyncio.create_task(
            follow(rig, f"session:{session}", app, ready=event, device=f"device{place}")
        )
        for place, (app, event) in enumerate(zip(apps, ready, strict=True))
    ]
    for event in ready:
        await event.wait()
    await rig.append(session, 30)
    await wait_until(lambda: all(len(app.events) == 31 for app in apps), 15, "all have all")
    assert len({tuple(app.events) for app in apps}) == 1
    assert rig.hub.streams == 1
    for task in tasks:
        task.cancel()


@OVER_BOTH
async def test_a_paused_application_loses_nothing(rig: Rig) -> None:
    session = rig.make_session()
    await rig.append(session, 1)
    seen: list[int] = []
    async with rig.client(on_gap=Application().on_gap) as channel:
        items = channel.stream(f"session:{session}")
        while not isinstance(await anext(items), Live):
            pass
        for _ in range(20):
            await rig.append(session, 64)
        while len(seen) < 20 * 64:
            async with asyncio.timeout(15):
                item = await anext(items)
            if isinstance(item, Event):
                seen.append(item.sequence)
            assert not isinstance(item, Gap)
        assert seen == list(range(2, 20 * 64 + 2))
        assert isinstance(channel.status, Connected)


@pytest.mark.requirement("I8")
async def test_a_write_while_a_snapshot_is_built_is_not_lost(rig: Rig) -> None:
    session, app, ready = rig.make_session(), Application(), asyncio.Event()
    ids = await rig.append(session, 3)

    async def write_late() -> None:
        rig.control.after_snapshot = None
        ids.extend(await rig.append(session, 2))

    rig.control.after_snapshot = write_late
    task = asyncio.create_task(follow(rig, f"session:{session}", app, ready=ready))
    await wait_until(lambda: app.events == ids, 15, "what came after the state was read arrives")
    assert (len(ids), app.repeats) == (5, 0)
    task.cancel()
