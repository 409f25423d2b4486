"""The effect of a peer's state on its task, by the table of states, and what callers see of it.

Pure. ``observation.py`` handles the rest of a frame before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, assert_never

from passerelle.a2a_mapping.answer_metadata import read_words
from passerelle.a2a_mapping.content import fold
from passerelle.a2a_mapping.dialects.presentation import show_parts
from passerelle.a2a_mapping.frames import make_message, show_state
from passerelle.a2a_mapping.history import complete_history
from passerelle.a2a_mapping.members import object_at, objects_at, text_at
from passerelle.a2a_mapping.states import CANCELED, WORKING, Follow, map_peer_state
from passerelle.core.events import Fact
from passerelle.core.facts import ErrorCategory, ErrorDetail
from passerelle.core.ids import derive_id, shard_of
from passerelle.core.payloads.run import RunStatus
from passerelle.core.payloads.runtime import WarningRaised
from passerelle.core.payloads.task import TaskCancelled
from passerelle.core.task import machine as tasks
from passerelle.core.task.commands import ConfirmCancel, FailRun, ObserveStatus
from passerelle.core.task.status import WAITING, Status
from passerelle.delegation.runs.completion import PEER_LOST_APPROVAL, complete, find_lost
from passerelle.delegation.runs.failure import RunEnd, end_run
from passerelle.delegation.runs.limits import enforce

if TYPE_CHECKING:
    from passerelle.core.wire.json import JsonObject
    from passerelle.delegation.runs.draft import DecisionDraft


def apply_state(
    draft: DecisionDraft,
    frame: JsonObject,
    state: str,
    native: JsonObject,
    before: JsonObject | None,
) -> None:
    """Applies a state of the peer by the table: what follows, and what callers see.

    ``before`` is the content without ``frame``.
    """
    row = map_peer_state(state)
    reported = read_status(draft, frame, state, native)
    if draft.record.status is Status.CANCELLING and row.follow not in {Follow.NOTHING, Follow.WARN}:
        if row.follow is not Follow.OPEN_ACTION:
            _end_cancelled(draft, frame, reported, "user")
        return
    match row.follow:
        case Follow.NOTHING | Follow.WARN:
            _go_on(draft, frame, reported, row.status)
        case Follow.OPEN_ACTION:
            _wait(draft, frame, reported, native, before)
        case Follow.RECONCILE:
            if (lost := find_lost(draft)) is not None:
                draft.note(WarningRaised(PEER_LOST_APPROVAL, lost))
            draft.close_actions("peer_terminal")
            complete(draft, frame, reported, before)
        case Follow.END_RUN:
            _fail(draft, frame, reported, before, rejected=row.reason == "rejected")
        case Follow.CANCEL:
            _end_cancelled(draft, frame, reported, "peer")
        case _:
            assert_never(row.follow)


def _go_on(draft: DecisionDraft, frame: JsonObject, reported: RunStatus, status: Status) -> None:
    if _waits_on(draft, reported):
        return
    if status is Status.RUNNING:
        draft.close_actions("peer_moved_on")
    facts = draft.decide(ObserveStatus(status, reported, draft.step_id))
    draft.add_shown(facts or [Fact(tasks.scope_of(draft.record, draft.step_id), reported)], frame)


def _waits_on(draft: DecisionDraft, reported: RunStatus) -> bool:
    """Whether a peer repeats the state in which it refused an answer: its task still waits."""
    run = draft.record.run
    return (
        run is not None
        and draft.record.status in WAITING
        and reported.native_status == run.waits_on
        and reported.message_id in {None, run.status_message_id}
    )


def _wait(
    draft: DecisionDraft,
    frame: JsonObject,
    reported: RunStatus,
    native: JsonObject,
    before: JsonObject | None,
) -> None:
    asked = draft.asks(draft, native, reported)
    if asked.parts is not None or asked.settled:
        state = WORKING if asked.settled else None
        own = _make_own_message(draft)
        frame = show_parts(frame, asked.parts, state, own, with_native=asked.native)
        # Folded in place of the peer's own message, which would otherwise be in the history next to ours.
        shown = fold(before, frame)
        draft.context.content = complete_history(shown, draft.context.accepted) if shown else None
    draft.add_shown(asked.facts, frame)
    enforce(draft)
    # A peer that still shows the question whose answer it was just sent has not answered that turn.
    if draft.record.status in WAITING:
        draft.end_turn("task")


def _make_own_message(draft: DecisionDraft) -> JsonObject:
    """A message for our parts where the peer's status has none, as when it asks in an artifact.

    A repeated pause gets the same id: history keeps a message once.
    """
    pauses = draft.record.occurrences.values()
    message_id = derive_id("msg", shard_of(draft.facade), "asked", draft.facade, *pauses)
    return make_message(message_id, draft.facade, draft.context.context_id, [])


def read_status(
    draft: DecisionDraft, frame: JsonObject, state: str, native: JsonObject
) -> RunStatus:
    """The record of a status; ``native`` names the task as its peer does."""
    holder = object_at(frame, "task") or object_at(frame, "statusUpdate")
    text, message_id = read_status_message(holder)
    words = read_words(holder)
    run = draft.record.run
    remote = text_at(native, "id")
    return RunStatus(
        native_status=state,
        text=text,
        message_id=message_id,
        phase=words.phase,
        title=words.title,
        detail=words.detail,
        checkpoints=words.checkpoints,
        metadata=words.metadata,
        remote_task_id=remote if run and remote and run.remote_task_id != remote else None,
    )


def read_status_message(holder: JsonObject) -> tuple[str | None, str | None]:
    """Text and id of the message in the status of a Task or a status update."""
    message = object_at(object_at(holder, "status"), "message")
    text = "\n".join(filter(None, (text_at(part, "text") for part in objects_at(message, "parts"))))
    return text[:2000] or None, text_at(message, "messageId") or None


def _fail(
    draft: DecisionDraft,
    frame: JsonObject,
    reported: RunStatus,
    before: JsonObject | None,
    *,
    rejected: bool,
) -> None:
    draft.close_actions("peer_terminal")
    draft.add([Fact(tasks.scope_of(draft.record, draft.step_id), reported)])
    state = reported.native_status
    failure = ErrorDetail(
        code="rejected" if rejected else "peer_failed",
        category=ErrorCategory.PEER,
        message=reported.text or f"the agent ended the task with {state}",
        source=draft.context.peer,
        native=state,
    )
    ended = RunEnd(failure, native=state, rejected=rejected, frame=frame, before=before)
    end_run(draft, ended)


def _end_cancelled(
    draft: DecisionDraft, frame: JsonObject, reported: RunStatus, source: str
) -> None:
    """Ends a cancelled task. A peer that completed in the race keeps its ``native_status``, and its artifacts."""
    draft.close_actions("task_cancelled" if source == "user" else "peer_terminal")
    draft.add([Fact(tasks.scope_of(draft.record, draft.step_id), reported)])
    record, state = draft.record, reported.native_status
    by_us = record.cancel_requested_by is not None
    failure = ErrorDetail(
        "cancelled", ErrorCategory.CALLER if by_us else ErrorCategory.PEER, "stopped"
    )
    draft.add(draft.decide(FailRun(Status.CANCELLED, failure, state)))
    cancelled = TaskCancelled(
        actor=record.cancel_requested_by or draft.context.peer,
        source=record.cancel_source or ("user" if source == "user" else "peer"),
        native_status=state,
    )
    draft.add_shown(draft.decide(ConfirmCancel(cancelled)), show_state(frame, CANCELED))
    draft.context.content = fold(draft.context.content, show_state(frame, CANCELED))
    draft.end_turn("task")
