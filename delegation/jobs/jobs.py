"""Drives jobs: when ``job:<session>`` comes due, records ended items and sends the next ones as turns (EXT-9).

Each item is an ordinary turn, in a session of its own, under a key made of the job, the item and the attempt. It is
sent first and recorded then, many items in one append. Which items come next is a function of the record, so after a
crash another instance sends the same items under the same keys, and finds the tasks that they already opened.

A visit continues as long as there is work. Its row comes back in case this instance dies meanwhile.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import field
from time import monotonic
from typing import TYPE_CHECKING, Final, cast

import orjson

from passerelle.core.batch import DueChange, EntityKind, EntityRef, IdempotencyRow
from passerelle.core.commands import CancelTask, SubmitTurn
from passerelle.core.errors import (
    Draining,
    Forbidden,
    Limited,
    NotCancelable,
    NotFound,
    PasserelleError,
    StoreUnavailable,
    WriteConflict,
)
from passerelle.core.events import Fact
from passerelle.core.facts import ErrorCategory, ErrorDetail, Scope
from passerelle.core.frozen import frozen
from passerelle.core.job import machine
from passerelle.core.job.item_name import name_item
from passerelle.core.job.machine import LIVE, JobState, JobStatus, RunningItem
from passerelle.core.payloads.job import JobProgress
from passerelle.core.session.machine import SessionRecord
from passerelle.core.wire.codec import from_bytes
from passerelle.delegation.jobs.items import (
    ItemEnd,
    ItemOutcome,
    find_end,
    list_item_facts,
    read_end,
)
from passerelle.delegation.jobs.parents import name_row, read_job, stop_job, update_parent
from passerelle.runtime.records.due_rows import settle_row
from passerelle.runtime.records.idempotency import TurnReceipt
from passerelle.runtime.records.places import choose_shard, hash_key
from passerelle.runtime.records.writes import AppendOptions, Written

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from passerelle.core.commands import TurnAccepted
    from passerelle.core.decision import Decision, Held
    from passerelle.core.ids import Shard
    from passerelle.core.ports.blobs import Blobs
    from passerelle.core.ports.due import DropRow, DueRow
    from passerelle.core.principal import Principal
    from passerelle.core.wire.json import JsonObject
    from passerelle.delegation.runs.active_run import ActiveRun
    from passerelle.delegation.runs.run import Run
    from passerelle.runtime.records.writes import Writes

_AGAIN_MS: Final = 5_000
"""Delay until the row of a job comes back while an instance works on it."""
_VISIT_S: Final = 4.0
_QUIET_S: Final = 1.0
"""A visit without progress for this long ends: the row comes back."""
_PAUSE_MS: Final = 500
_LOOK_S: Final = (0.02, 0.25)
"""Pause between two checks of the items' tasks: shortest, longest."""
_KEPT_MS: Final = 60_000
_TRANSIENT: Final = (StoreUnavailable, Draining, WriteConflict, Limited)
_STOPPED: Final = "its job was cancelled"
_MOST_KNOWN: Final = 16
_TITLE: Final = "title"
"""Stored with the message of an item: it is no member of a message."""
_OWNER_GONE: Final = ErrorDetail(
    "owner_gone", ErrorCategory.CALLER, "the owner of the job has no access any more"
)


@frozen
class JobVisit:
    """One visit of a job: its owner, the messages of its items, and what is known without asking the store."""

    ref: EntityRef
    owned_by: str
    owner: Principal | None
    messages: list[JsonObject]
    held: dict[EntityRef, Held]
    """The job as it was last read or stored."""
    runs: dict[str, Run] = field(default_factory=dict[str, "Run"])
    """By task, the runs of items that were seen active in this instance."""


