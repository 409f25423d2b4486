"""Further messages for a task that works: sent once they are stored, and owed until the peer has them (I9).

The append that stores the message sets a due row ``input:<task>:<turn>``. Whoever sends it drops the row once the
outcome is known. A row that comes due was left by a crash, or by a cut connection: the peer's history is asked, and
the message goes out only if the peer shows a history without it. An agent that keeps none proves nothing, so nothing
is sent again, and the log says so.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from passerelle.a2a_mapping.members import objects_at, text_at
from passerelle.a2a_mapping.outbound import RemoteAddress, address_send
from passerelle.core.batch import DueChange, EntityKind, EntityRef, IdempotencyRow
from passerelle.core.errors import PasserelleError
from passerelle.core.peer import Answered, Unknown
from passerelle.core.status import ENDED, HELD
from passerelle.core.task_record import TaskRecord
from passerelle.gateway.control.writes import Terms

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from passerelle.core.decision import Decision
    from passerelle.core.ids import Shard
    from passerelle.core.json import JsonObject
    from passerelle.core.peer import PeerOutcome
    from passerelle.core.ports import DueRow
    from passerelle.gateway.delegation.dispatch import Dispatch

DOUBT_MS: Final = 35_000
"""A send may still be on its way for this long: the peer's request timeout plus 5 s."""
_SHOWN_HISTORY: Final = 100
_KEPT_MS: Final = 60_000


def name_row(task_id: str, turn_id: str) -> str:
    """The due row of an input that is not known to have arrived."""
    return f"input:{task_id}:{turn_id}"


@dataclass(slots=True)
class Inputs:
    """Sends inputs, and looks for those whose sending was cut off."""

    dispatch: Dispatch
    _sending: set[str] = field(default_factory=set[str])

    def send(self, task_id: str, turn_id: str, message: JsonObject, params: JsonObject) -> None:
        """Sends a stored message, detached from whoever asked."""
        self.dispatch.detach(self._send(task_id, turn_id, message, params))

    async def _send(
        self, task_id: str, turn_id: str, message: JsonObject, params: JsonObject
    ) -> None:
        self._sending.add(turn_id)
        try:
            if not isinstance(await self._deliver(task_id, message, params), Unknown | None):
                await self._settle(task_id, turn_id)
        except PasserelleError as error:
            self.dispatch.log.warning("input.failed", task=task_id, code=error.stable_code)
        finally:
            self._sending.discard(turn_id)

    async def _deliver(
        self, task_id: str, message: JsonObject, params: JsonObject
    ) -> PeerOutcome | None:
        driver = self.dispatch.find(task_id)
        if driver is not None:
            return await driver.send_input(message, params)
        # The run is another instance's, or is being taken up: it sees the answer at the peer.
        record = await self._read(task_id)
        run = record.run if record is not None else None
        if run is None or run.remote_task_id is None:
            return None
        to = RemoteAddress(context_id=run.remote_context_id, task_id=run.remote_task_id)
        sent = address_send({**params, "message": message}, to)
        return await self.dispatch.find_peer(run.worker.peer).send(sent)

    async def look(
        self, shard: Shard, row: DueRow, drop: Callable[[Shard, DueRow], Awaitable[bool]]
    ) -> None:
        """A row that came due: whether the peer has the message, and if it certainly has not, sends it."""
        turn_id = row.member.rpartition(":")[2]
        if turn_id in self._sending:
            return
        record = await self._read(row.entity)
        if record is None or record.status in ENDED:
            await drop(shard, row)
            return
        if record.status in HELD:
            return
        message = await self.dispatch.contents.read_turn(record, turn_id)
        run = record.run
        if message is None or run is None or run.remote_task_id is None:
            return
        peer = self.dispatch.find_peer(run.worker.peer)
        outcome = await peer.get(run.remote_task_id, history_length=_SHOWN_HISTORY)
        if not isinstance(outcome, Answered):
            return
        history = objects_at(outcome.result, "history")
        mine = text_at(message, "messageId")
        if history and all(text_at(item, "messageId") != mine for item in history):
            self.send(row.entity, turn_id, message, {})
            return
        if not history:
            self.dispatch.log.warning("input.doubtful", task=row.entity, turn=turn_id)
        await drop(shard, row)

    async def _read(self, task_id: str) -> TaskRecord | None:
        ref = EntityRef(EntityKind.TASK, task_id)
        record = (await self.dispatch.writes.load([ref]))[ref].record
        return record if isinstance(record, TaskRecord) else None

    async def _settle(self, task_id: str, turn_id: str) -> None:
        record = await self._read(task_id)
        if record is None:
            return
        member = name_row(task_id, turn_id)

        def body(_decision: Decision) -> Terms:
            row = IdempotencyRow(key=turn_id, digest=turn_id, result=b"", ttl_ms=_KEPT_MS)
            return Terms(due=(DueChange(member, None),), idem=row)

        await self.dispatch.writes.decide(record.session_id, [], body)
