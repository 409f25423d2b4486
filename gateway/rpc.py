"""The commands that ``/v1`` and channels offer: one table from a method to a command, and back to JSON.

Both edges call :func:`call` with the same method names and parameters (CMD-27), so they cannot drift apart.
A row says what may be sent (a record, whose schema is the documented one), which right it takes, and how
the answer looks.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, assert_never, cast

import structlog

from passerelle.a2a_mapping.inbound import ROLE_USER, read_send
from passerelle.a2a_mapping.rpc import Method
from passerelle.core.codec import from_wire, to_wire
from passerelle.core.commands import (
    ActionAnswered,
    CancelAccepted,
    CancelTask,
    Command,
    CommandService,
    DeletePushConfig,
    DeliveryRetried,
    GetAction,
    GetRecord,
    GetSession,
    GetSessionTasks,
    GetTaskModel,
    GetThread,
    ListActions,
    ListAgents,
    ListDeliveries,
    PushConfigDeleted,
    PushConfigSet,
    Query,
    RespondAction,
    Result,
    RetryDelivery,
    SetPushConfig,
    SubmitTurn,
    TaskModel,
    TurnAccepted,
    TurnSource,
)
from passerelle.core.errors import (
    Forbidden,
    InvalidAgentResponse,
    InvalidInput,
    PeerUnavailable,
    UnknownMethod,
)
from passerelle.core.json import Json, JsonObject
from passerelle.core.principal import Principal, Scope
from passerelle.core.read_models.artifacts import ArtifactSummary
from passerelle.core.read_models.attempts import Attempts
from passerelle.core.read_models.context import ContextBoundary
from passerelle.core.read_models.delivery import DeliveryState
from passerelle.core.read_models.explanation import Explanation
from passerelle.core.read_models.graph import TaskGraph
from passerelle.core.read_models.objects import TaskObjects
from passerelle.core.read_models.routing import RoutingSummary
from passerelle.core.read_models.session import SessionSnapshot
from passerelle.core.read_models.subagents import SubagentSummary
from passerelle.core.read_models.task import TaskLine
from passerelle.core.read_models.tasks import TaskSnapshot
from passerelle.core.read_models.thread import ThreadModel
from passerelle.gateway.a2a.refusals import veil
from passerelle.gateway.rpc_forms import (
    ActionParams,
    CancelAnswer,
    CancelTaskParams,
    DecisionAnswer,
    DeliveryParams,
    ListActionsParams,
    ListAgentsParams,
    ListDeliveriesParams,
    SessionParams,
    SessionWindowParams,
    SubmitTurnParams,
    TaskParams,
    ThreadParams,
    TurnAnswer,
)

if TYPE_CHECKING:
    from passerelle.gateway.limits.gate import Gate

IDEMPOTENCY_KEY_LIMIT: Final = 255


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks, over which edge, and under which idempotency key."""

    principal: Principal
    source: TurnSource
    idem: str | None = None
    traceparent: str | None = None
    tracestate: str | None = None


@dataclass(frozen=True, slots=True)
class Call:
    """One row. ``result`` None is a read model, whose members are those of the record that is asked for."""

    name: str
    summary: str
    scopes: tuple[Scope, ...]
    """One of these is enough."""
    params: type[Any]
    read: Callable[[Any, Caller], Command | Query]
    result: type[Any] | None = None
    keyed: bool = field(default=False)
    model: type[Any] | None = None
    """What a read model looks like, where its form is its own."""
    """Whether an idempotency key must be given."""

    @property
    def changes(self) -> bool:
        """Whether it is a command; a query has no result of its own."""
        return self.result is not None


