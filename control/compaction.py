"""Compacts a thread: a summary replaces the content up to a turn; the content stays stored (EVC-13, PRS-5, SNAP-6).

The text of the summary comes from the caller, or from an artifact that an agent produced for it. The gateway writes
none itself.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Final

from passerelle.a2a_mapping.content import read_text
from passerelle.a2a_mapping.members import objects_at, text_at
from passerelle.control.turn_histories import BOUNDARY, ThreadMovedError
from passerelle.core.batch import IdempotencyRow
from passerelle.core.errors import (
    InvalidInput,
    NotFound,
    PasserelleError,
    StoreUnavailable,
)
from passerelle.core.events import Fact
from passerelle.core.facts import ErrorCategory, ErrorDetail, Ref, Scope
from passerelle.core.frozen import frozen
from passerelle.core.ids import parse_facade
from passerelle.core.payloads.context import (
    CompactionCompleted,
    CompactionFailed,
    CompactionStarted,
)
from passerelle.core.read_models.task import name_task
from passerelle.core.session import thread as threads
from passerelle.core.session.archived import ArchiveRef
from passerelle.core.session.boundaries import Compact
from passerelle.core.session.requests import SUMMARY_LENGTH, ThreadCompacted
from passerelle.core.session.thread import ThreadRecord
from passerelle.core.session.turn_history import FIELD
from passerelle.core.task.record import TaskRecord
from passerelle.core.wire.codec import from_bytes, to_bytes
from passerelle.core.wire.record import change
from passerelle.delegation.runs.artifacts import bound_id
from passerelle.runtime.records.idempotency import make_once
from passerelle.runtime.records.writes import AppendOptions

if TYPE_CHECKING:
    from passerelle.control.turn_histories import FoundThread, TurnHistories
    from passerelle.core.decision import Decision
    from passerelle.core.principal import Principal
    from passerelle.core.session.requests import CompactThread, SummaryArtifact
    from passerelle.core.session.turn_history import TurnBoundary, TurnHistory
    from passerelle.runtime.records.contents import Contents
    from passerelle.runtime.records.idempotency import Once
    from passerelle.runtime.records.ownership import Ownership

PREVIEW: Final = 500
_LISTED: Final = 64
_NOTE_MS: Final = 600_000


@frozen
class _Summary:
    """The text of a summary, its author, and the artifact it came from."""

    content: bytes
    by: str
    artifact_id: str | None = None

    def refer(self) -> Ref:
        """The reference to it in a fact."""
        preview = self.content.decode()[:PREVIEW]
        sha256 = hashlib.sha256(self.content).hexdigest()
        return Ref(
            blob=sha256,
            size=len(self.content),
            media_type="text/plain; charset=utf-8",
            preview=preview,
        )


@frozen
class Compacting:
    """Sets compaction boundaries."""

    histories: TurnHistories
    ownership: Ownership
    contents: Contents

    async def compact(
        self, principal: Principal, command: CompactThread, idem: str | None
    ) -> ThreadCompacted:
        """Stores the summary, and then the boundary in one append, once per idempotency key.

        Raises:
            NotFound: no such thread, or no such task, of the caller.
            InvalidInput: the turn is not in the thread, was rolled back, has no end or is summarized already; there is
            no
                summary, or it is too long.
            StoreUnavailable: the summary could not be stored; ``context.compaction.failed`` records that.
            IdempotencyConflict: the key was used for another request.
        """
        writes, once = self.histories.writes, make_once(principal, command, idem)
        thread = await self.histories.find(principal, command.thread_id)
        first = await once.find(self.histories.writes.log, thread.ref.shard)
        if first is not None:
            return change(from_bytes(ThreadCompacted, first), repeated=True)
        summary = await self._read_summary(principal, command)
        boundary_id = writes.ids.mint(BOUNDARY, thread.ref.shard)

        async def compact_thread(thread: FoundThread) -> ThreadCompacted:
            plan = await self._plan(principal, command, thread, boundary_id, summary)
            await self._store(thread, plan, summary)
            return await self._append(thread, plan, once)

        return await self.histories.change(principal, thread, compact_thread)

    async def _read_summary(self, principal: Principal, command: CompactThread) -> _Summary:
        if (command.text is None) == (command.artifact is None):
            raise InvalidInput("text", "give either the text of the summary or an artifact")
        if command.artifact is not None:
            return await self._read_artifact(principal, command.artifact)
        text = command.text or ""
        if not text.strip():
            raise InvalidInput("text", "is blank")
        return _Summary(text.encode(), principal.id)

    async def _read_artifact(self, principal: Principal, wanted: SummaryArtifact) -> _Summary:
        """The texts of one of the caller's artifacts, with the agent that produced it as their author."""
        owned = await self.ownership.find(principal, wanted.task_id, None, hidden=True)
        record = owned.record
        named = {
            one.name_at_peer
            for one in record.artifacts
            if one.artifact_id == wanted.artifact_id and one.direction == "produced"
        }
        task = await self.contents.read_task(record, owned.held.fields) if named else None
        for artifact in objects_at(task or {}, "artifacts"):
            if bound_id(text_at(artifact, "artifactId")) not in named:
                continue
            text = read_text(artifact)
            if not text.strip() or len(text) > SUMMARY_LENGTH:
                reason = f"has no text, or more than {SUMMARY_LENGTH} characters"
                raise InvalidInput("artifact.artifactId", reason)
            return _Summary(text.encode(), record.peer or record.kind, wanted.artifact_id)
        raise InvalidInput("artifact.artifactId", "is no artifact that the task has produced")

    async def _plan(
        self,
        principal: Principal,
        command: CompactThread,
        thread: FoundThread,
        boundary_id: str,
        summary: _Summary,
    ) -> Compact:
        record = thread.record
        turns, _ = await self.histories.read_turns(record)
        boundary = turns.find(command.to_turn)
        covers, ref = boundary.summed_up, summary.refer()
        before = record.compactions[-1].covers if record.compactions else 0
        if before >= covers:
            raise InvalidInput(FIELD, "is already summarized")
        started = CompactionStarted(
            boundary_id, "command", before + 1, covers, command.to_turn, principal.id
        )
        completed = CompactionCompleted(
            boundary_id=boundary_id,
            archive=str(ArchiveRef(record.session_id, covers)),
            sha256=ref.blob or "",
            first_kept=covers + 1,
            still_open=await self._list_open(record, boundary),
            missing=_list_missing(turns, boundary),
            to_turn=command.to_turn,
            summarized_by=summary.by,
            artifact_id=summary.artifact_id,
        )
        return Compact(started, completed, ref)

    async def _list_open(self, thread: ThreadRecord, boundary: TurnBoundary) -> tuple[str, ...]:
        """Tasks and requests of turns up to the boundary that are still open."""
        named = await self.histories.writes.log.read_open(thread.session_id)
        parsed = (parse_facade(name) for name in named if name.startswith("task_"))
        names = [one[0] for one in parsed if one is not None]
        tasks = await self.histories.writes.read_all(TaskRecord, names)
        before, found = {turn.task_id for turn in boundary.kept}, list[str]()
        for task in tasks.values():
            if task.task_id in before:
                found += (name_task(task), *task.open_actions)
        return tuple(found[:_LISTED])

    async def _store(self, thread: FoundThread, plan: Compact, summary: _Summary) -> None:
        try:
            await self.contents.blobs.put(thread.ref.shard, summary.content)
        except StoreUnavailable as error:
            await self._record_failure(thread.record, plan, error)
            raise

    async def _record_failure(
        self, thread: ThreadRecord, plan: Compact, error: PasserelleError
    ) -> None:
        scope, boundary_id = Scope(thread.session_id, thread.thread_id), plan.started.boundary_id
        why = ErrorDetail(error.stable_code, ErrorCategory.STORE, error.message, retryable=True)
        failed = CompactionFailed(boundary_id, why)

        def body(decision: Decision) -> AppendOptions:
            decision.add([Fact(scope, plan.started), Fact(scope, failed)])
            # No record changes, so this row distinguishes a retry from a second fact (I2).
            return AppendOptions(idem=IdempotencyRow(boundary_id, boundary_id, b"", _NOTE_MS))

        await self.histories.writes.decide(thread.session_id, [], body)

    async def _append(self, thread: FoundThread, plan: Compact, once: Once) -> ThreadCompacted:
        started, completed = plan.started, plan.completed
        shown = ThreadCompacted(
            thread_id=thread.record.thread_id,
            boundary_id=started.boundary_id,
            to_turn=started.to_turn or "",
            first=started.first,
            covers=started.last,
            sha256=completed.sha256,
            summarized_by=completed.summarized_by or "",
            still_open=completed.still_open,
            missing=completed.missing,
        )

        def body(decision: Decision) -> AppendOptions:
            state = decision.state(thread.ref)
            if decision.version(thread.ref) != thread.version:
                raise ThreadMovedError
            if not isinstance(state, ThreadRecord):
                raise NotFound("thread", thread.ref.id)
            decision.add(threads.decide(state, plan))
            return AppendOptions(idem=once.remember(to_bytes(shown).decode()))

        written = await self.histories.writes.change(thread.record.session_id, [thread.ref], body)
        if written.repeated is not None and written.repeated != to_bytes(shown):
            return change(from_bytes(ThreadCompacted, written.repeated), repeated=True)
        return shown


def _list_missing(turns: TurnHistory, boundary: TurnBoundary) -> tuple[str, ...]:
    before = {turn.task_id for turn in boundary.kept}
    gone = [sha256 for sha256, task in turns.expired.items() if task in before]
    return tuple(f"output {sha256} is not kept any more" for sha256 in gone[:_LISTED])
