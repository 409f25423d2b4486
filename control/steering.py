"""What the commands that steer a task come to: new words for it, its progress, a pause and its end. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, assert_never

import orjson

from passerelle.core.errors import InvalidInput
from passerelle.core.payloads.task import TaskProgress
from passerelle.core.task import commands as tell
from passerelle.core.task import machine as tasks
from passerelle.core.task.constraints import read_constraints
from passerelle.core.task.requests import AppendTaskProgress, PauseTask, ResumeTask

if TYPE_CHECKING:
    from passerelle.core.events import Fact
    from passerelle.core.task.record import TaskRecord
    from passerelle.core.task.requests import CreateTask, UpdateTask
    from passerelle.core.wire.json import Json, JsonObject

CONTENT_BYTES: Final = 8_192
"""A record is read and written whole with every frame of the agent, so what describes it stays small."""
_WORDS: Final = ("title", "objective", "priority", "assignee")
_CONTENT: Final = ("constraints", "profile", "acceptance", "metadata")


def check_content(command: CreateTask | UpdateTask) -> None:
    """Raises InvalidInput for a member of free content that is too large, and for a constraint that is none."""
    for name in _CONTENT:
        given = getattr(command, name)
        if given is not None and len(orjson.dumps(given)) > CONTENT_BYTES:
            raise InvalidInput(name, f"is larger than {CONTENT_BYTES} bytes")
    if command.constraints is not None:
        read_constraints(command.constraints)


def decide_update(record: TaskRecord, command: UpdateTask) -> list[Fact]:
    """``task.updated`` with what is different now, and nothing where nothing is.

    Raises:
        UnsupportedOperation: the task has ended (LT-12).
    """
    changed: dict[str, JsonObject] = {}
    for name in (*_WORDS, *_CONTENT):
        new = getattr(command, name)
        old = getattr(record, name)
        if new is not None and new != old:
            changed[name] = {"old": _as_json(old), "new": _as_json(new)}
    facts = tasks.decide(record, tell.UpdateTask(changed))
    return facts if changed else []


def _as_json(value: Json | tuple[Json, ...]) -> Json:
    return [*value] if isinstance(value, tuple) else value


def decide_steering(
    record: TaskRecord, command: AppendTaskProgress | PauseTask | ResumeTask, actor: str
) -> list[Fact]:
    """``task.progress``, ``task.paused``, or ``task.resumed`` with where the task goes back to; one for each command.

    Raises:
        UnsupportedOperation: the status does not allow it.
        InvalidInput: progress that says nothing, or a delivery without the consumer that it is about.
    """
    match command:
        case AppendTaskProgress():
            return tasks.decide(record, tell.ReportProgress(_compose_progress(command)))
        case PauseTask(reason=reason):
            return tasks.decide(record, tell.PauseTask(actor, reason))
        case ResumeTask(reason=reason):
            return tasks.decide(record, tell.ResumeTask(reason or f"resumed by {actor}"))
        case _:
            assert_never(command)


def _compose_progress(command: AppendTaskProgress) -> TaskProgress:
    if (command.delivery is None) != (command.consumer is None):
        name = "delivery" if command.delivery is None else "consumer"
        raise InvalidInput(name, "consumer and delivery go together")
    progress = TaskProgress(
        phase=command.phase,
        percent=command.percent,
        step=command.step,
        summary=command.summary,
        counters=command.counters,
        checklist=command.checklist,
        outputs=command.outputs,
        consumer=command.consumer,
        delivery=command.delivery,
    )
    if progress == TaskProgress():
        raise InvalidInput("progress", "says nothing")
    return progress
