"""Turns one frame of a peer into facts, through the state tables and the task machine. Pure.

The frame has passed the check of its shape; the peer's ids are replaced by ours, the two state tables give the meaning
of its state, and the machines decide. The frame that callers see is on the last fact of the frame, so a reader finds
each frame once, whole, and in order. A peer cannot end a task by itself (I5), return a cancelled task to work, or
change a task that has ended (LT-12).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, assert_never

from passerelle.a2a_mapping.content import find_artifact, find_warning, fold, read_chunk
from passerelle.a2a_mapping.dialects.pause import LAST_SAID, find_last_said
from passerelle.a2a_mapping.difference import is_same_status, list_differences
from passerelle.a2a_mapping.extensions import STATE
from passerelle.a2a_mapping.frames import (
    make_status,
    remark_frame,
    task_frame,
)
from passerelle.a2a_mapping.history import complete_history, count_left_out, restore_message
from passerelle.a2a_mapping.identity import Relabel, make_relabel, relabel, relabel_message
from passerelle.a2a_mapping.members import object_at, objects_at, text_at
from passerelle.a2a_mapping.replies import (
    ArtifactReply,
    MessageReply,
    StatusReply,
    TaskReply,
    name_task,
    read_native_ids,
    read_reply,
)
from passerelle.a2a_mapping.states import (
    COMPLETED,
    INTERRUPTED_STATES,
    SUBMITTED,
    TERMINAL_STATES,
    UNKNOWN_STATE,
    map_peer_state,
)
from passerelle.core.events import Fact
from passerelle.core.payloads.conversation import ThreadUpdated
from passerelle.core.payloads.run import RunStatus
from passerelle.core.payloads.runtime import WarningRaised
from passerelle.core.task import machine as tasks
from passerelle.core.task.commands import (
    ObserveOutput,
    ObserveStatus,
)
from passerelle.core.task.status import HELD, UNDRIVEN, Status
from passerelle.core.wire.times import format_ms
from passerelle.delegation.runs.artifacts import check_number, settle_artifact, settle_artifacts
from passerelle.delegation.runs.completion import complete, measure
from passerelle.delegation.runs.limits import enforce
from passerelle.delegation.runs.peer_states import apply_state, read_status, read_status_message
from passerelle.delegation.runs.repeats import is_dropped

if TYPE_CHECKING:
    from passerelle.core.wire.json import JsonObject
    from passerelle.delegation.runs.draft import DecisionDraft

_SHORTENED: Final = "the agent's messages exceed the history limit; the oldest are left out"


def observe(draft: DecisionDraft, result: JsonObject) -> None:
    """Turns one answer of the peer into facts; an answer that is not A2A only becomes a warning (EVC-19).

    An answer that exceeds one append sets ``step.more``: once the first part is stored, it is observed again.

    Raises:
        TooLarge: more artifacts than a task may have.
    """
    if draft.is_full():
        draft.more = True
        return
    run = draft.record.run
    if run is not None and run.remote_task_id is not None:
        result = name_task(result, run.remote_task_id)
    reply = read_reply(result)
    draft.step_id = draft.context.mint("step")
    match reply:
        case TaskReply() | StatusReply() | ArtifactReply():
            if _is_late(draft):
                return
            native_task, native_context = read_native_ids(reply)
            if not isinstance(reply, TaskReply):
                _judge_task(draft, native_task)
            _learn_context(draft, native_context)
            if draft.record.status in HELD:
                _note(draft, reply)
            else:
                _observe_frame(draft, reply, relabel_for(draft, native_task, native_context))
                _measure(draft)
        case MessageReply(message=message):
            if _is_late(draft):
                return
            if _is_awaited(draft):
                wrapped = _wrap_message(draft, message)
                _observe_frame(draft, wrapped, relabel_for(draft, *read_native_ids(wrapped)))
            else:
                _observe_message(draft, message)
        case _:
            _warn(draft, "malformed_frame", reply.reason)


def _is_awaited(draft: DecisionDraft) -> bool:
    """Whether a bare Message counts as a task, or as its end: callers see a task, and the peer made none (LT-8)."""
    if draft.context.content is None:
        return draft.context.always_task
    run = draft.record.run
    return run is not None and run.remote_task_id is None


def _measure(draft: DecisionDraft) -> None:
    record = draft.record
    if record.acceptance and record.withheld is None and record.status not in UNDRIVEN:
        measure(draft, is_done=False)


def _is_late(draft: DecisionDraft) -> bool:
    record = draft.record
    if record.status in UNDRIVEN:
        _warn(draft, "late_frame", "the peer sent an update after the end; it is ignored")
        return True
    # Its last frame is withheld already; another one matters only for a cancel.
    return record.withheld is not None and record.status is not Status.CANCELLING


def _note(draft: DecisionDraft, reply: TaskReply | StatusReply | ArtifactReply) -> None:
    """Handles a frame of a paused or blocked task: the peer's state is recorded, and nothing follows from it (CMD-8).

    The next driver polls the peer first, and so reads the whole task.
    """
    if isinstance(reply, ArtifactReply):
        return
    run, native = draft.record.run, read_native_ids(reply)[0]
    reported = RunStatus(
        native_status=reply.native_status,
        remote_task_id=native if run and native and run.remote_task_id != native else None,
    )
    draft.add(draft.decide(ObserveStatus(Status.RUNNING, reported, draft.step_id)))


def _warn(draft: DecisionDraft, code: str, reason: str) -> None:
    draft.note(WarningRaised(code, reason))


def relabel_for(draft: DecisionDraft, native_task: str, native_context: str) -> Relabel:
    """Maps the peer's ids to ours: of every run of the task, of tasks referred to, and the two in this frame."""
    facade, context_id = draft.facade, draft.context.context_id
    known = {**draft.context.referred}
    for attempt in draft.record.attempts:
        if attempt.remote_task_id:
            known[attempt.remote_task_id] = facade
        if attempt.remote_context_id:
            known[attempt.remote_context_id] = context_id
    if native_task:
        known[native_task] = facade
    if native_context:
        known[native_context] = context_id
    return make_relabel(facade, context_id, known)


