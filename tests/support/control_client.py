"""The control plane over a harness: its calls by the names that ``/v1`` and channels use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from passerelle.core.events import Event, decode_event
from passerelle.core.principal import Principal
from passerelle.core.task.record import TaskRecord
from passerelle.core.task.status import Status
from passerelle.core.wire.codec import from_wire
from passerelle.core.wire.json import Json, JsonObject
from passerelle.gateway.rpc.table import CALLS, call
from passerelle.runtime.common.calls import Caller
from tests.support.harness import ADA, Harness

_WITHIN_S = 10.0


@dataclass(frozen=True, slots=True)
class ControlClient:
    """Control plane calls of the principal Ada."""

    harness: Harness

    async def do(
        self, method: str, idem: str | None = None, who: Principal = ADA, /, **params: Json
    ) -> JsonObject:
        """Executes one call and returns its answer in wire form, checked against the documented schema.

        Sessions that it names are verified after the test.
        """
        answer = await call(self.harness.service, Caller(who, "http", idem), method, params)
        form = CALLS[method].result or CALLS[method].model
        if form is not None:
            from_wire(form, answer)
        for member in (answer, answer.get("task"), answer.get("session")):
            if isinstance(member, dict) and isinstance(member.get("sessionId"), str):
                self.harness.remember(str(member["sessionId"]))
        return answer

    async def create(self, objective: str = "report the sales", **params: Json) -> str:
        """A task for the agent ``echo``, accepted and not started."""
        given: dict[str, Json] = {"agent": "echo", "objective": objective, **params}
        return task_id_of(await self.do("create_task", **given))

    async def start(self, objective: str = "report the sales", **params: Json) -> str:
        """A task that was sent to its agent."""
        task_id = await self.create(objective, **params)
        await self.do("start_task", f"start {task_id}", taskId=task_id)
        return task_id

    def hold_card(self) -> None:
        """Delays the card of ``echo`` until ``card_open`` is set, or the test ends."""
        opened = self.harness.peer.card_open
        opened.clear()
        self.harness.stack.callback(opened.set)

    async def record(self, task_id: str) -> TaskRecord:
        """The stored record."""
        return await self.harness.record(task_id)

    async def until(self, task_id: str, status: Status) -> TaskRecord:
        """The record, once it has the status."""
        return await self.harness.until(task_id, status)

    async def events(self, task_id: str) -> list[Event]:
        """The stored events of a task, in order."""
        record = await self.record(task_id)
        entries = await self.harness.entries(record.session_id)
        events = [decode_event(entry.data, entry.frame, entry.facade) for entry in entries]
        return [event for event in events if event.fact.scope.task_id == task_id]

    async def types(self, task_id: str) -> list[str]:
        """Their classes."""
        return [event.type for event in await self.events(task_id)]


def task_id_of(answer: JsonObject) -> str:
    """The id of the task that a command changed."""
    return str(cast("JsonObject", answer["task"])["taskId"])
