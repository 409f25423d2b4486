"""Stops turns, and attaches to the runs of a thread again (CMD-2, CMD-3)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from passerelle.channels.cursor_check import CursorBroken
from passerelle.channels.follower import read_verified
from passerelle.core.batch import EntityKind, EntityRef
from passerelle.core.commands import CancelTask
from passerelle.core.errors import InvalidInput
from passerelle.core.frozen import frozen
from passerelle.core.ids import parse_facade
from passerelle.core.payloads.task import TaskCancelRequested
from passerelle.core.ports.log import StreamKind, StreamRef
from passerelle.core.read_models.task import name_task
from passerelle.core.session.requests import ResumedTask, ThreadResumed, TurnInterrupted
from passerelle.core.session.thread import ThreadRecord
from passerelle.core.task.record import TaskRecord
from passerelle.core.task.status import HELD, Status
from passerelle.core.wire.record import change
from passerelle.protocol.cursor import Cursor, parse_cursor
from passerelle.runtime.records.ownership import Owned, find_own, may_see
from passerelle.runtime.records.task_fields import read_driver

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Literal

    from passerelle.control.cancellation import Cancelling
    from passerelle.core.principal import Principal
    from passerelle.core.session.requests import InterruptTurn, ResumeThread
    from passerelle.delegation.runs.dispatch import Dispatch
    from passerelle.permission_bridge.governing.command_gate import CommandGate
    from passerelle.runtime.records.task_lists import TaskLists


@frozen
class Interrupting:
    """Stops turns, and resumes threads."""

    records: TaskLists
    cancelling: Cancelling
    dispatch: Dispatch
    governing: CommandGate
    pull: Callable[[str], None]
    """Checks a line of turns, in case no instance does."""

    async def interrupt(self, principal: Principal, command: InterruptTurn) -> TurnInterrupted:
        """Cancels the tasks whose turns have no answer yet; without any, nothing is written.

        Raises:
            NotFound: no such session or thread of the caller.
            InvalidInput: the thread belongs to another session.
            Forbidden: a rule denies cancelling one of them, or requires an approval; earlier ones are cancelled.
        """
        if command.thread_id is not None:
            thread = await self._find_thread(principal, command.thread_id)
            if thread.session_id != command.session_id:
                raise InvalidInput("threadId", "the thread belongs to another session")
        wanted = [
            owned
            for owned in await self._list_open(principal, command.session_id, command.thread_id)
            if _is_under_way(owned.record, command.turn_id)
        ]
        if not wanted:
            return TurnInterrupted("no_op")
        requested = TaskCancelRequested(
            actor=principal.id, source="user", propagation="active_run", reason=command.reason
        )
        for owned in wanted:
            # Rules about cancelling apply here too. A permitted cancel is done before the next one is judged.
            cancel = CancelTask(name_task(owned.record), reason=command.reason)
            await self.governing.govern(principal, cancel)
            await self.cancelling.stop(principal, owned, requested)
        return TurnInterrupted("accepted", tuple(name_task(owned.record) for owned in wanted))

    async def resume(self, principal: Principal, command: ResumeThread) -> ThreadResumed:
        """Attaches to each open run of a thread that this instance may drive, and checks its waiting turns.

        Raises:
            NotFound: no such thread of the caller.
            BadCursor: an invalid token.
        """
        token = command.resume_token
        cursor = None if token is None else parse_cursor(token, "resumeToken")
        thread = await self._find_thread(principal, command.thread_id)
        stream = StreamRef(StreamKind.SESSION, thread.session_id)
        # The head is read first: later events are after the token in the answer.
        head = await self.records.writes.log.read_head(stream)
        found = await self._list_open(principal, thread.session_id, thread.thread_id)
        if thread.waiting_turns:
            self.pull(f"thread:{thread.thread_id}")
        resumed = ThreadResumed(
            command.thread_id,
            tuple([await self.attach(owned) for owned in found if owned.record.run is not None]),
            thread.waiting_turns,
            None if head is None else str(Cursor(head.epoch, head.sequence, head.chain)),
        )
        if cursor is None or head is None:
            return resumed
        held = await read_verified(self.records.writes.log, stream, cursor)
        if isinstance(held, CursorBroken):
            return change(resumed, resumed="gap", gap=held.why.value)
        return change(resumed, resumed="exact", missed=max(0, head.sequence - cursor.sequence))

    async def _find_thread(self, principal: Principal, thread_id: str) -> ThreadRecord:
        return await find_own(self.records.writes, ThreadRecord, principal, thread_id)

    async def attach(self, owned: Owned) -> ResumedTask:
        """Attaches to the run of a task if this instance may drive it."""
        record = owned.record
        outcome: Literal["attached", "elsewhere", "held"] = "attached"
        if record.status in HELD:
            outcome = "held"
        elif not self.dispatch.wake(owned.ref.id):
            if read_driver(owned.held.fields) == self.dispatch.drives(owned.ref.shard):
                await self.dispatch.adopt(owned.ref)
            else:
                outcome = "elsewhere"
        return ResumedTask(name_task(record), record.status, outcome)

    async def _list_open(
        self, principal: Principal, session_id: str, thread_id: str | None
    ) -> list[Owned]:
        records = self.records
        await records.find_session(principal, session_id)
        refs = [
            EntityRef(EntityKind.TASK, one)
            for one in await records.writes.log.read_open(session_id)
            if one.startswith("task_") and parse_facade(one) is not None
        ]
        held = await records.writes.load(refs)
        return [
            Owned(ref, one, one.record)
            for ref, one in held.items()
            if isinstance(one.record, TaskRecord)
            and may_see(principal, one.record)
            and thread_id in {None, one.record.thread_id}
        ]


def _is_under_way(record: TaskRecord, turn_id: str | None) -> bool:
    if record.status is Status.CANCELLING or not record.open_turns:
        return False
    return turn_id is None or turn_id in record.open_turns