def _judge_task(draft: DecisionDraft, native: str) -> None:
    """An update for another task id than the stream's counts for this task; that is noted once."""
    run = draft.record.run
    if run is None or draft.names_foreign or draft.context.names_foreign:
        return
    if run.remote_task_id is not None and native != run.remote_task_id:
        draft.names_foreign = True
        _warn(
            draft,
            "foreign_task_id",
            "the peer has sent an update of another task id in this stream",
        )


def _learn_context(draft: DecisionDraft, native: str) -> None:
    """Records the context id of a peer that uses another one than we minted: from now on it is used (A2A-4)."""
    run = draft.record.run
    if run is None or not native or native == run.remote_context_id:
        return
    scope = tasks.scope_of(draft.record, draft.step_id)
    draft.add([Fact(scope, RunStatus(remote_context_id=native))])
    if draft.record.assigned_thread != draft.record.thread_id:
        return  # it belongs to the thread that runs the task
    updated = ThreadUpdated(peer=draft.context.peer, remote_context_id=native, context_mode="omit")
    draft.add([Fact(scope, updated)])


def _observe_frame(
    draft: DecisionDraft, reply: TaskReply | StatusReply | ArtifactReply, ids: Relabel
) -> None:
    context = draft.context
    match reply:
        case TaskReply(task=task):
            ours = _restore_input(draft, _cover(draft, relabel(task, "Task", ids)))
            if context.content is None:
                ours = complete_history(ours, context.accepted)
                for artifact in objects_at(ours, "artifacts"):
                    draft.growth.take(artifact)
                _take_metadata(draft, ours, ours)
                if not settle_artifacts(draft, objects_at(ours, "artifacts"), task):
                    return
                context.content, frames = ours, draft.frames
                apply_state(draft, task_frame(ours), reply.native_status, task, None)
                if draft.frames == frames:
                    context.content = None
                return
            check_number(len(objects_at(ours, "artifacts")))
            frames = draft.frames
            _take_differences(draft, context.content, ours, reply)
            if draft.more:
                return
            if draft.frames == frames and _asks_again(draft, ours):
                update: JsonObject = {
                    "taskId": draft.facade,
                    "contextId": context.context_id,
                    "status": ours["status"],
                }
                apply_state(
                    draft, {"statusUpdate": update}, reply.native_status, task, context.content
                )
        case StatusReply(event=event):
            native: JsonObject = {
                "id": text_at(event, "taskId"),
                "contextId": text_at(event, "contextId"),
                "status": event["status"],
                # Some peers put what they wait for into an artifact, or into the message before.
                "artifacts": (context.content or {}).get("artifacts", []),
                LAST_SAID: find_last_said(context.content or {}),
            }
            update = _cover(draft, relabel(event, "TaskStatusUpdateEvent", ids))
            _take(draft, {"statusUpdate": update}, native, event, reply.native_status)
        case ArtifactReply(event=event):
            update = relabel(event, "TaskArtifactUpdateEvent", ids)
            _take(draft, {"artifactUpdate": update}, {}, event)
        case _:
            assert_never(reply)


