"""How a run reaches the instance that its agent is linked to: its driver hands it over, without a proxy hop.

The driver of a run needs the socket of its dial-in agent. A driver without it releases the run in one append: it leaves
the run set, loses its owner, and gets the due row ``serve:<task>``. A hint notifies the instances with a socket of the
agent; one of them claims the run in one append that compares the record, and drives it from the stored state: it sends
what was never sent, and asks the agent about the rest (I6, I9).

The row covers a lost hint. If an agent does not connect within its time limit, the attempt fails and the retry policy
decides. A run that may have reached the agent never fails for that reason: an instance drives it without a socket, and
the liveness limit decides.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from passerelle.core.batch import (
    Conflict,
    DueChange,
    Early,
    EntityKind,
    EntityRef,
    RunMove,
    StaleEpoch,
)
from passerelle.core.errors import PasserelleError, StoreUnavailable
from passerelle.core.peer import Unreached
from passerelle.core.task.record import TaskRecord
from passerelle.core.task.status import UNDRIVEN, Status
from passerelle.core.wire.times import parse_ms
from passerelle.delegation.runs.delivery import is_kept_back
from passerelle.delegation.runs.failure import RunEnd, end_run, explain
from passerelle.delegation.runs.inputs import ASK
from passerelle.delegation.runs.remote_drivers import FIRST_LOOK_MS, SERVE_ROW, release_run
from passerelle.delegation.runs.run import RunMovedError
from passerelle.runtime.records.due_rows import move_row
from passerelle.runtime.records.task_fields import OWNER, read_driver
from passerelle.runtime.records.writes import MAX_TRIES, AppendOptions, Written

if TYPE_CHECKING:
    from collections.abc import Callable

    from passerelle.core.batch import Incarnation
    from passerelle.core.decision import Held
    from passerelle.core.ids import Shard
    from passerelle.core.ports.due import DropRow, DueRow
    from passerelle.delegation.runs.active_run import ActiveRun
    from passerelle.delegation.runs.dispatch import Dispatch
    from passerelle.delegation.runs.draft import DecisionDraft
    from passerelle.delegation.runs.inputs import Inputs
    from passerelle.peers.reverse.cards import DialInState
    from passerelle.runtime.records.writes import Writes

VISIBILITY_MS: Final = 10_000
"""A claimed row that is not finished becomes due again after this time."""


@dataclass(slots=True)
class Routing:
    """Releases runs, claims them, and handles the rows ``serve:<task>``.

    ``connect_ms(agent)`` is how long a message waits for its agent; ``drop`` removes a row that is not needed.
    """

    dial_in: DialInState
    writes: Writes
    dispatch: Dispatch
    inputs: Inputs
    drives: Callable[[Shard], Incarnation]
    dials_in: Callable[[str], bool]
    connect_ms: Callable[[str], int]
    drop: DropRow

    # ------------------------------------------------------------ claiming runs

    async def take_waiting(self, agent: str) -> None:
        """Claims the runs that wait for an agent linked here, and wakes the drivers of its runs."""
        dispatch = self.dispatch
        for driver in self._list_drivers(agent):
            driver.wake()
        for task_id in await self.dial_in.agents.list_waiting(agent):
            if dispatch.runs.is_draining:
                return
            await self.take(agent, task_id)

    async def take(self, agent: str, task_id: str, turn_id: str = "") -> None:
        """Claims the run, or sends the input, that waits for an agent linked here."""
        inputs = self.inputs
        if turn_id.startswith(ASK):
            await inputs.look_here(task_id, turn_id.removeprefix(ASK))
            return
        if turn_id:
            await inputs.send_stored(task_id, turn_id)
            return
        await self.claim(task_id)
        await self.dial_in.agents.forget(agent, task_id)

    async def claim(self, task_id: str) -> bool:
        """Claims and drives a run without a driver; False if it has one, or there is nothing to drive."""
        task = EntityRef(EntityKind.TASK, task_id)
        writes, dispatch = self.writes, self.dispatch
        if dispatch.runs.is_draining:
            return False
        for tries in range(MAX_TRIES):
            held = await writes.load([task])
            record = held[task].record
            if not isinstance(record, TaskRecord) or not is_free(held[task]):
                return False
            outcome = await self._write_claim(task, record, held)
            if isinstance(outcome, Written):
                await self._adopt(task)
                return True
            if not isinstance(outcome, Conflict | StaleEpoch | Early):
                return False
            await writes.pause_before_retry(tries)
        return False

    async def _write_claim(
        self, task: EntityRef, record: TaskRecord, held: dict[EntityRef, Held]
    ) -> object:
        driver = self.drives(task.shard)
        decision = self.writes.begin(record.session_id, held)
        decision.set_field(task, OWNER, str(driver).encode())
        entering = RunMove(record.attempts[-1].run_id, task.id, driver, enters=True)
        due = (DueChange(f"{SERVE_ROW}:{task.id}", None),)
        return await self.writes.commit(decision, held, AppendOptions(runs=(entering,), due=due))

    async def _adopt(self, task: EntityRef) -> None:
        try:
            await self.dispatch.adopt(task)
        except PasserelleError as error:
            self.dispatch.log.warning("run.not_adopted", task=task.id, reason=str(error))
            self.dispatch.adopt_if_undriven(task)

    async def stop(self, agent: str, remote: str) -> None:
        """Stops a task of an agent linked here; its driver sees the result."""
        await self.dispatch.stop_peer(agent, remote)

    # ------------------------------------------------------------ releasing runs

    async def offer(self, agent: str, task_id: str) -> None:
        """Notifies the instances with a socket of the agent; if the hint is lost, the due row remains."""
        try:
            await self.dial_in.agents.offer(agent, task_id)
        except StoreUnavailable as error:
            self.dispatch.log.info("agent.late", reason=error.reason)

    async def forward_input(self, agent: str, task_id: str, turn_id: str) -> bool:
        """Passes a further message to the instance that the agent is linked to; False if it is linked to none."""
        served = await self.dial_in.agents.read(agent)
        if self.dial_in.links.holds(agent) or served is None or not served.links:
            return False
        await self.dial_in.agents.offer(agent, task_id, turn_id)
        return True

    async def follow_agent(self, agent: str) -> None:
        """Releases the runs of an agent that is linked to another instance, and not to this one."""
        drivers = self._list_drivers(agent)
        if not drivers or self.dial_in.links.holds(agent):
            return
        served = await self.dial_in.agents.read(agent)
        if served is None or not served.links:
            return
        for driver in drivers:
            await self._release(agent, driver)

    async def _release(self, agent: str, driver: ActiveRun) -> None:
        task_id = driver.run.context.task.id
        with suppress(RunMovedError):  # another instance has it already, as intended
            if driver.run.has_ended() or not await release_run(driver):
                return
        self.dispatch.runs.drop(task_id)
        await self.offer(agent, task_id)

    def _list_drivers(self, agent: str) -> list[ActiveRun]:
        runs = self.dispatch.runs
        found = (runs.find(task_id) for task_id in runs.list_tasks())
        return [driver for driver in found if driver is not None and driver.peer.name == agent]

    # ------------------------------------------------------------ due rows

    async def on_due(self, shard: Shard, row: DueRow, now_ms: int) -> None:
        """``serve:<task>``: a run that waits for its agent, or for the instance that the agent is linked to."""
        task = EntityRef(EntityKind.TASK, row.entity)
        held = await self.writes.load_one(task)
        record = held.record
        if not isinstance(record, TaskRecord) or not is_free(held):
            await self.drop(shard, row)
            return
        agent = record.peer or ""
        is_unsent = is_kept_back(record) and record.status is not Status.CANCELLING
        if self.dial_in.links.holds(agent) or not is_unsent or not self.dials_in(agent):
            await self.claim(row.entity)
            return
        left_ms = self._find_end_ms(record, agent) - now_ms
        if left_ms <= 0:
            await self._fail_attempt(row, agent)
            return
        await self.offer(agent, row.entity)
        if left_ms < VISIBILITY_MS:
            await move_row(
                self.writes, record.session_id, row, now_ms + min(left_ms, FIRST_LOOK_MS)
            )

    def _find_end_ms(self, record: TaskRecord, agent: str) -> int:
        run = record.run
        since_ms = 0 if run is None else parse_ms(run.started_at) + run.held_ms
        return since_ms + self.connect_ms(agent)

    async def _fail_attempt(self, row: DueRow, agent: str) -> None:
        run = await self.dispatch.hold(row.entity)
        away = Unreached("it has not dialled in", None)

        def end(draft: DecisionDraft) -> None:
            held = run.held[run.context.task]
            if is_free(held):
                end_run(draft, RunEnd(explain(away, draft.context, draft.record).failure))

        terms = AppendOptions(claim=row, due=(DueChange(row.member, None),))
        await run.append(end, lambda _draft: terms)
        await self.dial_in.agents.forget(agent, row.entity)


def is_free(held: Held) -> bool:
    """Whether a task has a run without a driver."""
    record = held.record
    if not isinstance(record, TaskRecord) or record.status in UNDRIVEN or record.run is None:
        return False
    return read_driver(held.fields) is None