def _read_turn(params: SubmitTurnParams, caller: Caller) -> SubmitTurn:
    request = read_send({"message": _compose_message(params, caller)})
    _require_equal("taskId", params.task_id, request.task_id)
    _require_equal("contextId", params.context_id, request.context_id)
    return SubmitTurn(
        agent=params.agent,
        message=request.message,
        source=caller.source,
        wait="none",
        task=request.task_id,
        context_id=request.context_id,
        session_id=params.session_id,
        traceparent=caller.traceparent or params.traceparent,
        tracestate=caller.tracestate,
    )


def _compose_message(params: SubmitTurnParams, caller: Caller) -> JsonObject:
    given = [name for name in ("message", "parts", "text") if getattr(params, name) is not None]
    if len(given) != 1:
        raise InvalidInput("message", "exactly one of message, parts and text is required")
    if params.message is not None:
        message: JsonObject = {"role": ROLE_USER, **params.message}
        if "messageId" not in message and "message_id" not in message:
            message["messageId"] = _derive_message_id(caller)
    else:
        parts: list[Json] = [*params.parts] if params.parts else [{"text": params.text}]
        if params.parts == []:
            raise InvalidInput("parts", "at least one part is required")
        message = {"role": ROLE_USER, "messageId": _derive_message_id(caller), "parts": parts}
    if params.task_id:
        message.setdefault("taskId", params.task_id)
    if params.context_id:
        message.setdefault("contextId", params.context_id)
    return message


def _derive_message_id(caller: Caller) -> str:
    """A function of the key, because the repeat of a request must be the same request."""
    if caller.idem is None:
        raise InvalidInput("messageId", "an idempotency key or a message with an id is required")
    name = f"{caller.principal.tenant}\0{caller.principal.id}\0{caller.idem}"
    return f"msg-{hashlib.sha256(name.encode()).hexdigest()[:32]}"


def _require_equal(name: str, outside: str | None, inside: str | None) -> None:
    if outside is not None and outside != inside:
        raise InvalidInput(name, f"differs from message.{name}")


_ROWS: Final = (
    Call(
        "submit_turn",
        "Send a message to an agent",
        (Scope.CALL,),
        SubmitTurnParams,
        _read_turn,
        TurnAnswer,
    ),
    Call(
        "get_task",
        "The local record of a task",
        (Scope.READ_TASKS,),
        TaskParams,
        lambda params, _: GetRecord(params.task_id),
    ),
    Call(
        "cancel_task",
        "Stop a task",
        (Scope.CALL, Scope.WRITE_TASKS),
        CancelTaskParams,
        lambda params, _: CancelTask(params.task_id, reason=params.reason),
        CancelAnswer,
    ),
    Call(
        "list_actions",
        "The open questions of the caller",
        (Scope.READ_APPROVALS,),
        ListActionsParams,
        lambda params, _: ListActions(params.limit),
    ),
    Call(
        "get_action",
        "One question and where it stands",
        (Scope.READ_APPROVALS,),
        ActionParams,
        lambda params, _: GetAction(params.action_id),
    ),
    Call(
        "respond_action",
        "Answer a question; the first valid answer wins",
        (Scope.DECIDE,),
        RespondAction,
        lambda params, _: cast(RespondAction, params),
        DecisionAnswer,
        keyed=True,
    ),
    Call(
        "list_agents",
        "The agents that the caller may use, with their skills",
        (Scope.CALL,),
        ListAgentsParams,
        lambda params, _: ListAgents(params.skill, params.tag),
    ),
    Call(
        "list_deliveries",
        "Webhooks whose deliveries fail",
        (Scope.READ_TASKS, Scope.OPERATE),
        ListDeliveriesParams,
        lambda params, _: ListDeliveries(params.limit),
    ),
    Call(
        "retry_delivery",
        "Try a failing webhook again now, from what it has confirmed",
        (Scope.WRITE_TASKS, Scope.OPERATE),
        DeliveryParams,
        lambda params, _: RetryDelivery(params.delivery),
        DeliveryRetried,
    ),
)


