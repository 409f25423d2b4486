"""Queues while gateways are killed: the acknowledged order is the order at the agent (VAL-5, MK-6)."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from tests.chaos.work_agent import AGENT, NARROW
from tests.chaos.work_graphs import start
from tests.chaos.work_site import GATEWAYS, Refused
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from random import Random

    from passerelle.core.wire.json import Json
    from tests.chaos.work_site import Answer, WorkSite

_ARRIVES_S: Final = 60.0
_DONE_S: Final = 120.0
_SOON_S: Final = 0.04
"""About as long as an interrupting message takes."""


@dataclass(slots=True)
class ContextScene:
    """Turns queued in a context: promoted, removed, and once interrupted by another."""

    site: WorkSite
    draw: Random
    label: str
    size: int
    interrupts: bool = False
    faults: list[str] = field(default_factory=list[str])
    _turns: dict[str, Answer] = field(default_factory=dict[str, "Answer"])
    """By name."""
    _order: list[str] = field(default_factory=list[str])
    """The acknowledged order of the waiting turns."""

    async def play(self) -> None:
        """Runs from the first turn to the end of the last."""
        word = "silent" if self.interrupts else "gate"
        first = await self._send("first", word)
        await wait_until(lambda: self._has_come("first"), _ARRIVES_S, f"{self.label} is at work")
        for number in range(self.size):
            await self._send(str(number), "work", contextId=first["contextId"], whenBusy="queue")
            self._order.append(str(number))
        if self.interrupts:
            await self._interrupt(first)
        else:
            await self._change(str(first["threadId"]))
            await self._read_order(str(first["threadId"]))
            self.site.agent.open_gate(self._name("first"))
        for name, turn in self._turns.items():
            wanted = "cancelled" if name == "first" and self.interrupts else "completed"
            if name in {*self._order, "first"}:
                await self.site.await_status(str(turn["taskId"]), wanted)
            else:
                await self.site.await_status(str(turn["taskId"]), "cancelled")

    async def judge(self) -> None:
        """The agent received the turns that were not removed, in that order, each once."""
        mine = [one for one in self.site.agent.list_labels() if one.startswith(f"{self.label}-")]
        wanted = [self._name(one) for one in ("first", *self._order)]
        if mine != wanted:
            self.faults.append(f"{self.label}: the agent got {mine}, and not {wanted}")

    def _name(self, name: str) -> str:
        return f"{self.label}-{name}"

    def _has_come(self, name: str) -> bool:
        return self._name(name) in self.site.agent.arrived

    async def _send(self, name: str, word: str, **members: Json) -> Answer:
        body: dict[str, Json] = {"agent": AGENT, "text": f"{word} {self._name(name)} 0.05"}
        turn = await self.site.call("POST", "/v1/turns", {**body, **members}, key=self._name(name))
        self._turns[name] = turn
        return turn

    async def _interrupt(self, first: Answer) -> None:
        """A gateway dies while an interrupting message is processed."""
        place = self.draw.randrange(2)
        body: dict[str, Json] = {
            "agent": AGENT,
            "text": f"work {self._name('urgent')} 0.05",
            "contextId": first["contextId"],
            "whenBusy": "interrupt",
        }
        sending = asyncio.create_task(
            self.site.call("POST", "/v1/turns", body, key=self._name("urgent"), first=place)
        )
        await asyncio.wait({sending}, timeout=self.draw.random() * _SOON_S)
        self.site.strike(place)
        self._turns["urgent"] = await sending
        self._order.insert(0, "urgent")

    async def _change(self, thread: str) -> None:
        """Promotes and removes; a gateway dies right after one of them."""
        path = f"/v1/threads/{thread}/queue"
        deadly = self.draw.randrange(self.size)
        for number in range(self.size):
            name = self.draw.choice(self._order)
            turn = str(self._turns[name]["turnId"])
            if self.draw.random() < 0.25 and len(self._order) > 2:
                with suppress(Refused):  # the answer of the first attempt was lost
                    await self.site.call("DELETE", f"{path}/{turn}", first=number % 2)
                self._order.remove(name)
            else:
                await self.site.call("POST", f"{path}/{turn}/promote", first=number % 2)
                self._order.remove(name)
                self._order.insert(0, name)
            if number == deadly:
                self.site.strike(number % 2)

    async def _read_order(self, thread: str) -> None:
        read = await self.site.call("GET", f"/v1/threads/{thread}/queue")
        names = {str(turn["turnId"]): name for name, turn in self._turns.items()}
        order = [names[str(one["turnId"])] for one in read["turns"]]
        if order != self._order:
            self.faults.append(f"{self.label}: its queue is {order}, and not {self._order}")


@dataclass(slots=True)
class LineScene:
    """Tasks that wait for a paused agent with one slot; some get another priority, and gateways die meanwhile."""

    site: WorkSite
    draw: Random
    label: str
    size: int
    calm: asyncio.Event
    """Set once gateways are no longer killed: from then on the order is exact."""
    faults: list[str] = field(default_factory=list[str])
    _tasks: list[str] = field(default_factory=list[str])
    _priorities: list[int] = field(default_factory=list[int])

    async def play(self) -> None:
        """Runs from the pause to the end of the last task."""
        await self.site.call("POST", f"/v1/agents/{NARROW}/pause", {"reason": "chaos"})
        # A gateway that dies before it has told the other one leaves it to learn of the pause within a second.
        await wait_until(self._is_paused_everywhere, _ARRIVES_S, "both gateways know of the pause")
        for number in range(self.size):
            priority = self.draw.choice([0, 0, 0, 5, -5])
            body: dict[str, Json] = {
                "agent": NARROW,
                "objective": f"work {self._name(number)} 0.02",
                "priority": priority,
            }
            key = f"{self.label} {number}"
            made = await self.site.call("POST", "/v1/tasks", body, key=key)
            self._tasks.append(str(made["task"]["taskId"]))
            self._priorities.append(priority)
            await start(self.site, self._tasks[-1])
        for number in self.draw.sample(range(self.size), 3):
            self._priorities[number] = 9
            path, order = f"/v1/tasks/{self._tasks[number]}", {"priority": 9}
            await self.site.call("PATCH", path, {**order}, key=f"{self.label} {number} first")
        self.site.strike(self.draw.randrange(2))
        await self.calm.wait()
        await self.site.call("POST", f"/v1/agents/{NARROW}/resume", {})
        for task in self._tasks:
            await self.site.await_status(task, "completed")

    async def _is_paused_everywhere(self) -> bool:
        for number in range(GATEWAYS):
            listed = await self.site.call("GET", "/v1/agents", first=number)
            if {one["name"]: one["state"] for one in listed["agents"]}[NARROW] != "paused":
                return False
        return True

    async def judge(self) -> None:
        """By priority, then by time; each once."""
        mine = [one for one in self.site.agent.list_labels() if one.startswith(f"{self.label}-")]
        ranked = sorted(range(self.size), key=lambda number: (-self._priorities[number], number))
        if mine != [self._name(number) for number in ranked]:
            self.faults.append(f"{self.label}: the agent got {mine}, and not {ranked}")
        if set(Counter(mine).values()) != {1}:
            self.faults.append(f"{self.label}: {Counter(mine)}")

    def _name(self, number: int) -> str:
        return f"{self.label}-{number}"
