"""Read models of a session's history: a window of it, and the part that an agent was given.

A window is a range of the stream (SNAP-1, VAL-7) with a fixed number of events, so reading it costs the same in old and
new sessions. Only events of the conversation become items; content is referenced by sequence and shown as a preview.

An agent was given each message unchanged, since nothing is selected (SNAP-6).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import field
from typing import Final, Literal, TypeAlias

from passerelle.core.events import Event
from passerelle.core.facts import Ref
from passerelle.core.payloads.context import CompactionCompleted
from passerelle.core.payloads.conversation import TurnCompleted, TurnFailed, TurnSubmitted
from passerelle.core.payloads.history import RollbackCompleted
from passerelle.core.payloads.run import ArtifactChanged, RunStatus
from passerelle.core.read_models.mark import FreshnessMark, not_applicable, unavailable
from passerelle.core.read_models.task import name_task
from passerelle.core.session.boundaries import SUMMARY
from passerelle.core.task.record import TaskRecord
from passerelle.core.wire.record import change, record

PREVIEW: Final = 500
ItemKind: TypeAlias = Literal[
    "message", "said", "artifact", "answer", "failure", "rollback", "summary"
]


@record
class HistoryItem:
    """One item of the conversation."""

    sequence: int
    at: str
    kind: ItemKind
    role: Literal["user", "agent", "gateway"]
    thread_id: str | None = None
    turn_id: str | None = None
    task_id: str | None = None
    run_id: str | None = None
    text: str | None = None
    ref: str | None = None
    """The message, artifact, error or boundary concerned."""
    rolled_back: Literal[True] | None = None
    """Its task was rolled back."""


@record
class HistoryWindow:
    """The items among the events ``first`` to ``last``. Pass ``before`` to read the previous window."""

    first: int
    last: int
    items: tuple[HistoryItem, ...]
    before: int | None = None
    marks: dict[str, FreshnessMark] = field(default_factory=dict[str, FreshnessMark])


def show_history(
    events: Sequence[Event],
    wanted_first: int,
    last: int,
    kept_from: int,
    gone: Collection[str] = (),
    *,
    after: int = 0,
) -> HistoryWindow:
    """The window from ``wanted_first`` to ``last``; the stream has its events from ``kept_from`` on.

    ``gone`` are rolled back tasks; events up to ``after`` were not requested.
    """
    first = max(wanted_first, kept_from)
    shown = (item for event in events if (item := _show(event)) is not None)
    items = tuple(
        change(item, rolled_back=True) if item.task_id in gone else item for item in shown
    )
    if first > max(kept_from, after + 1):
        return HistoryWindow(first, last, items, before=first)
    if after and first == after + 1:
        mark = not_applicable(f"events up to {after} were not requested")
    elif kept_from > 1:
        mark = unavailable(f"events before {kept_from} are no longer in the stream")
    else:
        mark = not_applicable("this is the beginning")
    return HistoryWindow(first, last, items, marks={"before": mark})


def _show(event: Event) -> HistoryItem | None:
    match event.fact.payload:
        case TurnSubmitted(message_id=ref, preview=text):
            return _item(event, "message", "user", text, ref)
        case RunStatus(text=str(text), message_id=ref):
            return _item(event, "said", "agent", text, ref)
        case ArtifactChanged(artifact_id=ref, name=name):
            return _item(event, "artifact", "agent", name, ref)
        case TurnCompleted(answer=answer, status=status):
            return _item(event, "answer", "agent", status, answer)
        case TurnFailed(error=error):
            return _item(event, "failure", "gateway", error.message, error.code)
        case RollbackCompleted(boundary_id=ref, to_turn=turn):
            return _item(event, "rollback", "gateway", turn, ref)
        case CompactionCompleted(boundary_id=ref):
            summary = event.fact.refs.get(SUMMARY)
            return _item(event, "summary", "user", summary.preview if summary else None, ref)
        case _:
            return None


def _item(
    event: Event,
    kind: ItemKind,
    role: Literal["user", "agent", "gateway"],
    text: str | None,
    ref: str | None,
) -> HistoryItem:
    scope = event.fact.scope
    return HistoryItem(
        sequence=event.sequence,
        at=event.timestamp,
        kind=kind,
        role=role,
        thread_id=scope.thread_id,
        turn_id=scope.turn_id,
        task_id=scope.task_id,
        run_id=scope.run_id,
        text=text[:PREVIEW] if text is not None else None,
        ref=ref,
    )


_NONE: Final[tuple[str, ...]] = ("summaries", "warnings", "missing")


@record
class ContextBoundary:
    """The inputs of a task, by their sequences in the stream."""

    task_id: str
    sequence: int
    selected: tuple[Ref, ...]
    warnings: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    marks: dict[str, FreshnessMark] = field(default_factory=dict[str, FreshnessMark])


def show_context(task: TaskRecord) -> ContextBoundary:
    """The boundary of a record."""
    mark = not_applicable("attachments and summaries belong to threads, not to tasks")
    selected = tuple(Ref(sequence=sequence) for sequence in task.inputs)
    return ContextBoundary(name_task(task), task.last, selected, marks=dict.fromkeys(_NONE, mark))
