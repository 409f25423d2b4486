"""Further messages for a task that works: sent once they are stored, and pending until the peer has them (I9).

The append that stores the message sets a due row ``input:<task>:<turn>``. The sender drops the row once the peer has
taken or refused the message. A peer that is unreachable or busy has not taken it: it is retried at its time, and the
row moves with it. A row that comes due was left by a crash, or by a broken connection: the peer's history is read, and
the message is sent only if that history is there without it. An id is not unique (G1), so the history has to contain
the message as often as it was sent. An agent without a history proves nothing, so nothing is sent again, and the
record of the task notes that.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from passerelle.a2a_mapping.history import same_message
from passerelle.a2a_mapping.members import objects_at
from passerelle.a2a_mapping.send_match import count_message
from passerelle.core.batch import DueChange, IdempotencyRow
from passerelle.core.errors import PasserelleError, StoreUnavailable, WriteConflict
from passerelle.core.peer import Answered, RefusedByPeer, Unknown, Unreached
from passerelle.core.task.record import TaskRecord
from passerelle.core.task.status import ENDED, HELD
from passerelle.delegation.runs.delivery import back_off, judge_refusal
from passerelle.delegation.runs.peer_calls import send_input
from passerelle.delegation.runs.results import apply_input_outcome
from passerelle.delegation.runs.run import RunMovedError
from passerelle.runtime.common.carried import adding_extensions
from passerelle.runtime.records.writes import AppendOptions

if TYPE_CHECKING:
    from passerelle.core.decision import Decision
    from passerelle.core.ids import Shard
    from passerelle.core.peer import PeerOutcome
    from passerelle.core.ports.due import DropRow, DueRow
    from passerelle.core.wire.json import JsonObject
    from passerelle.delegation.runs.active_run import ActiveRun
    from passerelle.delegation.runs.dispatch import Dispatch
    from passerelle.runtime.records.task_fields import TurnInput

ASK: Final = "?"
"""Prefix of a turn id: the message may have arrived, so the agent's history is checked first."""
_SHOWN_HISTORY: Final = 100
_KEPT_MS: Final = 60_000
_LOOK_S: Final = 0.1


def name_row(task_id: str, turn_id: str) -> str:
    """The due row of an input that is not known to have arrived."""
    return f"input:{task_id}:{turn_id}"


def is_absent(outcome: PeerOutcome | None) -> bool:
    """Whether the agent dials in, and not to this instance."""
    return isinstance(outcome, Unreached) and outcome.why == "absent"


def judge_input(outcome: PeerOutcome | None, tries: int) -> int | None:
    """How many ms a message waits that the peer certainly has not taken; None: it is not retried."""
    match outcome:
        case Unreached(why="connection"):
            return back_off(tries)
        case RefusedByPeer() | Unreached():
            return judge_refusal(outcome, tries)
        case _:
            return None


