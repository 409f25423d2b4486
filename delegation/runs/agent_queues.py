"""The outgoing queues of busy agents: which waiting task is next (TR-8, MK-6, ST-3).

For each agent, or other queue, in which tasks wait, as far as this instance knows, one loop reserves a slot of the
limit, takes the next task, and begins it with that slot. So all instances pull from one queue, in its order, and never
exceed the limit. An instance learns of waiting tasks when it queues one, when it starts, when an agent is resumed, and
by the due row of each waiting task.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from passerelle.core.agent_name import find_base
from passerelle.core.batch import EntityKind, EntityRef
from passerelle.core.errors import (
    NotFound,
    PasserelleError,
    StoreUnavailable,
    WriteConflict,
)
from passerelle.core.ids import shard_of
from passerelle.core.peer import SendSlot
from passerelle.core.ports.due import DropRow, DueRow
from passerelle.core.session.thread import ThreadRecord
from passerelle.core.task.record import TaskRecord, waits_for_quota, waits_for_turn
from passerelle.core.task.status import ENDED, Status
from passerelle.core.wire.times import parse_ms
from passerelle.delegation.runs.holds import (
    FIRST_LOOK_MS,
    LONGEST_LOOK_MS,
    QUEUED,
    QueueHold,
    find_look_ms,
)
from passerelle.delegation.runs.queue_lines import (
    BEGUN_MS,
    THREAD,
    find_place,
    find_quota_pause_s,
    find_turn_pause_s,
    name_waiting_line,
)
from passerelle.delegation.runs.quota_waits import LINE, make_hold, name_line
from passerelle.delegation.runs.run import RunMovedError
from passerelle.runtime.limits.costs import FREE, Shortage

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from passerelle.core.decision import Held
    from passerelle.core.ids import Shard
    from passerelle.core.ports.queues import QueueStore
    from passerelle.core.task.record import QueuedAttempt
    from passerelle.delegation.runs.admission import AttemptAdmission, LimitedPeer
    from passerelle.delegation.runs.queued_attempts import QueuedAttempts
    from passerelle.delegation.runs.quota_waits import QuotaWaits
    from passerelle.runtime.limits.costs import Charge

_LOOK_S: Final = 0.05
"""Pause between two attempts to get a slot, without a signal that one is free."""
_AWAY_S: Final = 1.0
_SEND_S: Final = 2.0
"""How long the next attempt waits for the previous send to begin, so that an agent is called in order."""


def _leave_nothing() -> None:
    """Gives nothing back: no slot was reserved."""


async def _await_send(place: SendSlot) -> None:
    begins = asyncio.Event()
    place.listen(begins.set)
    with suppress(TimeoutError):
        async with asyncio.timeout(_SEND_S):
            await begins.wait()


@dataclass(slots=True)
class AgentQueues:
    """Queues attempts, and begins them in turn."""

    admission: AttemptAdmission
    attempts: QueuedAttempts
    find_peer: Callable[[str], LimitedPeer]
    extend: Callable[[Shard, DueRow, int], Awaitable[object]]
    """Keeps a claimed row hidden for this many ms."""
    store: QueueStore = field(init=False)
    quotas: QuotaWaits = field(init=False)
    _pulling: dict[str, asyncio.Event] = field(default_factory=dict[str, "asyncio.Event"])
    """By agent, the event that wakes its loop."""
    _unused: dict[str, str] = field(default_factory=dict[str, str])
    """By agent, the owner whose turn was not used: the task had ended, had begun, or could not begin."""
    _busy_checks: dict[str, int] = field(default_factory=dict[str, int])
    """By context queue, how often the context was found busy since it was last idle."""
    _watched: dict[str, asyncio.Event] = field(default_factory=dict[str, "asyncio.Event"])
    """By task, the event that wakes those who wait for its answer here."""

    def __post_init__(self) -> None:
        self.store, self.quotas = self.admission.store, self.admission.quotas
        self.admission.pauses.listen(self.pull)
        self.attempts.dispatch.runs.on_left = self.on_left

    def look_at_quotas(self) -> None:
        """Resumes messages that quotas cover now, whichever instance queued them; for a change of quotas."""
        for line in self.quotas.lines:
            self.pull(line)

    async def enter(self, record: TaskRecord) -> None:
        """Queues a task that is stored as queued; while the store is unavailable its due row does it."""
        queued = record.queued
        if queued is not None and await self._add(record, queued) and self._is_paused(queued):
            self.attempts.dispatch.detach(self._postpone_row(record, queued))

    async def _postpone_row(self, record: TaskRecord, queued: QueuedAttempt) -> None:
        """Postpones the row that was stored with the task: the task is in its queue now."""
        at_ms = parse_ms(queued.since) + FIRST_LOOK_MS
        row = DueRow(f"{QUEUED}:{record.task_id}", str(at_ms))
        with suppress(StoreUnavailable):  # then it comes at its stored time
            # A row with another time has another purpose, and stays.
            hold_ms = find_look_ms(0, is_paused=True)
            await self.extend(shard_of(record.task_id), row, hold_ms)

    async def _add(self, record: TaskRecord, queued: QueuedAttempt) -> int:
        """The number of tasks in its queue afterwards, 0 while the store is unavailable."""
        base = name_waiting_line(record, queued)
        task = find_place(record, queued)
        try:
            added = await self.store.add(base, task)
        except StoreUnavailable as error:
            log = self.attempts.dispatch.log
            log.info("queue.late", task=record.task_id, reason=error.reason)
            return 0
        self.pull(base)
        return added.position

    async def look(self, agents: Iterable[str]) -> None:
        """Resumes the tasks that wait for these agents, whichever instance queued them."""
        names = sorted({find_base(agent) for agent in agents})
        with suppress(StoreUnavailable):  # their due rows come
            for name, count in zip(names, await self.store.count(names), strict=True):
                if count:
                    self.pull(name)

    def pull(self, agent: str) -> None:
        """Starts or wakes the loop of an agent: a task may wait for it, and a slot may be free."""
        known = self._pulling.get(agent)
        if known is not None:
            known.set()
            return
        self.admission.waiting.add(agent)
        if (
            self.admission.pauses.find(agent) is None
            and not self.attempts.dispatch.runs.is_draining
        ):
            self._pulling[agent] = asyncio.Event()
            self.attempts.dispatch.detach(self._pull(agent))

    def on_left(self, agent: str, thread_id: str) -> None:
        """A run is not driven here any more: its agent may have a free slot, and its context may be idle."""
        if self._pulling:
            for line in (find_base(agent), f"{THREAD}{thread_id}"):
                known = self._pulling.get(line)
                if known is not None:
                    known.set()

    async def list_waiting(self, thread_id: str) -> tuple[str, ...]:
        """The turns that wait in a context, in their order."""
        return await self.attempts.list_turns(await self.store.list_waiting(f"{THREAD}{thread_id}"))

    async def on_due(
        self,
        shard: Shard,
        row: DueRow,
        now_ms: int,
        drop: DropRow,
    ) -> Held:
        """``queued:<task>``: a task that waits; the instance that queued it may be gone, and the queue with it.

        Returns the task as it was read.
        """
        ref = EntityRef(EntityKind.TASK, row.entity)
        held = await self.attempts.dispatch.writes.load_one(ref)
        record = held.record if isinstance(held.record, TaskRecord) else None
        queued = record.queued if record is not None else None
        if record is None or queued is None or record.status in ENDED:
            if record is not None:
                await self.store.drop(find_base(record.peer or ""), row.entity)
                if self.quotas.spending.has_quotas:
                    await self.store.drop(name_line(record.owner), row.entity)
                if record.thread_id is not None:
                    await self.store.drop(f"{THREAD}{record.thread_id}", row.entity)
                    await self.attempts.leave_line(
                        record, await self.list_waiting(record.thread_id)
                    )
            await drop(shard, row)
            return held
        if waits_for_quota(record):
            await self._update_quota_wait(record, queued, now_ms)
        is_in_line = record.status is Status.QUEUED or waits_for_quota(record)
        waiting = await self._add(record, queued) if is_in_line else 0
        await self.extend(shard, row, self._find_look_ms(queued, now_ms, waiting))
        return held

    def _find_look_ms(self, queued: QueuedAttempt, now_ms: int, waiting: int) -> int:
        """Delay until the next check of a task in a queue of ``waiting`` tasks, or until its quota resets."""
        if queued.until is not None:
            left_ms = parse_ms(queued.until) - now_ms
            # Not before the reset, whichever clock measures it.
            return min(left_ms + BEGUN_MS, LONGEST_LOOK_MS) if left_ms > 0 else FIRST_LOOK_MS
        waited_ms, is_paused = now_ms - parse_ms(queued.since), self._is_paused(queued)
        return find_look_ms(waited_ms, waiting, is_paused=is_paused)

    def _is_paused(self, queued: QueuedAttempt) -> bool:
        """Whether it waits for an agent that is paused."""
        if queued.cause in {"turn", "quota"}:
            return False
        return self.admission.find_pause(queued.attempt.worker.peer) is not None

    async def _update_quota_wait(
        self, record: TaskRecord, queued: QueuedAttempt, now_ms: int
    ) -> None:
        """Updates the time until which a message waits, after its quota has reset and others have used it up again."""
        known = self.quotas.find(name_line(record.owner))
        if known is None or known.till_ms <= now_ms or parse_ms(queued.until or "") > now_ms:
            return
        with suppress(WriteConflict, RunMovedError):  # it goes on, or is updated the next time
            hold = make_hold(queued.attempt.worker.peer, known, None, queued.send_options)
            await self.attempts.wait_on(record.task_id, hold)

    async def _pull(self, agent: str) -> None:
        try:
            while (
                self.admission.pauses.find(agent) is None
                and not self.attempts.dispatch.runs.is_draining
            ):
                try:
                    if not await self._pull_one(agent):
                        return
                except (StoreUnavailable, WriteConflict, RunMovedError) as error:
                    self.attempts.dispatch.log.info("queue.held", agent=agent, reason=str(error))
                    await asyncio.sleep(_AWAY_S)
        finally:
            del self._pulling[agent]

    async def _pull_one(self, agent: str) -> bool:
        """Begins the next attempt at an agent, or waits for a slot; False: the queue is empty."""
        if agent.startswith(THREAD):
            return await self._pull_turn(agent)
        if agent.startswith(LINE):
            return await self._pull_paid(agent)
        place = await self._reserve(agent)
        if place is None:
            await self._pause(agent)
            return True
        news = self._pulling[agent]
        news.clear()
        try:
            task_id = await self.store.take(agent, self._unused.pop(agent, ""))
            if task_id is None:
                # A task may have come while the queue was found empty.
                if not news.is_set():
                    self.admission.waiting.discard(agent)
                return news.is_set()
            if await self._begin(task_id, place):
                begun, place = place, None
                self._notify_begun(task_id)
                await _await_send(begun)
            elif (record := await self.attempts.dispatch.read_task(task_id)) is not None:
                self._unused[agent] = record.owner
        finally:
            if place is not None:
                place.give_back()
        return True

    async def _pull_paid(self, line: str) -> bool:
        """Resumes the next message of a caller once its quota covers it; False: the queue is empty."""
        news = self._pulling[line]
        news.clear()
        names = await self.store.list_waiting(line, 1)
        if not names:
            if not news.is_set():
                self.admission.waiting.discard(line)
                self.quotas.forget(line)
            return news.is_set()
        # It stays first until its start is stored, so that no later message takes its place.
        record = await self.attempts.dispatch.read_task(names[0])
        if waits_for_quota(record) and name_line(record.owner) == line:
            charged = await self.quotas.pay(record)
            if isinstance(charged, Shortage):
                clock = self.admission.clock
                self.quotas.note(line, charged)
                await self._pause(line, find_quota_pause_s(record, charged, clock.now_ms()))
                return True
            await self._start_paid(record, charged, None)
        # Where it could not begin, its due row queues it again.
        await self.store.drop(line, names[0])
        return True

    async def _pull_turn(self, line: str) -> bool:
        """Starts the next turn of a context once that is idle; False: none waits."""
        thread_id = line.removeprefix(THREAD)
        if await self._is_busy(thread_id):
            looks = self._busy_checks[line] = self._busy_checks.get(line, 0) + 1
            await self._pause(line, find_turn_pause_s(looks))
            return True
        self._busy_checks.pop(line, None)
        news = self._pulling[line]
        news.clear()
        names = await self.store.list_waiting(line)
        if not names:
            self.admission.waiting.discard(line)
            return news.is_set()
        # It stays first until its start is stored: after a failure or a crash no other turn passes it.
        record = await self.attempts.dispatch.read_task(names[0])
        if not waits_for_turn(record) or await self._start_turn(record, thread_id, names[1:]):
            await self.store.drop(line, names[0])
        return True

    async def _is_busy(self, thread_id: str) -> bool:
        thread = await self.attempts.dispatch.writes.read(ThreadRecord, thread_id)
        return thread is not None and bool(thread.active_turns)

    async def _start_turn(self, record: TaskRecord, thread_id: str, others: list[str]) -> bool:
        """Whether the first turn of a context has left its queue; ``others`` are the tasks behind it."""
        task_id = record.task_id
        behind = await self.attempts.list_turns(others)
        if await self._pay_and_start(record, behind):
            return True
        # Another instance was faster, with this turn or with one that does not wait; else its due row brings it back.
        is_to_wait = await self._is_busy(thread_id)
        return not (is_to_wait and waits_for_turn(await self.attempts.dispatch.read_task(task_id)))

    async def _pay_and_start(self, record: TaskRecord, behind: tuple[str, ...]) -> bool:
        """Whether a turn has left the queue of its context, possibly for the queue of its caller."""
        queued, charged = record.queued, FREE
        if queued is not None and queued.unpaid:
            found = await self.quotas.pay(record)
            if isinstance(found, Shortage):
                self.quotas.note(name_line(record.owner), found)
                hold = make_hold(queued.attempt.worker.peer, found, None)
                return await self._move_to_hold(record.task_id, hold, behind)
            charged = found
        return await self._start_paid(record, charged, behind)

    async def _start_paid(
        self, record: TaskRecord, charged: Charge, behind: tuple[str, ...] | None
    ) -> bool:
        """Starts a charged turn; refunds the charge if the turn did not begin, as far as is known."""
        try:
            if await self._start_or_queue(record, charged, behind):
                return True
        except StoreUnavailable as error:
            if error.wrote != "unknown":
                charged.refund()
            raise
        except BaseException:
            charged.refund()
            raise
        charged.refund()
        return False

    async def _start_or_queue(
        self, record: TaskRecord, charged: Charge, behind: tuple[str, ...] | None
    ) -> bool:
        """Whether a task whose turn has come has begun, or waits for its agent from now on."""
        agent = record.peer or ""
        try:
            admitted = await self.admission.admit(agent, self.find_peer(agent))
        except NotFound:
            admitted = None
        if isinstance(admitted, str):
            hold = await self.admission.explain(agent, admitted)
            return await self._move_to_hold(record.task_id, hold, behind, charged)
        return await self._begin_turn(record.task_id, admitted, behind, charged)

    async def _move_to_hold(
        self,
        task_id: str,
        hold: QueueHold,
        behind: tuple[str, ...] | None,
        charged: Charge = FREE,
    ) -> bool:
        moved = await self.attempts.move_on(task_id, hold, behind, charged.facts)
        if moved is not None:
            await self.enter(moved)
        return moved is not None

    async def _begin_turn(
        self,
        task_id: str,
        place: SendSlot | None,
        behind: tuple[str, ...] | None,
        charged: Charge,
    ) -> bool:
        try:
            if await self._begin(task_id, place, behind, charged):
                place = None
                self._notify_begun(task_id)
                return True
        finally:
            if place is not None:
                place.give_back()
        return False

    async def _begin(
        self,
        task_id: str,
        place: SendSlot | None,
        behind: tuple[str, ...] | None = None,
        charged: Charge = FREE,
    ) -> bool:
        """Whether the attempt has begun. Otherwise the due row of the task queues it again."""
        log = self.attempts.dispatch.log
        try:
            return await self.attempts.begin(task_id, place, behind, charged.facts)
        except asyncio.CancelledError:
            # The instance that continues with the queue finds the task in it at once.
            await self._requeue(task_id)
            raise
        except (StoreUnavailable, WriteConflict):
            raise
        except (PasserelleError, RunMovedError) as error:
            log.warning("queue.not_begun", task=task_id, reason=str(error))
        except Exception:
            # A broken task must not block the others.
            log.exception("queue.broken", task=task_id)
        return False

    async def _requeue(self, task_id: str) -> None:
        with suppress(PasserelleError):
            record = await self.attempts.dispatch.read_task(task_id)
            if record is not None:
                await self.enter(record)

    async def _reserve(self, agent: str) -> SendSlot | None:
        try:
            return await self.find_peer(agent).reserve()
        except NotFound:
            # The agent is not configured any more: its tasks fail one by one, each with that reason.
            return SendSlot(_leave_nothing)

    async def _pause(self, agent: str, pause_s: float = _LOOK_S) -> None:
        wakes = self._pulling[agent]
        with suppress(TimeoutError):
            async with asyncio.timeout(pause_s):
                await wakes.wait()
        wakes.clear()

    async def rest(self, task_id: str, pause_s: float) -> None:
        """Returns when the attempt of a task has begun here, or after ``pause_s``."""
        begun = self._watched.setdefault(task_id, asyncio.Event())
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await begun.wait()
        finally:
            if self._watched.get(task_id) is begun:
                del self._watched[task_id]

    def _notify_begun(self, task_id: str) -> None:
        watched = self._watched.pop(task_id, None)
        if watched is not None:
            watched.set()
