"""Has jobs go on: ``job:<session>`` comes due, items that ended are noted, and the next ones are sent as turns (EXT-9).

Each item is a turn like any other, in a session of its own, under a key made of the job, the item and the attempt. It
is sent first and noted then, many of them in one append. Which items come next is a function of the record, so whoever
goes on after a death sends the same ones under the same keys, and finds the tasks that were made of them.

One visit goes on as long as there is something to do, and the row comes back meanwhile for the case that it dies.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

import orjson

from passerelle.core.batch import DueChange, DueClaim, EntityKind, EntityRef, IdempotencyRow
from passerelle.core.commands import CancelTask, SubmitTurn
from passerelle.core.errors import (
    Draining,
    Limited,
    NotCancelable,
    NotFound,
    PasserelleError,
    StoreUnavailable,
    WriteConflict,
)
from passerelle.core.events import Fact
from passerelle.core.facts import ErrorCategory, ErrorDetail, Scope
from passerelle.core.job import machine
from passerelle.core.job.item_name import JOB, name_item
from passerelle.core.job.machine import LIVE, JobState, JobStatus, RunningItem
from passerelle.core.payloads.job import (
    ItemRefusal,
    JobItemCompleted,
    JobItemFailed,
    JobItemStarted,
    JobProgress,
    JobStarted,
)
from passerelle.core.session.machine import SessionRecord
from passerelle.core.task.record import TaskRecord
from passerelle.core.task.status import ENDED, Status
from passerelle.core.wire.codec import from_bytes
from passerelle.runtime.records.idempotency import TurnReceipt
from passerelle.runtime.records.places import choose_shard, hash_key
from passerelle.runtime.records.writes import AppendOptions

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from passerelle.core.commands import TurnAccepted
    from passerelle.core.decision import Decision
    from passerelle.core.ids import Shard
    from passerelle.core.ports.blobs import Blobs
    from passerelle.core.ports.due import DueRow
    from passerelle.core.principal import Principal
    from passerelle.core.wire.json import JsonObject
    from passerelle.runtime.records.writes import Writes

_AGAIN_MS: Final = 5_000
"""Until the row of a job comes back while somebody works on it."""
_VISIT_S: Final = 4.0
_QUIET_S: Final = 1.0
"""A visit in which nothing happens for so long is over: the row comes back."""
_PAUSE_MS: Final = 500
_LOOK_S: Final = (0.02, 0.25)
"""Between two looks at the tasks of items: shortest, longest."""
_KEPT_MS: Final = 60_000
_TRANSIENT: Final = (StoreUnavailable, Draining, WriteConflict, Limited)
_STOPPED: Final = "its job was cancelled"
_MOST_KNOWN: Final = 16
ItemOutcome: TypeAlias = "str | ErrorDetail | None"
"""Of an item that was sent: its task, why there is none, or None where it is to be sent again."""


def name_row(job_id: str) -> str:
    """The due row of a job."""
    return f"{JOB}:{job_id}"


@dataclass(frozen=True, slots=True)
class JobVisit:
    """One visit of a job: whose it is, and the messages of its items."""

    ref: EntityRef
    owner: Principal | None
    messages: list[JsonObject]


@dataclass(frozen=True, slots=True)
class JobRunner:
    """Sends items and notes their ends. ``submit`` and ``cancel`` are what any caller's command goes through."""

    writes: Writes
    blobs: Blobs
    find_principal: Callable[[str, str], Principal | None]
    submit: Callable[[Principal, SubmitTurn, str], Awaitable[TurnAccepted]]
    cancel: Callable[[Principal, CancelTask], Awaitable[object]]
    drives: Callable[[str], bool]
    """Whether the run of a task goes on in this instance: then it is not asked whether it has ended."""
    _known: dict[str, list[JsonObject]] = field(default_factory=dict[str, "list[JsonObject]"])

    async def on_due(
        self,
        shard: Shard,
        row: DueRow,
        now_ms: int,
        drop: Callable[[Shard, DueRow], Awaitable[bool]],
    ) -> None:
        """``job:<session>``: an item may have ended, or may begin, or is to be stopped.

        Raises:
            StoreUnavailable, WriteConflict: the row comes back.
        """
        ref = EntityRef(EntityKind.SESSION, row.entity)
        record = (await self.writes.load([ref]))[ref].record
        state = record.job if isinstance(record, SessionRecord) else None
        if not isinstance(record, SessionRecord) or state is None:
            await drop(shard, row)
            return
        owner = self.find_principal(record.principal, record.tenant)
        if state.status not in LIVE:
            await self._stop(record, state, owner)
            await self._settle(ref, row, None)
            return
        await self._settle(ref, row, now_ms + _AGAIN_MS)
        visit = JobVisit(ref, owner, await self._read_messages(ref, state))
        await self._work(visit, state)

    async def _settle(self, ref: EntityRef, row: DueRow, at_ms: int | None) -> None:
        """Settles the claim, and sets the row anew where there is a time."""
        key = f"{row.member}:{row.token}"
        terms = AppendOptions(
            claim=DueClaim(row.member, row.token),
            due=() if at_ms is None else (DueChange(row.member, at_ms),),
            idem=IdempotencyRow(key, key, b"", _KEPT_MS),
        )

        def body(decision: Decision) -> AppendOptions:
            state = _read(decision, ref)
            if state is not None and state.status is JobStatus.CANCELLED and state.running:
                decision.add([Fact(Scope(ref.id), JobProgress(ref.id, state.counts))])
            return terms

        await self.writes.decide(ref.id, [ref], body)

    async def _read_messages(self, ref: EntityRef, state: JobState) -> list[JsonObject]:
        if (known := self._known.get(ref.id)) is not None:
            return known
        content = await self.blobs.get(ref.shard, state.input.blob or "")
        if content is None:
            raise StoreUnavailable("the inputs of the job are not here", "no")
        while len(self._known) >= _MOST_KNOWN:
            self._known.pop(next(iter(self._known)), None)
        messages = self._known[ref.id] = cast("list[JsonObject]", orjson.loads(content))
        return messages

    async def _work(self, visit: JobVisit, state: JobState) -> None:
        """Goes on until nothing happens for a while, or the job is over."""
        began_s = moved_s = monotonic()
        shortest_s, longest_s = _LOOK_S
        pause_s = shortest_s
        while state.status in LIVE:
            ended = await self._find_ended(state)
            sent = await self._send(visit, state, len(ended))
            now_s = monotonic()
            if ended or any(outcome is not None for outcome in sent.values()):
                found = await self._note(visit.ref, ended, sent)
                if found is None:
                    return
                state, moved_s, pause_s = found, now_s, shortest_s
            elif now_s - moved_s > _QUIET_S or now_s - began_s > _VISIT_S:
                break
            else:
                await asyncio.sleep(pause_s)
                pause_s = min(pause_s * 2, longest_s)
            if now_s - began_s > _VISIT_S:
                break
        await self._rest(visit.ref, quiet=monotonic() - moved_s > _QUIET_S / 2)

    async def _rest(self, ref: EntityRef, *, quiet: bool) -> None:
        """Has the row come back soon, unless the job is over."""
        found: list[JobState] = []

        def body(decision: Decision) -> AppendOptions:
            found.clear()
            state = _read(decision, ref)
            if state is None or state.status not in LIVE:
                return AppendOptions()
            at_ms = decision.now_ms + (_PAUSE_MS if quiet else 0)
            key = f"{name_row(ref.id)}:{at_ms}"
            return AppendOptions(
                due=(DueChange(name_row(ref.id), at_ms),),
                idem=IdempotencyRow(key, key, b"", _KEPT_MS),
            )

        await self.writes.decide(ref.id, [ref], body)

    async def _find_ended(self, state: JobState) -> list[tuple[RunningItem, TaskRecord | None]]:
        asked = [one for one in state.running if not self.drives(one.task_id)]
        refs = {one: EntityRef(EntityKind.TASK, one.task_id) for one in asked}
        held = await self.writes.load(refs.values()) if refs else {}
        found = list[tuple[RunningItem, TaskRecord | None]]()
        for one, ref in refs.items():
            record = held[ref].record
            if not isinstance(record, TaskRecord):
                found.append((one, None))
            elif record.status in ENDED:
                found.append((one, record))
        return found

    async def _send(
        self, visit: JobVisit, state: JobState, ended: int
    ) -> Mapping[tuple[int, int], ItemOutcome]:
        """Sends the items that come next, all at once; each with what came of it."""
        room = state.concurrency - len(state.running) + ended
        chosen = machine.list_next(state, room)
        outcomes = await asyncio.gather(*(self._send_one(visit, state, *one) for one in chosen))
        return dict(zip(chosen, outcomes, strict=True))

    async def _send_one(
        self, visit: JobVisit, state: JobState, item: int, attempt: int
    ) -> ItemOutcome:
        if visit.owner is None:
            return ErrorDetail(
                "owner_gone", ErrorCategory.CALLER, "the owner of the job may not come in"
            )
        key = name_item(visit.ref.id, item, attempt)
        message = visit.messages[item - 1 if len(visit.messages) > 1 else 0]
        command = SubmitTurn(
            agent=state.agent_of(item),
            message={**message, "messageId": key},
            source="job",
            wait="none" if state.progress else "unary",
        )
        try:
            return (await self.submit(visit.owner, command, key)).task_id
        except _TRANSIENT:
            return None
        except PasserelleError as error:
            return ErrorDetail(error.stable_code, ErrorCategory.CALLER, str(error))

    async def _note(
        self,
        ref: EntityRef,
        ended: list[tuple[RunningItem, TaskRecord | None]],
        sent: Mapping[tuple[int, int], ItemOutcome],
    ) -> JobState | None:
        """Notes what ended and what began in one append; the job as it stands then, None where it is gone."""
        found: list[JobState] = []

        def body(decision: Decision) -> AppendOptions:
            found.clear()
            state = _read(decision, ref)
            if state is None:
                return AppendOptions()
            facts = _tell(ref.id, state, ended, sent)
            if not facts:
                found.append(state)
                return AppendOptions()
            decision.add(facts)
            state = _read(decision, ref) or state
            decision.add([Fact(Scope(ref.id), JobProgress(ref.id, state.counts))])
            end = machine.find_end(ref.id, state)
            if end is not None:
                decision.add([Fact(Scope(ref.id), end)])
            state = _read(decision, ref) or state
            found.append(state)
            at_ms = decision.now_ms + _AGAIN_MS if state.status in LIVE else None
            return AppendOptions(due=(DueChange(name_row(ref.id), at_ms),))

        await self.writes.decide(ref.id, [ref], body)
        return found[0] if found else None

    async def _stop(self, record: SessionRecord, state: JobState, owner: Principal | None) -> None:
        """Stops the tasks of a job that was cancelled, those as well that were sent and never noted."""
        if owner is None or state.status is not JobStatus.CANCELLED:
            return
        tasks = [one.task_id for one in state.running]
        tasks += await self._find_unnoted(record.session_id, state, owner)
        for task in tasks:
            with suppress(NotFound, NotCancelable):
                await self.cancel(owner, CancelTask(task, reason=_STOPPED))

    async def _find_unnoted(self, job_id: str, state: JobState, owner: Principal) -> list[str]:
        waited = [at + 1 for at, letter in enumerate(state.states) if letter == machine.CANCELLED]
        running = {one.item for one in state.running}
        found = list[str]()
        for item in [one for one in waited if one not in running][: state.concurrency]:
            key = name_item(job_id, item, state.tries_of(item) + 1)
            shard = choose_shard(owner, self.writes.ids, key)
            stored = await self.writes.log.read_idempotency(shard, hash_key(owner, key))
            if stored is not None:
                found.append(from_bytes(TurnReceipt, stored[1]).task_id)
        return found


