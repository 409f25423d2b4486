"""A promoted replica lacks acknowledged writes: the case in which (epoch, offset) cursors lose events silently.

The epoch of the stream is unchanged and its sequences are reused, so a cursor of the lost history looks valid by
comparison. Two real servers do this here, and every reader gets ``forked`` or ends at the true state.
"""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path

import pytest
import structlog

from passerelle.channels.limits import ChannelLimits
from passerelle.client.cursor_stores import MemoryCursors
from passerelle.core.errors import StoreUnavailable
from passerelle.core.ports.log import StreamKind, StreamRef
from passerelle.protocol.cursor import GapReason, parse_cursor
from passerelle.runtime.observability.metrics import Metrics
from passerelle.runtime.observability.outages import Outages
from passerelle.store.store import Store, StoreSettings
from tests.integration.channels.rig import Application, Rig, serve
from tests.integration.channels.test_following import follow
from tests.support.failover import Pair, run_pair
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio


async def read_ids(rig: Rig, session: str) -> list[str]:
    """Returns the event ids that the store holds now."""
    stream = StreamRef(StreamKind.SESSION, session)
    return [entry.event_id for entry in await rig.store.log.read_page(stream, 0, 1_000)]


def is_at(reader: Application, truth: list[str]) -> bool:
    return reader.events == truth


async def append_again(rig: Rig, session: str, count: int) -> None:
    """Appends once the store accepts writes again."""

    async def is_stored() -> bool:
        try:
            await rig.append(session, count)
        except StoreUnavailable:
            return False
        return True

    await wait_until(is_stored, 10, "the store takes writes again")


@pytest.mark.requirement("I8", "CHN-4")
async def test_a_lost_tail_with_reused_sequences_is_a_gap_named_forked(
    tmp_path: Path,
) -> None:
    async with run_pair() as pair, await Store.open(StoreSettings(pair.url, tmp_path)) as store:
        outages = Outages(store.log, Metrics(), structlog.get_logger())
        limits = ChannelLimits(heartbeat_s=0.2)
        async with serve(store, limits, audit_s=0.5, on_lost=outages.lose) as rig:
            await play(pair, rig)
        await outages.close()


async def play(pair: Pair, rig: Rig) -> None:
    live, level = Application(), Application()
    session, untouched = rig.make_session(), rig.make_session()
    name = f"session:{session}"
    await rig.append(session, 10)
    await rig.append(untouched, 5)
    early = await rig.cursor(session)
    ready = [asyncio.Event(), asyncio.Event()]
    followers = [
        asyncio.create_task(follow(rig, name, live, ready=ready[0], device="live")),
        asyncio.create_task(follow(rig, f"session:{untouched}", level, ready=ready[1], device="b")),
    ]
    for event in ready:
        await event.wait()
    await pair.await_replicated()
    pair.cut_replication()
    await rig.append(session, 3)
    lost = await rig.cursor(session)
    await wait_until(lambda: len(live.events) == 13, 15, "the live reader has the tail")
    pair.promote()
    await append_again(rig, session, 5)

    # An (epoch, offset) server compares only these: it would report "recovered" and skip three events.
    held, now = parse_cursor(lost), parse_cursor(await rig.cursor(session))
    assert held.epoch == now.epoch
    assert held.sequence < now.sequence

    truth = await read_ids(rig, session)
    await wait_until(lambda: live.events == truth, 15, "the live reader ends at the true state")
    assert live.reasons
    assert set(live.reasons) <= {GapReason.FORKED, GapReason.AHEAD}
    for cursor, reasons in ((lost, [GapReason.FORKED]), (early, [])):
        away = Application(events=truth[:10])
        cursors = MemoryCursors()
        cursors.save(name, cursor)
        task = asyncio.create_task(follow(rig, name, away, cursors=cursors, device=f"away{cursor}"))
        await wait_until(partial(is_at, away, truth), 10, "a late reader is at the truth")
        assert away.reasons == reasons
        task.cancel()
    await append_again(rig, untouched, 1)
    kept = await read_ids(rig, untouched)
    await wait_until(lambda: level.events == kept, 10, "what lost nothing goes on")
    assert (level.reasons, level.repeats) == ([], 0)
    assert rig.store.log.shard_epoch(StreamRef(StreamKind.SESSION, session).shard) > 0
    for task in followers:
        task.cancel()
    await asyncio.gather(*followers, return_exceptions=True)
