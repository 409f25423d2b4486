"""The calls that show read models of sessions, threads and tasks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from passerelle.core.commands import (
    GetOutput,
    GetSession,
    GetSessionTasks,
    GetTaskModel,
    GetThread,
    TaskModel,
)
from passerelle.core.principal import Scope
from passerelle.core.read_models.artifacts import ArtifactSummary, OutputContent
from passerelle.core.read_models.attempts import Attempts
from passerelle.core.read_models.channels import ChannelSummary
from passerelle.core.read_models.delivery import DeliveryState
from passerelle.core.read_models.explanation import Explanation
from passerelle.core.read_models.history import ContextBoundary
from passerelle.core.read_models.routing import RoutingSummary
from passerelle.core.read_models.session import SessionSnapshot
from passerelle.core.read_models.subagents import SubagentSummary
from passerelle.core.read_models.task import TaskLine, TaskObjects
from passerelle.core.read_models.tasks import TaskGraph, TaskSnapshot
from passerelle.core.read_models.thread import ThreadModel
from passerelle.core.session.device_requests import GetChannels
from passerelle.gateway.rpc_forms import (
    OutputParams,
    SessionParams,
    SessionWindowParams,
    TaskParams,
    ThreadParams,
)
from passerelle.runtime.common.calls import Call


def _task_model(name: str, model: TaskModel, summary: str, kind: type[Any]) -> Call:
    return Call(
        name,
        summary,
        (Scope.READ_TASKS,),
        TaskParams,
        lambda params, _: GetTaskModel(params.task_id, model),
        model=kind,
    )


MODEL_ROWS: Final[Sequence[Call]] = (
    Call(
        "get_session",
        "A session with its threads and a window of its history",
        (Scope.READ_TASKS,),
        SessionWindowParams,
        lambda params, _: GetSession(params.session_id, params.limit, params.before),
        model=SessionSnapshot,
    ),
    Call(
        "get_session_tasks",
        "The tasks of a session: sets, counts, graph, attempts, blockers, delivery",
        (Scope.READ_TASKS,),
        SessionParams,
        lambda params, _: GetSessionTasks(params.session_id),
        model=TaskSnapshot,
    ),
    Call(
        "get_channels",
        "Who is linked to a session: devices, agents, and questions on their way",
        (Scope.READ_TASKS,),
        GetChannels,
        lambda params, _: params,
        model=ChannelSummary,
    ),
    Call(
        "get_thread",
        "A thread with its tasks, what is asked in it, and what went wrong",
        (Scope.READ_TASKS,),
        ThreadParams,
        lambda params, _: GetThread(params.thread_id),
        model=ThreadModel,
    ),
    _task_model("get_task_summary", "summary", "A task in one line", TaskLine),
    _task_model("get_attempts", "attempts", "The attempts of a task", Attempts),
    _task_model(
        "get_artifacts", "artifacts", "The artifacts of a task, by version", ArtifactSummary
    ),
    Call(
        "get_output",
        "Content that stands elsewhere: an artifact, a large frame, the copy of a file",
        (Scope.READ_TASKS,),
        OutputParams,
        lambda params, _: GetOutput(params.task_id, params.sha256, params.offset, params.limit),
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
    _task_model("explain_task", "explain", "Why a task is as it is, from its facts", Explanation),
)
