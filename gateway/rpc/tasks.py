"""The calls about tasks, sessions, threads and running turns, and those that return read models of them.

Most parameters are the command or query itself: its fields are documented.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from passerelle.a2a_mapping.inbound import read_send
from passerelle.core.commands import (
    CancelTask,
    GetArchived,
    GetOutput,
    GetRecord,
    GetSession,
    GetSessionTasks,
    GetTaskModel,
    GetThread,
    GetThreadContext,
    TaskModel,
)
from passerelle.core.principal import AccessScope
from passerelle.core.read_models.artifacts import ArtifactSummary, OutputContent
from passerelle.core.read_models.attempts import AttemptHistory
from passerelle.core.read_models.channels import ChannelSummary
from passerelle.core.read_models.delivery import DeliveryState
from passerelle.core.read_models.explanation import Explanation
from passerelle.core.read_models.history import ContextBoundary
from passerelle.core.read_models.routing import RoutingSummary
from passerelle.core.read_models.session import ArchiveContent, SessionSnapshot
from passerelle.core.read_models.subagents import SubagentSummary
from passerelle.core.read_models.task import TaskLine, TaskObjects
from passerelle.core.read_models.tasks import TaskGraph, TaskSnapshot
from passerelle.core.read_models.thread import ThreadModel
from passerelle.core.read_models.thread_context import ThreadContext
from passerelle.core.session.device_requests import (
    AckEvents,
    ChannelReconnected,
    EventsAcked,
    GetChannels,
    NoticeSent,
    ReconnectChannel,
    SendNotice,
)
from passerelle.core.session.requests import (
    CompactThread,
    DescribeSession,
    GetTurnQueue,
    InterruptTurn,
    ListSessions,
    OpenSession,
    PromoteQueuedTurn,
    RemoveQueuedTurn,
    ResumeThread,
    RollBackThread,
    SessionChanged,
    SetQueuePolicy,
    ThreadCompacted,
    ThreadResumed,
    ThreadRolledBack,
    TurnInterrupted,
    TurnQueue,
)
from passerelle.core.session.webhook_requests import (
    DeleteStreamWebhook,
    ListStreamWebhooks,
    SetStreamWebhook,
    StreamWebhookDeleted,
    StreamWebhookSet,
)
from passerelle.core.task.bulk import ChangeTasks, TasksChanged
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
from passerelle.gateway.rpc.forms import (
    ArchivedParams,
    CancelAnswer,
    CancelTaskParams,
    OutputParams,
    SessionParams,
    SessionWindowParams,
    StartTaskParams,
    TaskParams,
    ThreadParams,
)
from passerelle.gateway.rpc.turns import compose_message
from passerelle.runtime.common.calls import Caller, MethodRow

_READ: Final = (AccessScope.READ_TASKS, AccessScope.OVERSEE_TASKS)
"""A caller that may oversee tasks may also read its own."""
_WRITE: Final = (AccessScope.WRITE_TASKS,)


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


def _change(name: str, summary: str, command: type[Any]) -> MethodRow:
    """A row whose params are the command."""
    return MethodRow(name, summary, _WRITE, command, TaskChanged)


def _steer(name: str, summary: str, command: type[Any]) -> MethodRow:
    """The same, also for callers that may operate tasks."""
    scopes = (AccessScope.WRITE_TASKS, AccessScope.OPERATE_TASKS)
    return MethodRow(name, summary, scopes, command, TaskChanged)


TASK_ROWS: Final[Sequence[MethodRow]] = (
    MethodRow(
        "list_tasks",
        "The tasks of the caller, the newest change of status first",
        _READ,
        ListRecords,
    ),
    MethodRow(
        "get_task",
        "The local record of a task",
        _READ,
        TaskParams,
        read=lambda params, _: GetRecord(params.task_id),
    ),
    _change("create_task", "Create a task for an agent, without starting it", CreateTask),
    MethodRow(
        "start_task",
        "Send a task to its agent",
        _WRITE,
        StartTaskParams,
        TaskChanged,
        read=_read_start,
        names_message=True,
    ),
    _change("update_task", "Change the details of a task", UpdateTask),
    MethodRow("give_task", "Transfer a task to another owner", _WRITE, GiveTask, TaskGiven),
    _change("append_task_progress", "Set the progress of a task", AppendTaskProgress),
    _steer("pause_task", "Pause a task: send nothing for it until it is resumed", PauseTask),
    _steer("resume_task", "Resume a task that is paused or blocked", ResumeTask),
    MethodRow(
        "cancel_task",
        "Stop a task",
        (AccessScope.CALL, AccessScope.WRITE_TASKS, AccessScope.OPERATE_TASKS),
        CancelTaskParams,
        CancelAnswer,
        read=lambda params, _: CancelTask(
            params.task_id, reason=params.reason, propagation=params.propagation
        ),
    ),
    _change("complete_task", "Complete a task, if nothing is missing", CompleteTask),
    _change("fail_task", "End a task with an error", FailTask),
    _steer("retry_task", "Retry a task that has ended or is lost", RetryTask),
    _change("link_tasks", "Create an edge from a task", LinkTasks),
    _change("unlink_tasks", "Mark an edge as removed", UnlinkTasks),
    MethodRow(
        "change_tasks",
        "Cancel, pause, resume or retry every task that a filter matches, if their number is the expected one",
        _WRITE,
        ChangeTasks,
        TasksChanged,
    ),
)


def _row(name: str, summary: str, params: type[Any], result: type[Any] | None = None) -> MethodRow:
    scope = AccessScope.READ_TASKS if result is None else AccessScope.WRITE_TASKS
    return MethodRow(name, summary, (scope,), params, result)


_FOLLOW: Final = (
    AccessScope.READ_TASKS,
    AccessScope.CALL,
    AccessScope.READ_APPROVALS,
    AccessScope.DECIDE,
    AccessScope.OVERSEE_TASKS,
)
"""The stream decides which of them it needs."""

SESSION_ROWS: Final[Sequence[MethodRow]] = (
    _row("list_sessions", "The sessions of the caller, the newest activity first", ListSessions),
    _row("open_session", "Open a session with a title", OpenSession, SessionChanged),
    _row(
        "update_session", "Change the title or labels of a session", DescribeSession, SessionChanged
    ),
    _row("interrupt_turn", "Stop the running work of a session", InterruptTurn, TurnInterrupted),
    MethodRow(
        "ack_events",
        "Acknowledge a stream up to a cursor, for a device",
        _FOLLOW,
        AckEvents,
        EventsAcked,
    ),
    MethodRow(
        "reconnect_channel",
        "The state of a stream, and the events that a device has missed",
        _FOLLOW,
        ReconnectChannel,
        ChannelReconnected,
    ),
    MethodRow(
        "send_notice",
        "Send a notice or a status from a device",
        (AccessScope.CONNECT,),
        SendNotice,
        NoticeSent,
    ),
    MethodRow(
        "set_stream_webhook",
        "Deliver a stream to a URL, in signed batches",
        _FOLLOW,
        SetStreamWebhook,
        StreamWebhookSet,
    ),
    MethodRow(
        "delete_stream_webhook",
        "Remove a webhook of a stream",
        _FOLLOW,
        DeleteStreamWebhook,
        StreamWebhookDeleted,
    ),
    MethodRow(
        "list_stream_webhooks",
        "The webhooks of a stream, with their cursors",
        _FOLLOW,
        ListStreamWebhooks,
    ),
    _row("resume_thread", "Follow the running work of a thread", ResumeThread, ThreadResumed),
    _row(
        "roll_back_thread", "Return a thread to the end of a turn", RollBackThread, ThreadRolledBack
    ),
    _row("compact_thread", "Add a summary of turns", CompactThread, ThreadCompacted),
    MethodRow(
        "get_turn_queue",
        "The waiting turns of a thread in order",
        (AccessScope.READ_TASKS,),
        GetTurnQueue,
        model=TurnQueue,
    ),
    _row("promote_queued_turn", "Move a waiting turn to the front", PromoteQueuedTurn, TurnQueue),
    _row(
        "remove_queued_turn",
        "Remove a waiting turn; its task is cancelled",
        RemoveQueuedTurn,
        TurnQueue,
    ),
    _row(
        "set_queue_policy",
        "Set the policy for messages to a thread that is working",
        SetQueuePolicy,
        TurnQueue,
    ),
)


def _task_model(name: str, model: TaskModel, summary: str, kind: type[Any]) -> MethodRow:
    return MethodRow(
        name,
        summary,
        _READ,
        TaskParams,
        read=lambda params, _: GetTaskModel(params.task_id, model),
        model=kind,
    )


MODEL_ROWS: Final[Sequence[MethodRow]] = (
    MethodRow(
        "get_session",
        "A session with its threads and a page of its history",
        _READ,
        SessionWindowParams,
        read=lambda params, _: GetSession(
            params.session_id, params.limit, params.before, params.after
        ),
        model=SessionSnapshot,
    ),
    MethodRow(
        "get_archived",
        "A whole archived session, by its reference",
        _READ,
        ArchivedParams,
        read=lambda params, _: GetArchived(params.ref, params.after, params.limit),
        model=ArchiveContent,
    ),
    MethodRow(
        "get_session_tasks",
        "The tasks of a session: sets, counts, graph, attempts, blockers, delivery",
        _READ,
        SessionParams,
        read=lambda params, _: GetSessionTasks(params.session_id),
        model=TaskSnapshot,
    ),
    MethodRow(
        "get_channels",
        "Connections of a session: devices, agents, and pending approvals",
        _READ,
        GetChannels,
        model=ChannelSummary,
    ),
    MethodRow(
        "get_thread",
        "A thread with its tasks, approvals and errors",
        _READ,
        ThreadParams,
        read=lambda params, _: GetThread(params.thread_id),
        model=ThreadModel,
    ),
    MethodRow(
        "get_thread_context",
        "A thread from its last boundary on: messages, summaries, warnings, missing content",
        _READ,
        ThreadParams,
        read=lambda params, _: GetThreadContext(params.thread_id),
        model=ThreadContext,
    ),
    _task_model("get_task_summary", "summary", "A task in one line", TaskLine),
    _task_model("get_attempts", "attempts", "The attempts of a task", AttemptHistory),
    _task_model(
        "get_artifacts", "artifacts", "The artifacts of a task, by version", ArtifactSummary
    ),
    MethodRow(
        "get_output",
        "Content that is stored separately: an artifact, a large frame, the copy of a file",
        _READ,
        OutputParams,
        read=lambda params, _: GetOutput(
            params.task_id, params.sha256, params.offset, params.limit
        ),
        model=OutputContent,
    ),
    _task_model("get_task_graph", "graph", "The edges of a task", TaskGraph),
    _task_model("get_delivery", "delivery", "Whether output reached its consumers", DeliveryState),
    _task_model(
        "get_routing", "routing", "How the agent was chosen, costs and limits", RoutingSummary
    ),
    _task_model("get_subagents", "subagents", "The contexts that agents opened", SubagentSummary),
    _task_model("get_context", "context", "What an agent was given", ContextBoundary),
    _task_model("get_objects", "objects", "Task, runs, steps, jobs and todos", TaskObjects),
    _task_model(
        "explain_task",
        "explain",
        "The reasons for the state of a task, from its events",
        Explanation,
    ),
)
