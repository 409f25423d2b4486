"""Waits for the answer of a turn: from the driver in this process, or from the store if the driver is elsewhere.

The work does not depend on the waiting caller: it continues when the caller leaves, and its answer is stored (I6).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from passerelle.core.batch import EntityKind, EntityRef
from passerelle.core.errors import NotFound
from passerelle.core.frozen import frozen
from passerelle.core.task.record import TaskRecord
from passerelle.core.wire.record import value
from passerelle.delegation.runs.follow_strategy import waits_long
from passerelle.delegation.runs.holds import UNFORESEEN
from passerelle.runtime.records.accepted_turns import (
    check_owner,
    check_taken,
    find_exposure,
    is_active,
)
from passerelle.runtime.records.refusals import explain_failure

if TYPE_CHECKING:
    from collections.abc import Callable

    from passerelle.core.commands import TurnAccepted
    from passerelle.core.decision import Held
    from passerelle.core.principal import Principal
    from passerelle.core.wire.json import JsonObject
    from passerelle.delegation.runs.active_run import ActiveRun
    from passerelle.delegation.runs.agent_queues import AgentQueues
    from passerelle.delegation.runs.dispatch import Dispatch
    from passerelle.delegation.runs.follow_strategy import Timeouts
    from passerelle.delegation.runs.templates import TemplatedAnswer
    from passerelle.delegation.runs.turn_request import OpenedTurn

_LONGEST_LOOK_S: Final = 4.0
_LOOK_S: Final = 0.25
"""Pause between two reads of the store for a run that another instance drives."""


@frozen
class Answers:
    """Waits for answers."""

    dispatch: Dispatch
    queues: AgentQueues

    async def wait(self, accepted: TurnAccepted, owner: str, *, at_once: bool) -> JsonObject:
        """``{"task": …}`` or ``{"message": …}`` in A2A form; ``at_once`` returns the first Task that is available.

        Raises:
            NotFound: the task does not belong to the owner any more.
            PeerUnavailable, PeerRefused, InvalidAgentResponse: there is no answer and never will be.
        """
        driver = self.dispatch.runs.find(accepted.task_id)
        if driver is None:
            return await self._wait_stored(accepted, owner, at_once=at_once)
        return await self.wait_driven(driver, accepted, owner, at_once=at_once)

    async def wait_driven(
        self, driver: ActiveRun, accepted: TurnAccepted, owner: str, *, at_once: bool
    ) -> JsonObject:
        """As ``wait``, for a run that is, or was, driven here."""
        run = driver.run
        while True:
            if run.rendered is not None:
                return run.rendered.frame
            if run.templated is not None and not run.moved:
                await run.wait_for_change()
                continue
            check_owner(run.record, owner, accepted)
            if run.answer is not None and run.has_ended():
                return {"message": run.answer}
            if driver.failure is not None and not run.record.shown:
                raise driver.failure
            if run.record.shown and run.content is not None:
                thread = run.held[run.context.thread].record
                check_taken(thread, accepted.turn_id)
                if (
                    at_once
                    or not is_active(thread, accepted.turn_id)
                    or _waits_long(run.record, driver.timeouts)
                ):
                    return {"task": run.content}
            if run.moved or run.has_ended():
                return await self._wait_stored(accepted, owner, at_once=at_once)
            await run.wait_for_change()

    async def _wait_stored(
        self, accepted: TurnAccepted, owner: str, *, at_once: bool
    ) -> JsonObject:
        task_ref = EntityRef(EntityKind.TASK, accepted.task_id)
        thread_ref = EntityRef(EntityKind.THREAD, accepted.thread_id)
        looks = 0
        while True:
            driver = self.dispatch.runs.find(accepted.task_id)
            if driver is not None and not driver.run.moved and not driver.run.has_ended():
                return await self.wait_driven(driver, accepted, owner, at_once=at_once)
            held = await self.dispatch.writes.load([task_ref, thread_ref])
            seen = find_exposure(accepted, held[task_ref])
            record, thread = seen.record, held[thread_ref].record
            if not isinstance(record, TaskRecord):
                raise NotFound("task", accepted.facade)
            check_owner(record, owner, accepted)
            check_taken(thread, accepted.turn_id)
            is_ready = record.shown and (at_once or self._waits_long(record))
            if is_ready or not (is_active(thread, accepted.turn_id) or record.queued):
                return await self._compose(record, seen)
            if record.queued is None:
                await asyncio.sleep(_LOOK_S)
                continue
            # Many may wait in a queue, and usually the task begins here.
            looks += 1
            await self.queues.rest(accepted.task_id, find_pause_s(looks))

    def _waits_long(self, record: TaskRecord) -> bool:
        run = record.run
        if run is None:
            return record.queued is not None and record.queued.cause in UNFORESEEN
        return _waits_long(record, self.dispatch.find_terms(run.worker.peer).timeouts)

    async def _compose(self, record: TaskRecord, held: Held) -> JsonObject:
        task = await self.dispatch.contents.read_task(record, held.fields)
        if task is not None:
            return {"task": task}
        message = await self.dispatch.contents.read_answer(record)
        if message is not None:
            return {"message": message}
        raise explain_failure(record)


@value
class OpenTurn:
    """An accepted turn, for a caller who waits for its answer without an asyncio task."""

    opened: OpenedTurn
    answers: Answers
    caller: Principal
    driver: ActiveRun | None
    """The run that the turn has opened here."""

    @property
    def accepted(self) -> TurnAccepted:
        """The receipt of the turn."""
        return self.opened.accept()

    @property
    def answer(self) -> TemplatedAnswer | None:
        """The answer that ended the run, if it can be returned without a read."""
        return None if self.driver is None else self.driver.run.rendered

    def listen(self, changed: Callable[[], None]) -> bool:
        """Calls ``changed`` once, when there may be an answer. False if no driver here would call it."""
        if self.driver is None:
            return False
        self.driver.run.listen(changed)
        return True

    def forget(self, changed: Callable[[], None]) -> None:
        """Stops calling it."""
        if self.driver is not None:
            self.driver.run.forget(changed)

    async def wait(self) -> JsonObject:
        """As ``Answers.wait``."""
        answers, accepted, owner = self.answers, self.accepted, self.caller.key
        if self.driver is None:
            return await answers.wait(accepted, owner, at_once=False)
        return await answers.wait_driven(self.driver, accepted, owner, at_once=False)


def find_pause_s(looks: int) -> float:
    """Seconds until the next check of a queued task, after ``looks`` checks."""
    return min(_LOOK_S * (1 << min(looks, 8)), _LONGEST_LOOK_S)


def _waits_long(record: TaskRecord, timeouts: Timeouts) -> bool:
    """Whether the agent delays the message longer than its caller may stay without a status."""
    return record.run is not None and waits_long(record.run, timeouts)