@dataclass(slots=True)
class Inputs:
    """Sends inputs, and checks those whose sending was interrupted."""

    dispatch: Dispatch
    _sending: set[str] = field(default_factory=set[str])

    def send(self, task_id: str, turn_id: str, message: JsonObject, params: JsonObject) -> None:
        """Sends a stored message, detached from its caller."""
        self.dispatch.detach(self._send(task_id, turn_id, message, params))

    async def _send(
        self, task_id: str, turn_id: str, message: JsonObject, params: JsonObject
    ) -> None:
        self._sending.add(turn_id)
        try:
            outcome = await self._insist(task_id, turn_id, message, params)
            if not isinstance(outcome, Unknown | None):
                await self._settle(task_id, turn_id)
        except RunMovedError:
            self.dispatch.log.info("input.moved", task=task_id)  # not sent: its row comes due
        except PasserelleError as error:
            self.dispatch.log.warning("input.failed", task=task_id, code=error.stable_code)
        finally:
            self._sending.discard(turn_id)

    async def _insist(
        self, task_id: str, turn_id: str, message: JsonObject, params: JsonObject
    ) -> PeerOutcome | None:
        """Retries until the peer has taken the message or refused it for good; returns the last outcome."""
        tries = 0
        while True:
            outcome = await self._deliver(task_id, turn_id, message, params)
            wait_ms = judge_input(outcome, tries)
            if wait_ms is None:
                return outcome
            if await self._hand_on(task_id, turn_id, outcome):
                return None
            tries += 1
            until_ms = self.dispatch.clock.now_ms() + wait_ms
            await self._settle(task_id, turn_id, until_ms)
            while self.dispatch.clock.now_ms() < until_ms:
                driver = self.dispatch.find(task_id)
                if driver is not None and driver.run.has_ended():
                    return None
                await asyncio.sleep(_LOOK_S)
            if await self._waits(task_id):
                return None  # its row comes due again until the task goes on

    async def _hand_on(self, task_id: str, turn_id: str, outcome: PeerOutcome | None) -> bool:
        """Whether the instance with the agent's link was asked to send it; its row covers it from then on."""
        remote = self.dispatch.remote
        if remote is None or not is_absent(outcome):
            return False
        record = await self.dispatch.read_task(task_id)
        agent = record.peer if record is not None else None
        if agent is None or not await remote.forward_input(agent, task_id, turn_id):
            return False
        await self._settle(task_id, turn_id, self.dispatch.clock.now_ms())
        return True

    async def send_stored(self, task_id: str, turn_id: str) -> None:
        """Sends a message that another instance has stored and that certainly has not arrived."""
        record = await self.dispatch.read_task(task_id)
        if record is None or record.status in ENDED or turn_id in self._sending:
            return
        turn = await self.dispatch.contents.read_turn(record, turn_id)
        if turn is not None:
            self._send_again(record, turn_id, turn)

    def _send_again(self, record: TaskRecord, turn_id: str, turn: TurnInput) -> None:
        """Sends a stored message with its caller's options and extensions."""
        with adding_extensions(turn.send_options.extensions):
            self.send(record.task_id, turn_id, turn.message, turn.send_options.options)

    async def _waits(self, task_id: str) -> bool:
        record = await self.dispatch.read_task(task_id)
        return record is not None and record.status in HELD

    async def _deliver(
        self, task_id: str, turn_id: str, message: JsonObject, params: JsonObject
    ) -> PeerOutcome | None:
        sender = await self._find_sender(task_id)
        outcome = await send_input(sender, message, params) if sender is not None else None
        if sender is None or outcome is None or judge_input(outcome, 0) is not None:
            return outcome
        # A Task in the answer is the run that is followed already: taking it twice would repeat everything.
        if not (isinstance(outcome, Answered) and "task" in outcome.result):
            await self._record(sender, outcome, turn_id)
        self.dispatch.wake(task_id)
        return outcome

    async def _find_sender(self, task_id: str) -> ActiveRun | None:
        """The driver of a run, or a substitute; None while the id of the run at the agent is unknown."""
        driver = self.dispatch.find(task_id)
        if driver is not None and not driver.run.moved:
            return driver
        record = await self.dispatch.read_task(task_id)
        if record is None or record.run is None or record.run.remote_task_id is None:
            return None
        sender = await self.dispatch.stand_in(task_id)
        # Another attempt may have begun since: with a context alone the agent would take the message for a new task.
        return sender if sender.remote_task() is not None else None

    async def _record(self, sender: ActiveRun, outcome: PeerOutcome, turn_id: str) -> None:
        """Stores the agent's answer, whichever instance drives the run now: it is stored nowhere else."""
        while True:
            try:
                if sender.run.moved:
                    sender = await self.dispatch.stand_in(sender.run.context.task.id)
                await apply_input_outcome(sender, outcome, turn_id)
            except (RunMovedError, WriteConflict):
                await asyncio.sleep(self.dispatch.timeouts.lease_s)
            except StoreUnavailable as error:
                await sender.hold(error)
            else:
                return

    async def look(self, shard: Shard, row: DueRow, drop: DropRow) -> None:
        """Handles a row that came due: sends the message if the peer certainly does not have it."""
        if await self._find_out(row.entity, row.member.rpartition(":")[2]):
            await drop(shard, row)

    async def look_here(self, task_id: str, turn_id: str) -> None:
        """As ``look``, for an agent that dials in, where another instance has the row."""
        if await self._find_out(task_id, turn_id):
            await self._settle(task_id, turn_id)

    async def _find_out(self, task_id: str, turn_id: str) -> bool:
        """Whether the input is settled."""
        if turn_id in self._sending:
            return False
        record = await self.dispatch.read_task(task_id)
        if record is None or record.status in ENDED:
            return True
        if record.status in HELD:
            return False
        turn = await self.dispatch.contents.read_turn(record, turn_id)
        run = record.run
        if turn is None or run is None or run.remote_task_id is None:
            return False
        peer = self.dispatch.find_peer(run.worker.peer)
        outcome = await peer.get(run.remote_task_id, history_length=_SHOWN_HISTORY)
        if not isinstance(outcome, Answered):
            if is_absent(outcome) and self.dispatch.remote is not None:
                agent = run.worker.peer
                await self.dispatch.remote.forward_input(agent, task_id, f"{ASK}{turn_id}")
            return False
        history = objects_at(outcome.result, "history")
        if not history or len(history) >= _SHOWN_HISTORY:
            await self._doubt(record, turn_id)
        elif count_message(history, turn.message) < await self._count_sent(
            record, turn_id, turn.message
        ):
            self._send_again(record, turn_id, turn)
            return False
        return True

    async def _count_sent(self, record: TaskRecord, turn_id: str, message: JsonObject) -> int:
        """How often this message was sent on the task, up to its turn."""
        count = 0
        async for turn, accepted in self.dispatch.contents.list_turns(record):
            count += same_message(accepted, message)
            if turn == turn_id:
                break
        return count

    async def _doubt(self, record: TaskRecord, turn_id: str) -> None:
        """Records that it is unknown whether a message has arrived."""
        self.dispatch.log.warning("input.doubtful", task=record.task_id, turn=turn_id)
        driver = self.dispatch.find(record.task_id)
        if driver is not None:
            reason = "the agent shows no history, so it is unknown whether it has the message"
            await driver.warn("input_doubtful", reason)

    async def _settle(self, task_id: str, turn_id: str, from_ms: int | None = None) -> None:
        """Drops the row of an input, or moves it to the time when a send at ``from_ms`` is certainly not on its way."""
        record = await self.dispatch.read_task(task_id)
        if record is None:
            return
        member = name_row(task_id, turn_id)
        doubt_ms = self.dispatch.find_doubt_ms(record.peer or "")
        at_ms = None if from_ms is None else from_ms + doubt_ms

        def body(_decision: Decision) -> AppendOptions:
            key = f"{turn_id}:{at_ms or 0}"
            row = IdempotencyRow(key=key, digest=key, result=b"", ttl_ms=_KEPT_MS)
            return AppendOptions(due=(DueChange(member, at_ms),), idem=row)

        await self.dispatch.writes.decide(record.session_id, [], body)