def _take_differences(
    draft: DecisionDraft, known: JsonObject, ours: JsonObject, reply: TaskReply
) -> None:
    task, status = reply.task, ours["status"]
    waits = text_at(object_at(ours, "status"), "state") in INTERRUPTED_STATES
    waits_on = waits and is_same_status(known, ours)
    for frame in list_differences(known, ours):
        if draft.more or draft.is_full():
            draft.more = True
            return
        shown = object_at(frame, "statusUpdate").get("status", status)
        if waits and shown != status:
            # What it sent before it asked: its earlier work closes no question, and is no news while one is open.
            if not waits_on:
                _show_missed(draft, frame)
            continue
        covered = object_at(frame, "statusUpdate").get("status") == status != task["status"]
        _take(draft, frame, task, task, reply.native_status if covered else "")


def _show_missed(draft: DecisionDraft, frame: JsonObject) -> None:
    text, message_id = read_status_message(object_at(frame, "statusUpdate"))
    reported = RunStatus(text=text, message_id=message_id)
    folded = fold(draft.context.content, frame)
    draft.context.content = complete_history(folded, draft.context.accepted) if folded else folded
    draft.add_shown([Fact(tasks.scope_of(draft.record, draft.step_id), reported)], frame)


def _asks_again(draft: DecisionDraft, ours: JsonObject) -> bool:
    """Whether a peer that has our answer still waits: its status may be the same as before."""
    waits = text_at(object_at(ours, "status"), "state") in INTERRUPTED_STATES
    return waits and draft.record.status is Status.RUNNING and not draft.record.open_actions


def _restore_input(draft: DecisionDraft, ours: JsonObject) -> JsonObject:
    """Our message as its caller wrote it, where it was sent with another id, or as a hook has changed it."""
    run, accepted = draft.record.run, draft.context.accepted
    if run is None or not accepted or (run.ordinal == 1 and run.updated_input is None):
        return ours
    return restore_message(ours, run.message_id, accepted[0], is_whole=len(run.input_refs) == 1)


def _cover(draft: DecisionDraft, holder: JsonObject) -> JsonObject:
    """Replaces a state that A2A does not have by the last known one, and marks it: callers could not read it."""
    status = object_at(holder, "status")
    if map_peer_state(text_at(status, "state")) is not UNKNOWN_STATE:
        return holder
    last = text_at(object_at(draft.context.content or {}, "status"), "state") or SUBMITTED
    metadata: JsonObject = {**object_at(holder, "metadata"), STATE: {"known": False}}
    return {**holder, "status": {**status, "state": last}, "metadata": metadata}


