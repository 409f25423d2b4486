"""A tree of tasks that are tried again, while the process that works on it dies at one append after the other (VAL-6).

A death is seen from the store: from some append on nothing more of that process is written, and whether that append was
is known to nobody who lives. What comes next knows nothing of it but what is stored.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Final, TypeVar

import pytest

from passerelle.core.batch import Batch, EntityKind, EntityRef
from passerelle.core.errors import StoreUnavailable
from passerelle.core.facts import RetryPolicy
from passerelle.core.ports.due import DueRow
from passerelle.core.task.status import ENDED, Status
from passerelle.core.wire.json import Json, JsonObject
from tests.support.control_client import ControlClient, task_id_of
from tests.support.harness import Harness
from tests.support.scripted_tasks import Turn
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio
T = TypeVar("T")

APPENDS: Final = 22
"""How many a whole story takes, and one more."""
_RETRY_MS: Final = 60_000
_TWICE: Final = frozenset({"retry", "send", "cancel", "prepare"})


@dataclass
class Deaths:
    """Kills what works in a house when so many appends were made, before or after the last of them."""

    harness: Harness
    left: int
    stored: bool
    is_dead: bool = False
    count: int = 0

    def arm(self) -> None:
        self.harness.log.before_append, self.harness.log.after_append = self._before, self._after

    async def _before(self, _batch: Batch) -> None:
        self.count += 1
        self.is_dead = self.is_dead or (self.count == self.left and not self.stored)
        self.harness.log.refuses_writes = self.is_dead

    async def _after(self, _batch: Batch) -> None:
        if self.count >= self.left and self.stored and not self.is_dead:
            self.is_dead = self.harness.log.refuses_writes = True
            raise StoreUnavailable("the process is gone", "unknown")

    async def see_through(self, work: Coroutine[object, None, T]) -> T | None:
        """What came of it; None where the process died over it, which then waits for its store for ever."""
        task = asyncio.ensure_future(work)
        await wait_until(lambda: task.done() or self.is_dead, 30, "it is done, or nobody is left")
        if self.is_dead:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            return None
        return task.result()

    async def revive(self) -> None:
        """Another process over what is stored."""
        log = self.harness.log
        log.before_append = log.after_append = None
        log.refuses_writes = self.is_dead = False
        await self.harness.restart()


@dataclass
class Tree:
    """A parent with two parts, of which the second waits for the first; both fail once."""

    control: ControlClient
    deaths: Deaths
    name: str
    tasks: list[str] = field(default_factory=list[str])
    attempts: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    edges: set[tuple[str, str, str]] = field(default_factory=set[tuple[str, str, str]])

    async def tell(self, method: str, key: str, **params: Json) -> JsonObject:
        """A command whose caller repeats it with its key until somebody has carried it out."""
        while True:
            work = self.control.do(method, f"{self.name} {key}", **params)
            answer = await self.deaths.see_through(work)
            if answer is not None:
                return answer
            await self.revive()

    async def revive(self) -> None:
        await self.deaths.revive()
        await self.look()

    async def create(self, key: str, **params: Json) -> str:
        made = await self.tell("create_task", key, agent="echo", **params)
        self.tasks.append(task_id_of(made))
        return self.tasks[-1]

    async def look(self) -> None:
        """What was stored of attempts and edges stands, and stands before whatever is new."""
        for task_id in self.tasks:
            record = await self.control.record(task_id)
            runs, known = [one.run_id for one in record.attempts], self.attempts.get(task_id, [])
            assert runs[: len(known)] == known, "attempts are kept, in their order"
            assert [one.ordinal for one in record.attempts] == list(range(1, len(runs) + 1))
            self.attempts[task_id] = runs
            edges = {(task_id, edge.kind, edge.target) for edge in record.relationships}
            gone = {edge for edge in self.edges - edges if edge[0] == task_id}
            assert not gone, "edges are kept"
            self.edges |= edges

    async def go_on(self) -> bool:
        """What the duties of a gateway do: runs that nobody drives are taken up, and what is owed is done."""
        harness = self.control.harness
        for task_id in self.tasks:
            record = await self.control.record(task_id)
            if record.run is not None:
                await harness.parts.dispatch.adopt(EntityRef(EntityKind.TASK, task_id))
            rows = await harness.due(task_id)
            for kind in sorted(_TWICE & {row.partition(":")[0] for row in rows}):
                if f"{kind}:{task_id}" in rows and record.status is not Status.RUNNING:
                    await harness.run_due(kind, task_id, after_ms=_RETRY_MS)
            for member in rows:
                if member.startswith(("unblock:", "edge:")):
                    await self._finish(DueRow(member, rows[member]))
        return True

    async def _finish(self, row: DueRow) -> None:
        linking = self.control.harness.parts.tasks.linking

        async def drop(_shard: object, _row: object) -> bool:
            return False

        await (linking.unblock if row.member.startswith("unblock:") else linking.finish)(row, drop)

    async def until(self, task_id: str, *statuses: Status) -> None:
        async def look() -> bool:
            if await self.deaths.see_through(self.go_on()) is None:
                await self.revive()
            return (
                await self.control.record(task_id)
            ).status in statuses and not self.deaths.is_dead

        await wait_until(look, 30, f"the task is {' or '.join(statuses)}")
        await self.look()


async def play(tree: Tree) -> None:
    top = await tree.create("top", objective="both")
    session = (await tree.control.record(top)).session_id
    below: dict[str, Json] = {"parentTaskId": top, "sessionId": session}
    first = await tree.create("first", objective=f"shaky {tree.name} one", **below)
    second = await tree.create("second", objective=f"shaky {tree.name} two", **below)
    await tree.tell("link_tasks", "link", taskId=second, kind="blocked_by", target=first)
    for number, part in enumerate((first, second)):
        await tree.until(part, Status.ACCEPTED)
        await tree.tell("start_task", f"start {number}", taskId=part)
        await tree.until(part, *ENDED)
    records = [await tree.control.record(part) for part in (first, second)]
    assert [record.status for record in records] == [Status.COMPLETED] * 2
    for record in records:
        assert len(record.attempts) >= 2
        assert record.attempts[0].last_error is not None
        assert record.parent_task_id == record.root_task_id == top
    assert {(kind, target) for task, kind, target in tree.edges if task == top} == {
        ("child", first),
        ("child", second),
    }
    assert (second, "blocked_by", first) in tree.edges


@pytest.mark.requirement("VAL-6", "GR-12")
@pytest.mark.parametrize("stored", [False, True], ids=["before", "after"])
async def test_tree_that_is_tried_again_outlives_a_death_at_every_append(
    control: ControlClient, *, stored: bool
) -> None:
    harness = control.harness
    harness.policy = RetryPolicy(attempts=3, backoff_ms=1_000, backoff_max_ms=1_000)
    failed: set[str] = set()

    async def shake(turn: Turn) -> None:
        await turn.status("WORKING")
        if turn.text not in failed:
            failed.add(turn.text)
            await turn.status("FAILED", "not this time")
            return
        await turn.artifact("done")
        await turn.status("COMPLETED")

    harness.peer.on("shaky", shake)
    died = 0
    for point in range(1 + stored, APPENDS + 1, 2):
        deaths = Deaths(harness, point, stored)
        deaths.arm()
        await play(Tree(control, deaths, f"{point} {stored}"))
        died += deaths.count >= point
        await deaths.revive()
    assert died > APPENDS // 4, "hardly anybody has died"