def _task_model(name: str, model: TaskModel, summary: str, kind: type[Any]) -> Call:
    return Call(
        name,
        summary,
        (Scope.READ_TASKS,),
        TaskParams,
        lambda params, _: GetTaskModel(params.task_id, model),
        model=kind,
    )


_MODELS: Final = (
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
CALLS: Final[Mapping[str, Call]] = {row.name: row for row in (*_ROWS, *_MODELS)}


async def call(
    service: CommandService,
    caller: Caller,
    method: str,
    params: JsonObject,
    gate: Gate | None = None,
) -> JsonObject:
    """Carries out one method and returns the answer as it stands on the wire.

    Raises:
        UnknownMethod: there is no such method.
        Forbidden: the caller lacks the right.
        InvalidInput: a parameter is missing, unknown or malformed; it is named by its path.
        Limited: the caller is over its rate.
        PasserelleError: whatever the service raises.
    """
    row = CALLS.get(method)
    if row is None:
        raise UnknownMethod(method)
    require_scope(caller.principal, row.scopes)
    check_key(caller.idem, required=row.keyed)
    request = row.read(from_wire(row.params, params), caller)
    if gate is not None:
        await gate.enter(caller.principal, slot=False)
    match request:
        case SubmitTurn():
            return render_result(await _submit(service, caller, request))
        case (
            CancelTask() | RespondAction() | RetryDelivery() | SetPushConfig() | DeletePushConfig()
        ):
            return render_result(await service.execute(caller.principal, request, caller.idem))
        case _:
            return await service.read(caller.principal, request)


async def _submit(service: CommandService, caller: Caller, command: SubmitTurn) -> Result:
    """Where an agent is, and how its card is wrong, is for the log: callers read what they may know."""
    if caller.principal.sees(command.agent):
        require_operation(caller.principal, command.agent, Method.SEND_MESSAGE)
    try:
        return await service.execute(caller.principal, command, caller.idem)
    except (PeerUnavailable, InvalidAgentResponse) as error:
        structlog.get_logger().warning(
            "rpc.peer", agent=command.agent, code=error.stable_code, reason=error.message
        )
        raise veil(error, command.agent) from error


def render_result(result: Result) -> JsonObject:
    """The wire form of what a command came to."""
    match result:
        case TurnAccepted():
            return to_wire(
                TurnAnswer(
                    session_id=result.session_id,
                    thread_id=result.thread_id,
                    turn_id=result.turn_id,
                    task_id=result.facade,
                    context_id=result.context_id,
                    repeated=result.repeated,
                )
            )
        case CancelAccepted():
            return to_wire(CancelAnswer(result.task))
        case ActionAnswered():
            return to_wire(DecisionAnswer(result.outcome, result.rev, result.decision))
        case DeliveryRetried():
            return to_wire(result)
        case PushConfigSet():
            return result.config
        case PushConfigDeleted():
            return {}
        case _:
            assert_never(result)


def require_scope(principal: Principal, scopes: tuple[Scope, ...]) -> None:
    """Raises Forbidden unless the principal has one of the scopes."""
    if not any(scope in principal.scopes for scope in scopes):
        raise Forbidden(f"this takes the scope {' or '.join(scopes)}", scope=scopes[0])


def require_operation(principal: Principal, agent: str, operation: str) -> None:
    """Raises Forbidden unless the grants of the principal allow an A2A operation at an agent that it sees."""
    if principal.operations and not principal.may_use(agent, operation):
        raise Forbidden(f"{operation} of {agent!r} may not be called", operation=operation)


def check_key(key: str | None, *, required: bool) -> None:
    """Raises InvalidInput for an idempotency key that is missing, empty or too long."""
    if key is None:
        if required:
            raise InvalidInput("idempotencyKey", "is required")
        return
    if not 0 < len(key) <= IDEMPOTENCY_KEY_LIMIT or not key.isprintable():
        raise InvalidInput(
            "idempotencyKey", f"is 1 to {IDEMPOTENCY_KEY_LIMIT} printable characters"
        )
