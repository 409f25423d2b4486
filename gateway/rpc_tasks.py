"""The calls about tasks. Most parameters are the command itself: its form is the documented one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from passerelle.a2a_mapping.inbound import read_send
from passerelle.core.commands import CancelTask, GetRecord
from passerelle.core.principal import Scope
from passerelle.core.task.requests import (
    AppendTaskProgress,
    CompleteTask,
    CreateTask,
    FailTask,
    GiveTask,
    LinkTasks,
    ListRecords,
    PauseTask,
    ResumeTask,
    RetryTask,
    StartTask,
    TaskChanged,
    TaskGiven,
    UnlinkTasks,
    UpdateTask,
)
from passerelle.gateway.rpc_forms import (
    CancelAnswer,
    CancelTaskParams,
    StartTaskParams,
    TaskParams,
)
from passerelle.gateway.rpc_turns import compose_message
from passerelle.runtime.common.calls import Call, Caller

_READ: Final = (Scope.READ_TASKS,)
_WRITE: Final = (Scope.WRITE_TASKS,)


def _read_start(params: StartTaskParams, caller: Caller) -> StartTask:
    message = None
    if any(given is not None for given in (params.message, params.parts, params.text)):
        message = read_send({"message": compose_message(params, caller)}).message
    return StartTask(
        task_id=params.task_id,
        source=caller.source,
        version=params.version,
        agent=params.agent,
        message=message,
        traceparent=caller.traceparent or params.traceparent,
        tracestate=caller.tracestate,
    )


def _change(name: str, summary: str, command: type[Any]) -> Call:
    """A row whose parameters are the command."""
    return Call(name, summary, _WRITE, command, lambda params, _: params, TaskChanged)


TASK_ROWS: Final[Sequence[Call]] = (
    Call(
        "list_tasks",
        "The tasks of the caller, the newest change of status first",
        _READ,
        ListRecords,
        lambda params, _: params,
    ),
    Call(
        "get_task",
        "The local record of a task",
        _READ,
        TaskParams,
        lambda params, _: GetRecord(params.task_id),
    ),
    _change("create_task", "Create a task for an agent, without starting it", CreateTask),
    Call(
        "start_task",
        "Send a task to its agent",
        _WRITE,
        StartTaskParams,
        _read_start,
        TaskChanged,
        names_message=True,
    ),
    _change("update_task", "Change what describes a task", UpdateTask),
    Call(
        "give_task",
        "Give a task to another owner",
        _WRITE,
        GiveTask,
        lambda params, _: params,
        TaskGiven,
    ),
    _change("append_task_progress", "Say how far a task is", AppendTaskProgress),
    _change("pause_task", "Send nothing more for a task until it is resumed", PauseTask),
    _change("resume_task", "Go on with a task that is paused or blocked", ResumeTask),
    Call(
        "cancel_task",
        "Stop a task",
        (Scope.CALL, Scope.WRITE_TASKS),
        CancelTaskParams,
        lambda params, _: CancelTask(
            params.task_id, reason=params.reason, propagation=params.propagation
        ),
        CancelAnswer,
    ),
    _change("complete_task", "End a task well, if every fact is there", CompleteTask),
    _change("fail_task", "End a task with an error", FailTask),
    _change("retry_task", "Try a task again that has ended or is lost", RetryTask),
    _change("link_tasks", "Make an edge from a task", LinkTasks),
    _change("unlink_tasks", "Mark an edge as removed", UnlinkTasks),
)
