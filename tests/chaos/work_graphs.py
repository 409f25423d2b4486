"""Task graphs while gateways are killed: trees that are cancelled, tasks that wait for each other (GR-2, GR-11)."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from passerelle.core.events import decode_event
from tests.chaos.work_agent import AGENT
from tests.chaos.work_site import Refused
from tests.support.proof import read_stream
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from random import Random

    from passerelle.core.wire.json import Json
    from passerelle.store.store import Store
    from tests.chaos.work_site import WorkSite

_STOPPED_S: Final = 60.0
_DONE_S: Final = 120.0
_PAUSE_S: Final = 0.2
_WISH: Final = "task.cancel_requested"


async def create(site: WorkSite, objective: str, **members: Json) -> str:
    """A task that is not started; its objective is also its key."""
    body: dict[str, Json] = {"agent": AGENT, "objective": objective, **members}
    made = await site.call("POST", "/v1/tasks", body, key=f"create {objective}")
    return str(made["task"]["taskId"])


async def start(site: WorkSite, task_id: str) -> None:
    """Starts a task. Raises Refused: it may not start."""
    await site.call("POST", f"/v1/tasks/{task_id}/start", {}, key=f"start {task_id}")


@dataclass(slots=True)
class TreeScene:
    """A tree that is repeatedly cancelled at its root, while the cancelling gateway dies."""

    site: WorkSite
    store: Store
    draw: Random
    label: str
    size: int
    faults: list[str] = field(default_factory=list[str])
    _tasks: dict[str, str] = field(default_factory=dict[str, str])
    """By label."""
    _started: list[str] = field(default_factory=list[str])
    _session: str = ""

    async def play(self) -> None:
        """Runs from the first task to the end of the last."""
        top = await self._add("top")
        self._session = str((await self.site.read_record(top))["sessionId"])
        for number in range(1, self.size):
            above = self.draw.choice([*self._tasks.values()][-4:] if number % 3 else [top])
            task = await self._add(str(number), parentTaskId=above)
            fate = self.draw.random()
            if fate < 0.15:
                await start(self.site, task)
                self._started.append(task)
            elif fate < 0.3:
                await self._wait_for(task, self.draw.choice([*self._tasks.values()]))
        await wait_until(self._are_at_work, _STOPPED_S, f"{self.label}: some are at work")
        place = self.draw.randrange(2)
        cancelling = asyncio.create_task(self._cancel(top, place))
        await wait_until(self._is_wanted, _STOPPED_S, f"{self.label}: the wish is stored")
        self.site.strike(place)
        await cancelling
        await asyncio.gather(self._cancel(top, 1 - place), self._try_to_start(top))

        async def are_cancelled() -> bool:
            return len((await self._count("task.cancelled")).keys()) == len(self._tasks)

        await wait_until(are_cancelled, _STOPPED_S, f"{self.label}: all of it is cancelled")

    async def judge(self) -> None:
        """Every cancellation and every end is stored once, and only running tasks had begun."""
        for kind in (_WISH, "task.cancelled"):
            for task, count in (await self._count(kind)).items():
                if count != 1:
                    self.faults.append(f"{self.label}: {count} times {kind} for {task}")
        wanted = (await self._count(_WISH)).keys()
        if left := self._tasks.values() - wanted:
            self.faults.append(f"{self.label}: no wish for {sorted(left)}")
        begun = (await self._count("task.attempt.started")).keys() | (
            await self._count("task.started")
        ).keys()
        if late := begun - {*self._started}:
            self.faults.append(f"{self.label}: begun all the same: {sorted(late)}")

    async def _add(self, name: str, **members: Json) -> str:
        objective = f"silent {self.label}-{name}"
        task = await create(self.site, objective, **members)
        self._tasks[f"{self.label}-{name}"] = task
        return task

    async def _wait_for(self, task: str, far: str) -> None:
        body: dict[str, Json] = {"kind": "blocked_by", "target": far}
        with suppress(Refused):  # a cycle, or the task itself
            await self.site.call("POST", f"/v1/tasks/{task}/link", body)

    def _are_at_work(self) -> bool:
        names = {task: name for name, task in self._tasks.items()}
        return all(names[task] in self.site.agent.arrived for task in self._started)

    async def _is_wanted(self) -> bool:
        return bool(await self._count(_WISH))

    async def _cancel(self, top: str, place: int) -> None:
        body: dict[str, Json] = {"propagation": "subtree"}
        with suppress(Refused):  # it has ended already
            await self.site.call("POST", f"/v1/tasks/{top}/cancel", body, first=place)

    async def _try_to_start(self, top: str) -> None:
        """Below a task that is being cancelled nothing starts, and nothing is added."""
        late: dict[str, Json] = {"agent": AGENT, "objective": "silent late", "parentTaskId": top}
        waiting = [one for one in self._tasks.values() if one not in self._started]
        for task in self.draw.sample(waiting, min(5, len(waiting))):
            try:
                await start(self.site, task)
            except Refused:
                continue
            self.faults.append(f"{self.label}: {task} was started after the wish")
        try:
            await self.site.call("POST", "/v1/tasks", late, key=f"{self.label} late")
        except Refused:
            return
        self.faults.append(f"{self.label}: a task came in below after the wish")

    async def _count(self, kind: str) -> Counter[str]:
        found = Counter[str]()
        for entry in await read_stream(self.store.log, self._session):
            if str(entry.type) == kind:
                event = decode_event(entry.data, entry.frame, entry.facade)
                found[event.fact.scope.task_id or ""] += 1
        return found


@dataclass(slots=True)
class WaitsScene:
    """Tasks that wait for each other; all complete. Their caller starts each when it may start."""

    site: WorkSite
    draw: Random
    label: str
    size: int
    faults: list[str] = field(default_factory=list[str])
    _tasks: list[str] = field(default_factory=list[str])
    _waits: set[tuple[int, int]] = field(default_factory=set[tuple[int, int]])

    async def play(self) -> None:
        """Runs from the first task to the end of the last."""
        for number in range(self.size):
            objective = f"work {self._name(number)} {self.draw.choice([0.05, 0.2, 0.4])}"
            self._tasks.append(await create(self.site, objective))
            for far in self.draw.sample(range(number), min(number, self.draw.choice([0, 1, 2]))):
                body: dict[str, Json] = {"kind": "blocked_by", "target": self._tasks[far]}
                path = f"/v1/tasks/{self._tasks[number]}/link"
                await self.site.call("POST", path, body, key=f"{self.label} {number} {far}")
                self._waits.add((number, far))
        async with asyncio.timeout(_DONE_S):
            left = [*range(self.size)]
            while left:
                self.draw.shuffle(left)
                for number in left:
                    with suppress(Refused):  # it is blocked, or already running
                        await start(self.site, self._tasks[number])
                await asyncio.sleep(_PAUSE_S)
                left = [one for one in left if not await self._has_completed(one)]

    async def judge(self) -> None:
        """No task reached its agent before the tasks that it waits for had ended there."""
        agent = self.site.agent
        sent = Counter(agent.list_labels())
        for number in range(self.size):
            if sent[self._name(number)] != 1:
                self.faults.append(
                    f"{self._name(number)} was sent {sent[self._name(number)]} times"
                )
        for near, far in sorted(self._waits):
            if agent.arrived[self._name(near)] < agent.ended[self._name(far)]:
                self.faults.append(f"{self._name(near)} began before {self._name(far)} had ended")

    def _name(self, number: int) -> str:
        return f"{self.label}-{number}"

    async def _has_completed(self, number: int) -> bool:
        status = (await self.site.read_record(self._tasks[number]))["status"]
        if status in {"failed", "cancelled", "lost", "timed_out"}:
            self.faults.append(f"{self._name(number)} is {status}")
            return True
        return bool(status == "completed")