def _read(decision: Decision, ref: EntityRef) -> JobState | None:
    record = decision.state(ref)
    return record.job if isinstance(record, SessionRecord) else None


def _tell(
    job_id: str,
    state: JobState,
    ended: list[tuple[RunningItem, TaskRecord | None]],
    sent: Mapping[tuple[int, int], ItemOutcome],
) -> list[Fact]:
    """The facts that are news: somebody else may have noted some of it, or have cancelled the job."""
    facts = list[Fact]()
    for one, record in ended:
        if one in state.running and state.status in LIVE:
            facts.append(
                Fact(Scope(job_id, task_id=one.task_id), _judge(job_id, state, one, record))
            )
    due = dict.fromkeys(machine.list_next(state, len(state.states)))
    refused = list[ItemRefusal]()
    for (item, attempt), outcome in sent.items():
        if (item, attempt) not in due or outcome is None:
            continue
        if isinstance(outcome, ErrorDetail):
            refused.append(ItemRefusal(item, attempt, outcome))
            continue
        started = JobItemStarted(job_id, item, attempt, state.agent_of(item))
        facts.append(Fact(Scope(job_id, task_id=outcome), started))
    if refused:
        # Only the fold knows the counts behind it; those are said with the next fact.
        told = JobProgress(job_id, state.counts, tuple(refused))
        facts.append(Fact(Scope(job_id), told))
    if facts and state.status is JobStatus.CREATED:
        facts.insert(0, Fact(Scope(job_id), JobStarted(job_id)))
    return facts


def _judge(
    job_id: str, state: JobState, one: RunningItem, record: TaskRecord | None
) -> JobItemCompleted | JobItemFailed:
    if record is not None and record.status is Status.COMPLETED:
        return JobItemCompleted(job_id, one.item, one.attempt)
    status = "lost" if record is None else str(record.status)
    error = record.last_error if record is not None else None
    if error is None:
        error = ErrorDetail(status, ErrorCategory.PEER, f"the task is {status}")
    retries = status != Status.CANCELLED and machine.has_attempt_left(state, one.attempt)
    return JobItemFailed(job_id, one.item, one.attempt, error, retries)


def describe_input(text: str, role: str) -> dict[str, Any]:
    """The message of an item without its id."""
    return {"role": role, "parts": [{"text": text}]}
