"""A state is built once for all concurrent readers; replays wait for a slot, for a limited time."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from typing import cast

import pytest

from passerelle.channels.replays import Replays
from passerelle.channels.services import Snapshots, StreamGrant, StreamName
from passerelle.channels.states import ReadModelState, States
from passerelle.channels.views import PlainView, TaskView
from passerelle.core.errors import Limited, StoreUnavailable
from passerelle.core.ids import Shard
from passerelle.core.ports.log import Entry, Head, StreamKind, StreamRef
from passerelle.core.principal import Principal
from passerelle.core.wire.json import JsonObject
from tests.support.spelt_ids import compose_id
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio
ADA = Principal("ada", device="phone")
NAME = StreamName("session", "x")
STREAM = StreamRef(StreamKind.SESSION, compose_id("se", Shard(3), 0, 1))
GRANT = StreamGrant(STREAM, PlainView())


@dataclass
class Plane:
    """A stream that grows, and a state that takes its time."""

    sequence: int = 1
    reads: int = 0
    error: StoreUnavailable | None = None
    hold: asyncio.Event = field(default_factory=asyncio.Event)

    async def read_head(self, stream: StreamRef) -> Head | None:
        return Head("0000000a", self.sequence, f"{self.sequence:08x}", 1) if self.sequence else None

    async def read_resume(
        self, stream: StreamRef, after: int, limit: int = 256
    ) -> tuple[Head | None, list[Entry]]:
        raise AssertionError

    async def read_snapshot(
        self, who: Principal, name: StreamName, grant: StreamGrant
    ) -> JsonObject:
        self.reads += 1
        await self.hold.wait()
        if self.error is not None:
            raise self.error
        return {"upTo": self.sequence}


def make(keep_s: float = 10.0) -> tuple[States, Plane]:
    plane = Plane()
    return States(plane, cast("Snapshots", plane), keep_s), plane


async def ask(
    states: States, who: Principal = ADA, grant: StreamGrant = GRANT
) -> ReadModelState | None:
    return await states.read(who, NAME, grant)


async def test_five_hundred_concurrent_reads_share_one_build() -> None:
    states, plane = make()
    asking = [asyncio.create_task(ask(states, replace(ADA, device=f"d{n}"))) for n in range(500)]
    await wait_until(lambda: plane.reads, 15, "the build has begun")
    plane.hold.set()
    answers = set(map(id, await asyncio.gather(*asking)))
    assert (plane.reads, len(answers)) == (1, 1)


async def test_state_is_kept_for_its_cursor_its_view_and_its_reader_alone() -> None:
    states, plane = make()
    plane.hold.set()
    first = await ask(states)
    assert first is not None
    assert first.data == {"upTo": 1, "asOf": str(first.cursor)}
    assert await ask(states) is first
    assert await ask(states, Principal("bob")) is not first
    assert await ask(states, grant=replace(GRANT, view=TaskView("t"))) is not first
    plane.sequence = 2
    later = await ask(states)
    assert later is not None
    assert later.data["upTo"] == 2
    assert plane.reads == 4
    plane.sequence = 0
    assert await ask(states) is None


async def test_state_is_kept_for_a_moment_and_a_failure_not_at_all() -> None:
    states, plane = make(keep_s=0.02)
    plane.hold.set()
    plane.error = StoreUnavailable("away", "no")
    with pytest.raises(StoreUnavailable):
        await ask(states)
    plane.error = None
    first = await ask(states)
    await asyncio.sleep(0.05)
    assert await ask(states) is not first


async def test_a_cancelled_read_does_not_cancel_the_build() -> None:
    states, plane = make()
    leaves, stays = asyncio.create_task(ask(states)), asyncio.create_task(ask(states))
    await wait_until(lambda: plane.reads, 15, "the build has begun")
    leaves.cancel()
    await asyncio.sleep(0)
    plane.hold.set()
    assert (await stays) is not None
    assert plane.reads == 1


async def test_replays_over_the_limit_wait_in_order_and_are_sent_away_when_it_takes_too_long() -> (
    None
):
    replays = Replays(1, 0.05)
    held, order = replays.make_slot(), list[int]()
    await held.enter()
    await held.enter()  # once is enough

    async def wait(number: int) -> None:
        async with replays.make_slot():
            order.append(number)

    waiting = [asyncio.create_task(wait(number)) for number in range(3)]
    await asyncio.sleep(0)
    held.leave()
    held.leave()
    await asyncio.gather(*waiting)
    assert order == [0, 1, 2]
    await held.enter()
    with pytest.raises(Limited) as refused:
        await wait(9)
    assert (refused.value.kind, refused.value.retry_after_s) == ("concurrency", 2)
    held.leave()
    await wait(4)


async def test_work_that_has_begun_gets_its_slot_back_however_long_it_takes() -> None:
    replays = Replays(1, 0.01)
    slow, other = replays.make_slot(), replays.make_slot()
    await slow.enter()
    slow.leave()
    await other.enter()
    again = asyncio.create_task(slow.enter_again())
    await asyncio.sleep(0.03)
    assert not again.done()
    other.leave()
    await again
    assert slow.is_held


async def test_slot_given_to_a_cancelled_waiter_goes_to_the_next() -> None:
    replays = Replays(1, 5.0)
    held = replays.make_slot()
    await held.enter()
    leaves, stays = (replays.make_slot() for _ in range(2))
    leaving = asyncio.create_task(leaves.enter())
    staying = asyncio.create_task(stays.enter())
    await asyncio.sleep(0)
    held.leave()
    leaving.cancel()  # in the same turn of the loop in which it was given the slot
    await asyncio.gather(leaving, return_exceptions=True)
    await asyncio.wait_for(staying, 10)
    assert stays.is_held
