"""A task whose start waits for the card of its agent: until that is read it is being prepared, for all to see (ST-4).

Nothing is sent, and the message is the caller's still: where the card cannot be read the caller is told, and the task
is as before. Where whoever prepares it dies, a row that comes due puts it back (I9).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from passerelle.control.task_changes import read_task
from passerelle.core.batch import Claim, DueChange, EntityKind, EntityRef
from passerelle.core.task import machine as tasks
from passerelle.core.task.commands import AcceptTask, PrepareTask, PutBack
from passerelle.core.task.record import TaskRecord
from passerelle.core.task.status import Status
from passerelle.runtime.records.writes import Terms

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from passerelle.core.decision import Decision
    from passerelle.core.ids import Shard
    from passerelle.core.ports.due import DueRow
    from passerelle.runtime.records.ownership import Owned
    from passerelle.runtime.records.writes import Writes

PREPARE: Final = "prepare"
"""The kind of the due row of a task that is being prepared."""
CARD: Final = "card"
_LONGEST_MS: Final = 120_000
"""Longer than the card of an agent is waited for."""


def name_row(task_id: str) -> str:
    """The due row of a task that is being prepared."""
    return f"{PREPARE}:{task_id}"


@dataclass(frozen=True, slots=True)
class Preparing:
    """Shows that a task is being prepared, and that it is no more."""

    writes: Writes

    async def begin(self, owned: Owned, version: int | None) -> None:
        """From here on the task is being prepared.

        Raises:
            VersionMismatch: the caller read an older version.
            UnsupportedOperation: it has been started, or has ended.
        """

        def body(decision: Decision) -> Terms:
            record = read_task(decision, owned.ref, version)
            if record.status is Status.DRAFT:
                decision.add(tasks.decide(record, AcceptTask()))
                record = read_task(decision, owned.ref, None)
            decision.add(tasks.decide(record, PrepareTask(CARD)))
            row = DueChange(name_row(owned.ref.id), decision.now_ms + _LONGEST_MS)
            return Terms(due=(row,))

        await self.writes.decide(owned.record.session_id, [owned.ref], body)

    async def put_back(
        self, task: EntityRef, session_id: str, reason: str, claim: Claim | None = None
    ) -> None:
        """It is not any more, and may be started again; nothing where it has gone on meanwhile."""
        row = DueChange(name_row(task.id), None)

        def body(decision: Decision) -> Terms:
            record = decision.state(task)
            if not isinstance(record, TaskRecord) or record.status is not Status.PREPARING:
                return Terms()
            decision.add(tasks.decide(record, PutBack(reason)))
            return Terms(claim=claim) if claim else Terms(due=(row,))

        await self.writes.decide(session_id, [task], body)

    async def on_due(
        self, shard: Shard, row: DueRow, drop: Callable[[Shard, DueRow], Awaitable[bool]]
    ) -> None:
        """``prepare:<task>``: whoever prepared it is gone."""
        task = EntityRef(EntityKind.TASK, row.entity)
        record = (await self.writes.load([task]))[task].record
        if not isinstance(record, TaskRecord) or record.status is not Status.PREPARING:
            await drop(shard, row)
            return
        claim = Claim(row.member, row.token)
        await self.put_back(task, record.session_id, "nobody prepares it any more", claim)
