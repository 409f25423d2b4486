"""Reconnect storms: one snapshot build for all gaps, queued replays, and snapshots too large for a frame."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from contextlib import AsyncExitStack, contextmanager

import pytest

from passerelle.channels.limits import ChannelLimits
from passerelle.channels.ring import RingBounds
from passerelle.core.wire.json import JsonObject
from passerelle.store.store import Store
from tests.integration.channels.rig import Rig, serve
from tests.integration.channels.test_connection import (
    HELLO,
    raw,
    receive_close,
    receive_frame,
    send_frames,
)
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio


def subscribe(stream: str, **members: str) -> JsonObject:
    return {**HELLO, "subs": [{"s": stream, **members}]}


@contextmanager
def slow_states(rig: Rig) -> Generator[asyncio.Event]:
    """Holds each snapshot read until the event is set."""
    go = asyncio.Event()
    rig.control.after_snapshot = go.wait
    try:
        yield go
    finally:
        go.set()
        rig.control.after_snapshot = None


@pytest.mark.requirement("CHN-4")
async def test_a_gap_of_many_clients_takes_one_build(rig: Rig) -> None:
    session = rig.make_session()
    await rig.append(session, 3)
    gone = {"c": "0000000b.1.00000000"}
    async with AsyncExitStack() as stack:
        with slow_states(rig) as go:
            sockets = [await stack.enter_async_context(raw(rig)) for _ in range(20)]
            for number, socket in enumerate(sockets):
                hello = subscribe(f"session:{session}", **gone)
                await send_frames(socket, {**hello, "device": f"d{number}"})
            await wait_until(lambda: rig.services.states.built, 15, "the build has begun")
            go.set()
            shown = [await receive_frame(socket, "snap") for socket in sockets]
    assert rig.services.states.built == 1
    assert len({str(frame["c"]) for frame in shown}) == 1


async def test_client_over_the_replay_wait_is_refused_with_a_retry_time(
    store: Store,
) -> None:
    limits = ChannelLimits(replays=1, replay_wait_s=0.05)
    async with serve(store, limits) as rig, raw(rig) as first, raw(rig) as second:
        session = rig.make_session()
        await rig.append(session, 3)
        hello = subscribe(f"session:{session}", **{"from": "snap"})
        with slow_states(rig) as go:
            await send_frames(first, hello)
            await wait_until(lambda: rig.services.states.built, 15, "the first is served")
            await send_frames(second, {**hello, "device": "other"})
            refusal = await receive_frame(second, "error")
            assert (refusal["of"], refusal["fatal"], refusal["retry"]) == ("sub", True, 2)
            assert await receive_close(second) == 4003
            go.set()
            await receive_frame(first, "live")
        async with raw(rig) as third:
            await send_frames(third, {**hello, "device": "other"})
            await receive_frame(third, "live")


async def test_replays_over_reused_slots_all_end(store: Store) -> None:
    bounds = RingBounds(events=4)
    async with serve(store, ChannelLimits(replays=2), bounds=bounds) as rig:
        session = rig.make_session()
        await rig.append(session, 300)

        async def replay(number: int) -> None:
            async with raw(rig) as socket:
                hello = subscribe(f"session:{session}", **{"from": "start"})
                await send_frames(socket, {**hello, "device": f"d{number}"})
                assert (await receive_frame(socket, "live"))["n"] == 300

        await asyncio.gather(*(replay(number) for number in range(12)))


async def test_a_snapshot_too_large_for_a_frame_is_fetched(store: Store) -> None:
    async with serve(store, ChannelLimits(snapshot_bytes=64)) as rig, raw(rig) as socket:
        session = rig.make_session()
        name = f"session:{session}"
        await rig.append(session, 20)
        top = await rig.cursor(session)
        await send_frames(socket, subscribe(name, c="0000000b.1.00000000"))
        gap = await receive_frame(socket, "gap")
        assert (gap["why"], gap["snap"], gap["top"]) == ("epoch", "fetch", top)
        assert gap["url"] == f"/v1/streams/{name}/snapshot"
        assert (await receive_frame(socket, "unsub"))["code"] == "limit"
        # Also without a gap, when the client requests it.
        await send_frames(socket, {"t": "sub", "s": name, "from": "snap", "id": "7"})
        answer = await receive_frame(socket, "sub")
        assert (answer["mode"], answer["id"], answer["c"]) == ("gap", "7", top)
        gap = await receive_frame(socket, "gap")
        assert (gap["why"], gap["snap"], gap["top"]) == ("limit", "fetch", top)
        await receive_frame(socket, "unsub")
        # A client that has fetched it continues from its cursor.
        await send_frames(socket, {"t": "sub", "s": name, "c": top})
        assert (await receive_frame(socket, "live"))["c"] == top
        await send_frames(socket, {"t": "snap", "s": name})
        assert (await receive_frame(socket, "error"))["code"] == "too_large"