def _take(
    draft: DecisionDraft, frame: JsonObject, native: JsonObject, answer: JsonObject, state: str = ""
) -> None:
    """Folds one frame in our ids into the content, then passes it to the machine.

    ``answer`` is the peer's answer with the frame, ``state`` the state in it, if the frame shows another.
    """
    context = draft.context
    before, frames, is_chunk = context.content, draft.frames, "artifactUpdate" in frame
    if is_chunk and (warning := find_warning(before, frame)):
        _warn(draft, "unopened_artifact", warning)
    folded = fold(before, frame)
    if folded is None or ("statusUpdate" in frame and is_dropped(draft, before, folded, state)):
        return
    if (
        not is_chunk
        and _ends(frame, state)
        and not settle_artifacts(draft, objects_at(folded, "artifacts"), answer)
    ):
        return
    context.content = complete_history(folded, context.accepted)
    if not is_chunk and count_left_out(folded) and not count_left_out(before):
        _warn(draft, "history_shortened", _SHORTENED)
    if is_chunk:
        _take_chunk(draft, frame)
    else:
        _take_metadata(draft, object_at(frame, "statusUpdate"), folded)
        shown = text_at(object_at(object_at(frame, "statusUpdate"), "status"), "state")
        apply_state(draft, frame, state or shown, native, before)
    if draft.frames == frames:
        # Callers are not shown the frame, so their Task must not contain it either.
        context.content = before


def _take_metadata(draft: DecisionDraft, holder: JsonObject, task: JsonObject) -> None:
    brought = object_at(holder, "metadata")
    if brought:
        draft.growth.take_metadata(brought, task)


def _ends(frame: JsonObject, state: str) -> bool:
    """Whether a frame ends the peer's work: artifacts without a marked last chunk are whole then."""
    shown = text_at(object_at(object_at(frame, "statusUpdate"), "status"), "state")
    return (state or shown) in TERMINAL_STATES


def _take_chunk(draft: DecisionDraft, frame: JsonObject) -> None:
    event = object_at(frame, "artifactUpdate")
    piece = object_at(event, "artifact")
    draft.growth.take(piece, appends=event.get("append") is True)
    chunk = read_chunk(event)
    if chunk is not None:
        draft.chunks.append(chunk)
    name = text_at(piece, "artifactId")
    if event.get("lastChunk") is True:
        artifact = find_artifact(draft.context.content or {}, name)
        facts = settle_artifact(draft, artifact) if artifact is not None else []
        if facts:
            draft.add_shown(facts, frame, "artifact")
            enforce(draft)
            return
    chunks = draft.record.progress.counters.get("chunks", 0) + 1
    output = ObserveOutput(summary=f"artifact {name[:60]}", step_id=draft.step_id, chunks=chunks)
    draft.add_shown(draft.decide(output), frame, "artifact")


def _wrap_message(draft: DecisionDraft, message: JsonObject) -> TaskReply:
    """A bare Message as a task that it completes: its parts are the artifact, and the message is its status (LT-8)."""
    at = format_ms(draft.decision.now_ms)
    artifact: JsonObject = {"artifactId": "answer", "parts": message.get("parts", [])}
    task: JsonObject = {
        "contextId": text_at(message, "contextId"),
        "status": make_status(COMPLETED, at, message),
        "artifacts": [artifact],
    }
    return TaskReply(task)


def _observe_message(draft: DecisionDraft, message: JsonObject) -> None:
    """A bare Message: the whole answer of a peer without a task, else a remark on its task (LT-1, LT-9)."""
    context, record = draft.context, draft.record
    ids = relabel_for(draft, text_at(message, "taskId"), text_at(message, "contextId"))
    if context.content is not None:
        _warn(draft, "message_after_task", "the peer answered with a message on a task it had made")
        status = object_at(context.content, "status")
        frame = remark_frame(
            draft.facade,
            context.context_id,
            relabel(message, "Message", ids),
            text_at(status, "state"),
        )
        folded = fold(context.content, frame)
        context.content = folded
        text = read_status(draft, frame, text_at(status, "state"), {})
        reported = RunStatus(text=text.text, message_id=text.message_id)
        draft.add_shown([Fact(tasks.scope_of(record, draft.step_id), reported)], frame)
        return
    reported = RunStatus(native_status="message")
    complete(draft, {"message": relabel_message(message, ids)}, reported, None)
