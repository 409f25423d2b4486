"""A promoted replica lacks acknowledged writes, under running gateways: every task ends as at its agent.

Two real servers behind one address, as with a managed store. The tests cut the replication, acknowledge the tail, kill
the primary and promote the replica.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from passerelle.core.batch import EntityKind, EntityRef
from passerelle.core.ids import parse_facade
from passerelle.core.task.status import Status
from tests.integration.callers.rig import Instance, open_rig
from tests.integration.callers.test_lost_tail import (
    ADA,
    KEY,
    await_end,
    check_repaired,
    read_record,
    read_text,
    streaming,
)
from tests.support.failover import run_pair
from tests.support.scripted_tasks import Turn
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio

TASKS = 12
END_IN_TAIL = 3
PART = 4


@dataclass(slots=True)
class Agent:
    """Sends a third of its chunks at once, a third after ``cut`` and the last after ``promoted``."""

    cut: asyncio.Event = field(default_factory=asyncio.Event)
    promoted: asyncio.Event = field(default_factory=asyncio.Event)

    async def count(self, turn: Turn) -> None:
        """``count ends`` finishes before the promotion."""
        await turn.status("WORKING")
        await self._send(turn, 0)
        await self.cut.wait()
        await self._send(turn, 1)
        if turn.argument != "ends":
            await self.promoted.wait()
        await self._send(turn, 2)
        await turn.status("COMPLETED")

    @staticmethod
    async def _send(turn: Turn, part: int) -> None:
        for number in range(part * PART, (part + 1) * PART):
            is_last = number == 3 * PART - 1
            await turn.artifact(f"chunk-{number} ", append=number > 0, last=is_last)


def expect_text(parts: int) -> str:
    return "".join(f"chunk-{number} " for number in range(parts * PART))


async def find_tasks(one: Instance, count: int) -> list[EntityRef]:
    """Returns all tasks of the caller."""
    found: list[EntityRef] = []

    async def are_listed() -> bool:
        listed = (await one.call(KEY, "ListTasks", {"pageSize": 100})).json()["result"]["tasks"]
        parsed = [parse_facade(task["id"]) for task in listed]
        found[:] = [EntityRef(EntityKind.TASK, str(task[0])) for task in parsed if task]
        return len(found) == count

    await wait_until(are_listed, 10, "all tasks are listed")
    return found


async def await_text(one: Instance, task: EntityRef, text: str) -> None:
    async def is_stored() -> bool:
        return (await read_text(one, task)).startswith(text)

    await wait_until(is_stored, 20, "the artifact has come so far")


@pytest.mark.requirement("I5", "I9", "I10")
@pytest.mark.parametrize("instances", [1, 2])
@pytest.mark.parametrize("is_read", [True, False])
async def test_every_task_ends_as_at_its_agent_after_a_promotion_without_the_tail(
    tmp_path: Path, instances: int, *, is_read: bool
) -> None:
    agent = Agent()
    async with run_pair() as pair, open_rig(pair.url, tmp_path) as rig:
        rig.peer.on("count", agent.count)
        started = [await rig.start(clients=[ADA]) for _ in range(instances)]
        one = started[0]
        async with AsyncExitStack() as readers:
            for number in range(TASKS):
                text = "count ends" if number < END_IN_TAIL else "count"
                via = started[number % instances]
                await readers.enter_async_context(streaming(via, text, number))
            tasks = await find_tasks(one, TASKS)
            for task in tasks:
                await await_text(one, task, expect_text(1))
            if not is_read:
                await readers.aclose()
            await pair.await_replicated()
            pair.cut_replication()
            agent.cut.set()
            for task in tasks:
                await await_text(one, task, expect_text(2))

            async def have_ended() -> bool:
                records = [await read_record(one, task) for task in tasks]
                return sum(one.status is Status.COMPLETED for one in records) == END_IN_TAIL

            await wait_until(have_ended, 10, "some tasks have ended in the tail")
            pair.promote()
            agent.promoted.set()
            await wait_until(lambda: answers(one), 20, "the store answers again")
            for task in tasks:
                assert (await await_end(one, task)).status is Status.COMPLETED
                assert await read_text(one, task) == expect_text(3)
        assert rig.peer.count("SendStreamingMessage") == TASKS
        await check_repaired(rig, *started)


async def answers(one: Instance) -> bool:
    return (await one.call(KEY, "ListTasks", {"pageSize": 1})).is_success
