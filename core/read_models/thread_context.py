"""The context of a thread from its last boundary on, and what was rolled back or is missing (SNAP-6)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import field
from typing import Final

from passerelle.core.events import Event
from passerelle.core.facts import CompactedTurns, Ref
from passerelle.core.payloads.context import ContextResolved
from passerelle.core.payloads.conversation import TurnSubmitted
from passerelle.core.payloads.history import RollbackStarted
from passerelle.core.payloads.run import OutputExpired
from passerelle.core.payloads.runtime import WarningRaised
from passerelle.core.read_models.mark import FreshnessMark, not_applicable, unavailable
from passerelle.core.session.boundaries import RolledBack
from passerelle.core.session.thread import ThreadRecord
from passerelle.core.wire.record import record

LISTED: Final = 200
"""Listed messages, warnings and missing facts, the newest of each."""


@record
class ContextSummary:
    """A summary and its range. Only the last one has its text; without it the text cannot be read now."""

    boundary_id: str
    to_turn: str
    covers: int
    summarized_by: str
    sha256: str
    size: int
    text: str | None = None


@record
class ContextWarning:
    """A warning in a turn after the boundary."""

    sequence: int
    code: str
    message: str
    task_id: str | None = None


@record
class TurnContext:
    """The attachments sent with the message of a turn, and those left out."""

    sequence: int
    turn_id: str
    task_id: str
    resolved: ContextResolved


@record
class ThreadContext:
    """A thread from its last boundary on. Its context begins at ``first``; earlier history is still readable.

    ``selected`` are the messages of its turns since then that were not rolled back, by sequence, and ``attached`` the
    attachments of those that refer to other tasks.
    """

    thread_id: str
    session_id: str
    sequence: int
    first: int
    selected: tuple[Ref, ...]
    summaries: tuple[ContextSummary, ...]
    attached: tuple[TurnContext, ...] = ()
    warnings: tuple[ContextWarning, ...] = ()
    missing: tuple[str, ...] = ()
    rolled_back: RolledBack | None = None
    marks: dict[str, FreshnessMark] = field(default_factory=dict[str, FreshnessMark])


def show_thread_context(
    thread: ThreadRecord,
    events: Sequence[Event],
    sequence: int,
    text: str | None,
    lost: Sequence[str],
) -> ThreadContext:
    """The context of a thread.

    ``events`` are the read ones of its session after the boundary, ``text`` is that of the last summary, and ``lost``
    describes what could not be read.
    """
    compactions = thread.compactions or ()
    newest = compactions[-1] if compactions else None
    mine = [one for one in events if one.fact.scope.thread_id == thread.thread_id]
    backs = [one.fact.payload for one in mine if isinstance(one.fact.payload, RollbackStarted)]
    gone = {task for back in backs for task in back.tasks}
    standing = [one for one in mine if one.fact.scope.task_id not in gone]
    inputs = [one.sequence for one in standing if isinstance(one.fact.payload, TurnSubmitted)]
    left = [f"turn {turn} is rolled back" for back in backs for turn in back.turns]
    warnings, expired = _list_warnings(standing)
    attached = [one for event in standing if (one := _read_attached(event)) is not None]
    marks: dict[str, FreshnessMark] = {}
    if not compactions:
        marks["summaries"] = not_applicable("the thread has no summary")
    elif text is None:
        marks["summaries"] = unavailable("the text of the last summary cannot be read now")
    if len(inputs) > LISTED:
        marks["selected"] = unavailable(f"{len(inputs) - LISTED} older messages are not listed")
    return ThreadContext(
        thread_id=thread.thread_id,
        session_id=thread.session_id,
        sequence=sequence,
        first=newest.covers + 1 if newest else 1,
        selected=tuple(Ref(sequence=one) for one in inputs[-LISTED:]),
        summaries=tuple(_show(one, text if one is newest else None) for one in compactions),
        attached=tuple(attached[-LISTED:]),
        warnings=warnings[-LISTED:],
        missing=(*lost, *[*left, *expired][-LISTED:]),
        rolled_back=thread.rolled_back,
        marks=marks,
    )


def _show(compacted: CompactedTurns, text: str | None) -> ContextSummary:
    return ContextSummary(
        boundary_id=compacted.boundary_id,
        to_turn=compacted.to_turn,
        covers=compacted.covers,
        summarized_by=compacted.summarized_by,
        sha256=compacted.summary.blob or "",
        size=compacted.summary.size or 0,
        text=text,
    )


def _read_attached(event: Event) -> TurnContext | None:
    scope, payload = event.fact.scope, event.fact.payload
    if not isinstance(payload, ContextResolved):
        return None
    return TurnContext(event.sequence, scope.turn_id or "", scope.task_id or "", payload)


def _list_warnings(events: Iterable[Event]) -> tuple[tuple[ContextWarning, ...], list[str]]:
    warnings: list[ContextWarning] = []
    expired: list[str] = []
    for event in events:
        match event.fact.payload:
            case WarningRaised(code=code, message=message):
                task = event.fact.scope.task_id
                warnings.append(ContextWarning(event.sequence, code, message, task))
            case OutputExpired(sha256=sha256):
                expired.append(f"output {sha256} is no longer kept")
            case ContextResolved(peer=peer, omitted=omitted):
                expired += [
                    f"{one.kind} {one.ref} was not sent to {peer}: {one.reason}" for one in omitted
                ]
            case _:
                pass
    return tuple(warnings), expired