@frozen
class JobRunner:
    """Sends items and records their ends. ``submit`` and ``cancel`` are the functions for any caller's commands."""

    writes: Writes
    blobs: Blobs
    find_principal: Callable[[str, str], Principal | None]
    submit: Callable[[Principal, SubmitTurn, str], Awaitable[TurnAccepted]]
    cancel: Callable[[Principal, CancelTask], Awaitable[object]]
    find_run: Callable[[str], ActiveRun | None]
    """The active run of a task in this instance; while there is one, the store is not asked whether the task ended."""
    _known: dict[str, list[JsonObject]] = field(default_factory=dict[str, "list[JsonObject]"])

    async def on_due(
        self,
        shard: Shard,
        row: DueRow,
        now_ms: int,
        drop: DropRow,
    ) -> None:
        """``job:<session>``: an item may have ended, may begin, or has to be stopped.

        Raises:
            StoreUnavailable, WriteConflict: the row comes back.
        """
        ref = EntityRef(EntityKind.SESSION, row.entity)
        held = await self.writes.load([ref])
        record = held[ref].record
        state = record.job if isinstance(record, SessionRecord) else None
        if not isinstance(record, SessionRecord) or state is None:
            await drop(shard, row)
            return
        owner = self.find_principal(record.principal, record.tenant)
        if state.status not in LIVE:
            await self._stop(record, state, owner)
            await update_parent(self.writes, ref.id, record.owner, state)
            await self._settle(ref, row, None)
            return
        await self._settle(ref, row, now_ms + _AGAIN_MS)
        visit = JobVisit(ref, record.owner, owner, await self._read_messages(ref, state), held)
        await self._work(visit, state)

    async def _settle(self, ref: EntityRef, row: DueRow, at_ms: int | None) -> None:
        """Settles the claim, and sets the row again if ``at_ms`` is given."""

        def body(decision: Decision) -> AppendOptions:
            state = read_job(decision, ref)
            if state is not None and state.status is JobStatus.CANCELLED and state.running:
                decision.add([Fact(Scope(ref.id), JobProgress(ref.id, state.counts))])
            return settle_row(row, at_ms)

        await self.writes.decide(ref.id, [ref], body)

    async def _read_messages(self, ref: EntityRef, state: JobState) -> list[JsonObject]:
        if (known := self._known.get(ref.id)) is not None:
            return known
        content = await self.blobs.get(ref.shard, state.input.blob or "")
        if content is None:
            raise StoreUnavailable("the inputs of the job are missing", "no")
        while len(self._known) >= _MOST_KNOWN:
            self._known.pop(next(iter(self._known)), None)
        messages = self._known[ref.id] = cast("list[JsonObject]", orjson.loads(content))
        return messages

    async def _work(self, visit: JobVisit, state: JobState) -> None:
        """Works until there is no progress for a while, or the job is over."""
        began_s = moved_s = monotonic()
        shortest_s, longest_s = _LOOK_S
        pause_s, is_met = shortest_s, False
        while state.status in LIVE:
            ended = await self._find_ended(visit, state)
            room = state.concurrency - len(state.running) + len(ended)
            chosen = machine.list_next(state, room)
            if chosen or not is_met:
                stop = await update_parent(self.writes, visit.ref.id, visit.owned_by, state)
                if stop is not None:
                    await self._note(visit, ended, {})
                    await stop_job(self.writes, visit.ref, stop)
                    return
                is_met = True
            sent = await self._send(visit, state, chosen)
            now_s = monotonic()
            if ended or any(outcome is not None for outcome in sent.values()):
                found = await self._note(visit, ended, sent)
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
        await self._reschedule(visit.ref, quiet=monotonic() - moved_s > _QUIET_S / 2)

    async def _reschedule(self, ref: EntityRef, *, quiet: bool) -> None:
        """Sets the row again soon, unless the job is over."""
        found: list[JobState] = []

        def body(decision: Decision) -> AppendOptions:
            found.clear()
            state = read_job(decision, ref)
            if state is None or state.status not in LIVE:
                return AppendOptions()
            at_ms = decision.now_ms + (_PAUSE_MS if quiet else 0)
            key = f"{name_row(ref.id)}:{at_ms}"
            return AppendOptions(
                due=(DueChange(name_row(ref.id), at_ms),),
                idem=IdempotencyRow(key, key, b"", _KEPT_MS),
            )

        await self.writes.decide(ref.id, [ref], body)

    async def _find_ended(
        self, visit: JobVisit, state: JobState
    ) -> list[tuple[RunningItem, ItemEnd]]:
        """The items that have ended: from drivers here where possible, else from the store."""
        found, asked = list[tuple[RunningItem, ItemEnd]](), list[RunningItem]()
        for one in state.running:
            if self._sees_at_work(visit, one.task_id):
                continue
            end = find_end(visit.runs.pop(one.task_id, None))
            if end is None:
                asked.append(one)
            else:
                found.append((one, end))
        refs = {one: EntityRef(EntityKind.TASK, one.task_id) for one in asked}
        held = await self.writes.load(refs.values()) if refs else {}
        for one, ref in refs.items():
            end = read_end(held[ref].record)
            if end is not None:
                found.append((one, end))
        return found

    def _sees_at_work(self, visit: JobVisit, task_id: str) -> bool:
        active = self.find_run(task_id)
        if active is None:
            return False
        visit.runs[task_id] = active.run
        return True

    async def _send(
        self, visit: JobVisit, state: JobState, chosen: list[tuple[int, int]]
    ) -> Mapping[tuple[int, int], ItemOutcome]:
        """Sends the next items, all at once; returns the outcome of each."""
        owner = visit.owner
        if owner is None:
            return dict.fromkeys(chosen, _OWNER_GONE)
        under_way = [self._submit(visit, owner, state, *one) for one in chosen]
        outcomes = dict[tuple[int, int], ItemOutcome]()
        try:
            for one, accepted in zip(chosen, under_way, strict=True):
                outcomes[one] = await self._accept(visit, accepted)
        finally:
            for accepted in under_way:
                accepted.cancel()
        return outcomes

    def _submit(
        self, visit: JobVisit, owner: Principal, state: JobState, item: int, attempt: int
    ) -> asyncio.Future[TurnAccepted]:
        key = name_item(visit.ref.id, item, attempt)
        given = visit.messages[item - 1 if len(visit.messages) > 1 else 0]
        message: JsonObject = {**given, "messageId": key}
        title = message.pop(_TITLE, None)
        command = SubmitTurn(
            agent=state.agent_of(item),
            message=message,
            source="job",
            wait="none" if state.progress else "unary",
            title=title if isinstance(title, str) else None,
        )
        return asyncio.ensure_future(self.submit(owner, command, key))

    async def _accept(self, visit: JobVisit, accepted: asyncio.Future[TurnAccepted]) -> ItemOutcome:
        try:
            task_id = (await accepted).task_id
        except _TRANSIENT:
            return None
        except PasserelleError as error:
            return ErrorDetail(error.stable_code, ErrorCategory.CALLER, str(error))
        # It may be over before the next check.
        self._sees_at_work(visit, task_id)
        return task_id

    async def _note(
        self,
        visit: JobVisit,
        ended: list[tuple[RunningItem, ItemEnd]],
        sent: Mapping[tuple[int, int], ItemOutcome],
    ) -> JobState | None:
        """Records ended and started items in one append; returns the new state of the job, None where it is gone."""
        found: list[JobState] = []
        ref = visit.ref

        def body(decision: Decision) -> AppendOptions:
            found.clear()
            state = read_job(decision, ref)
            if state is None:
                return AppendOptions()
            facts = list_item_facts(ref.id, state, ended, sent)
            if not facts:
                found.append(state)
                return AppendOptions()
            decision.add(facts)
            state = read_job(decision, ref) or state
            decision.add([Fact(Scope(ref.id), JobProgress(ref.id, state.counts))])
            end = machine.find_end(ref.id, state)
            if end is not None:
                decision.add([Fact(Scope(ref.id), end)])
            state = read_job(decision, ref) or state
            found.append(state)
            over_ms = decision.now_ms if state.parent else None  # its parent task needs the end
            at_ms = decision.now_ms + _AGAIN_MS if state.status in LIVE else over_ms
            return AppendOptions(due=(DueChange(name_row(ref.id), at_ms),))

        # Nothing else writes the job while it runs, except a cancel or another instance that also drives it.
        written = await self.writes.decide(ref.id, [ref], body, visit.held)
        visit.held.clear()
        if isinstance(written, Written):
            visit.held.update(written.held)
        return found[0] if found else None

    async def _stop(self, record: SessionRecord, state: JobState, owner: Principal | None) -> None:
        """Stops the tasks of a cancelled job, including those that were sent and never recorded."""
        if owner is None or state.status is not JobStatus.CANCELLED:
            return
        tasks = [one.task_id for one in state.running]
        tasks += await self._find_unnoted(record.session_id, state, owner)
        # A cancel of delegated work stops the whole subtree (GR-11).
        reach: Final = "active_run" if state.parent is None else "subtree"
        for task in tasks:
            with suppress(Forbidden, NotFound, NotCancelable):
                await self.cancel(owner, CancelTask(task, reason=_STOPPED, propagation=reach))

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


def describe_input(text: str, role: str, title: str | None) -> JsonObject:
    """The message of an item without its id, and with the title of its task."""
    message: JsonObject = {"role": role, "parts": [{"text": text}]}
    return message if title is None else {**message, _TITLE: title}
