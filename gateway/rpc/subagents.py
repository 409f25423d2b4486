"""The calls about subagents. Most parameters are the command or query itself: its fields are documented."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from passerelle.a2a_mapping.inbound import read_send
from passerelle.a2a_mapping.members import objects_at, text_at
from passerelle.core.errors import InvalidInput
from passerelle.core.principal import AccessScope
from passerelle.core.read_models.subagents import Subagent
from passerelle.core.subagent.requests import (
    CloseSubagent,
    GetSubagent,
    GetSubagentEvents,
    ListSubagents,
    ResumeSubagent,
    SendSubagentInput,
    SpawnSubagent,
    SubagentChanged,
    SubagentEvents,
    SubagentList,
    SubagentsWaited,
    WaitSubagents,
)
from passerelle.gateway.rpc.forms import (
    SpawnSubagentParams,
    SubagentEventsParams,
    SubagentInputParams,
)
from passerelle.gateway.rpc.paging import choose_position, choose_size
from passerelle.gateway.rpc.turns import compose_message
from passerelle.runtime.common.calls import Caller, MethodRow

_READ: Final = (AccessScope.READ_TASKS, AccessScope.OVERSEE_TASKS)

_WRITE: Final = (AccessScope.WRITE_TASKS,)
_OBJECTIVE_CHARS: Final = 8_000


def _read_spawn(params: SpawnSubagentParams, caller: Caller) -> SpawnSubagent:
    message = read_send({"message": compose_message(params, caller)}).message
    texts = [text for part in objects_at(message, "parts") if (text := text_at(part, "text"))]
    return SpawnSubagent(
        agent=params.agent,
        objective="\n".join(texts)[:_OBJECTIVE_CHARS] or f"a message to {params.agent}",
        source=caller.source,
        message=message,
        title=params.title,
        parent_task_id=params.parent_task_id,
        session_id=params.session_id,
        traceparent=caller.traceparent or params.traceparent,
        tracestate=caller.tracestate,
    )


def _read_input(params: SubagentInputParams, caller: Caller) -> SendSubagentInput:
    request = read_send({"message": compose_message(params, caller)})
    if request.task_id is not None or request.context_id is not None:
        named = "taskId" if request.task_id is not None else "contextId"
        raise InvalidInput(f"message.{named}", "is set by the gateway for a subagent")
    return SendSubagentInput(
        subagent_id=params.subagent_id,
        message=request.message,
        source=caller.source,
        traceparent=caller.traceparent or params.traceparent,
        tracestate=caller.tracestate,
    )


SUBAGENT_ROWS: Final[Sequence[MethodRow]] = (
    MethodRow(
        "list_subagents",
        "The contexts of agents that a task, a thread or a session has opened",
        _READ,
        ListSubagents,
        model=SubagentList,
    ),
    MethodRow(
        "get_subagent",
        "One context of an agent, with its parent and its state",
        _READ,
        GetSubagent,
        model=Subagent,
    ),
    MethodRow(
        "get_subagent_events",
        "The events of a subagent in order",
        _READ,
        SubagentEventsParams,
        read=lambda given, _: GetSubagentEvents(
            given.subagent_id,
            choose_position(given.page_token, None),
            choose_size(given.page_size, None, 100),
        ),
        model=SubagentEvents,
    ),
    MethodRow(
        "wait_subagents",
        "Wait until any or all of some subagents have no work in progress",
        (AccessScope.READ_TASKS,),
        WaitSubagents,
        model=SubagentsWaited,
    ),
    MethodRow(
        "spawn_subagent",
        "Start work at an agent in a separate context",
        (AccessScope.CALL,),
        SpawnSubagentParams,
        SubagentChanged,
        read=_read_spawn,
        names_message=True,
    ),
    MethodRow(
        "send_subagent_input",
        "Send a further message to a subagent",
        (AccessScope.CALL,),
        SubagentInputParams,
        SubagentChanged,
        read=_read_input,
        names_message=True,
    ),
    MethodRow(
        "resume_subagent",
        "Continue a subagent after an interruption",
        _WRITE,
        ResumeSubagent,
        SubagentChanged,
    ),
    MethodRow(
        "close_subagent",
        "Stop a subagent, and close its context",
        _WRITE,
        CloseSubagent,
        SubagentChanged,
    ),
)
