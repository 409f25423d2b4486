"""Messages that are sent after other tasks of their context have completed (LT-18, GR-2)."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from passerelle.a2a_mapping.extensions import AFTER
from passerelle.a2a_mapping.inbound import read_after
from passerelle.a2a_mapping.members import object_at
from passerelle.control.task_graph import check_width
from passerelle.core.errors import InvalidInput, NotFound
from passerelle.core.frozen import frozen
from passerelle.core.task.requests import MOST_BEFORE
from passerelle.core.task.status import ENDED, Status
from passerelle.core.wire.record import change
from passerelle.delegation.runs.delivery import read_options
from passerelle.delegation.runs.holds import QueueHold

if TYPE_CHECKING:
    from collections.abc import Sequence

    from passerelle.core.commands import SubmitTurn
    from passerelle.core.principal import Principal
    from passerelle.core.task.record import TaskRecord
    from passerelle.core.wire.json import JsonObject
    from passerelle.delegation.runs.plan import Delegation
    from passerelle.runtime.records.ownership import Ownership


@frozen
class Prerequisites:
    """Finds the tasks that a message waits for."""

    ownership: Ownership

    async def plan(
        self, principal: Principal, command: SubmitTurn, agent: str, plan: Delegation
    ) -> Delegation:
        """The plan with those tasks, on hold until they have completed. A message without any costs no read.

        Raises:
            InvalidInput: one of them is not a task of the caller in this context, or there are too many.
        """
        field, named = "after", command.after
        if not named:
            field, named = f"message.metadata.{AFTER}", read_after(command.message)
        if not named:
            return plan
        if len(named) > MOST_BEFORE:
            raise InvalidInput(field, f"at most {MOST_BEFORE} tasks")
        found = [await self._find(principal, command, facade, field) for facade in named]
        records = {record.task_id: record for record in found}
        undone = [one for one in records.values() if one.status is not Status.COMPLETED]
        plan = change(plan, blockers=tuple(records))
        return change(plan, hold=_hold(command, agent, undone)) if undone else plan

    async def _find(
        self, principal: Principal, command: SubmitTurn, facade: str, field: str
    ) -> TaskRecord:
        named = {command.context_id, command.thread_id} - {None}
        with suppress(NotFound):
            record = (await self.ownership.find(principal, facade, None, hidden=True)).record
            if named & {record.scope.context_id, record.thread_id}:
                check_width(record, "blocks", field)
                return record
        raise InvalidInput(field, f"{facade} is not a task of this context")


def _hold(command: SubmitTurn, agent: str, undone: Sequence[TaskRecord]) -> QueueHold:
    names = [one.task_id for one in undone]
    which = f"task {names[0]} has" if len(names) == 1 else f"tasks {' and '.join(names)} have"
    ended = [f"{one.task_id} ended as {one.status}" for one in undone if one.status in ENDED]
    params: JsonObject = {**(command.params or {}), "message": command.message}
    configuration = object_at(params, "configuration")
    return QueueHold(
        agent,
        "after",
        1,
        "; ".join([f"{which} completed", *ended]),
        read_options(params),
        answers_at_once=configuration.get("returnImmediately") is True,
    )
