"""The methods of ``/v1`` and of channels: one table from a method to a command or query, and back to JSON.

Both edges call :func:`call` with the same method names and parameters (CMD-27), so they cannot diverge. A row defines
the params (a record, whose schema is the documented one), the required scopes, and the form of the answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, cast

import structlog

from passerelle.core.commands import (
    ActionAnswered,
    CancelAccepted,
    CancelTask,
    Command,
    CommandService,
    DeliveryRetried,
    GetAction,
    GetCapabilities,
    GetTask,
    ListActions,
    ListAgents,
    ListDeliveries,
    PushConfigDeleted,
    PushConfigSet,
    Query,
    RecordResult,
    RespondAction,
    Result,
    RetryDelivery,
    SubmitTurn,
    TurnAccepted,
)
from passerelle.core.errors import (
    InvalidAgentResponse,
    InvalidInput,
    NotCancelable,
    NotFound,
    PeerUnavailable,
    UnknownMethod,
)
from passerelle.core.principal import AccessScope
from passerelle.core.read_models.capabilities import CapabilityPage
from passerelle.core.subagent.requests import SendSubagentInput, SpawnSubagent
from passerelle.core.task.requests import StartTask
from passerelle.core.task.status import Status
from passerelle.core.wire.codec import from_wire, to_wire
from passerelle.core.wire.json import JsonObject
from passerelle.core.wire.near import find_near
from passerelle.gateway.a2a.reply import hide_agent_details
from passerelle.gateway.rpc.evidence import EVIDENCE_ROWS
from passerelle.gateway.rpc.forms import (
    ActionParams,
    CancelAnswer,
    DecisionAnswer,
    DecisionParams,
    DeliveryParams,
    ListActionsParams,
    ListAgentsParams,
    ListDeliveriesParams,
    SubmitTurnParams,
    TurnAnswer,
)
from passerelle.gateway.rpc.jobs import JOB_ROWS
from passerelle.gateway.rpc.oversight import OVERSIGHT_ROWS
from passerelle.gateway.rpc.paging import choose_size
from passerelle.gateway.rpc.policy import DEVICE_ROWS, POLICY_ROWS
from passerelle.gateway.rpc.schedules import SCHEDULE_ROWS
from passerelle.gateway.rpc.subagents import SUBAGENT_ROWS
from passerelle.gateway.rpc.tasks import MODEL_ROWS, SESSION_ROWS, TASK_ROWS
from passerelle.gateway.rpc.turns import read_turn
from passerelle.runtime.common.calls import (
    Caller,
    MethodRow,
    name_key,
    require_scope,
    require_sending,
)

if TYPE_CHECKING:
    from passerelle.runtime.limits.gate import Gate

ANSWERING: Final = "respond_action"


def _read_decision(params: DecisionParams, caller: Caller) -> RespondAction:
    """Builds the command; without a decision id it uses the idempotency key."""
    decision_id = params.decision_id if params.decision_id is not None else caller.idem
    if decision_id is None:
        raise InvalidInput("decisionId", "is required, or an idempotency key in its place")
    return RespondAction(
        params.action_id,
        params.rev,
        params.digest,
        decision_id,
        params.option_id,
        params.content,
        params.comment,
        params.signature,
        params.mute_minutes,
    )


_ROWS: Final = (
    MethodRow(
        "submit_turn",
        "Send a message to an agent",
        (AccessScope.CALL,),
        SubmitTurnParams,
        TurnAnswer,
        read=read_turn,
        names_message=True,
    ),
    MethodRow(
        "list_actions",
        "The approvals of the caller, pending or ended",
        (AccessScope.READ_APPROVALS, AccessScope.OVERSEE_APPROVALS),
        ListActionsParams,
        read=lambda params, _: ListActions(
            choose_size(params.page_size, params.limit, 100),
            params.kind,
            params.risk,
            params.task_id,
            params.page_token,
            params.state,
            params.owners,
        ),
    ),
    MethodRow(
        "get_action",
        "One approval with its state, now or after its next change",
        (AccessScope.READ_APPROVALS, AccessScope.ASK, AccessScope.OVERSEE_APPROVALS),
        ActionParams,
        read=lambda params, _: GetAction(params.action_id, params.wait, params.rev),
    ),
    MethodRow(
        ANSWERING,
        "Decide an approval; the first valid decision wins",
        (AccessScope.DECIDE,),
        DecisionParams,
        DecisionAnswer,
        read=_read_decision,
        key_member="decisionId",
    ),
    MethodRow(
        "list_agents",
        "The agents that the caller may use, with their skills",
        (AccessScope.CALL,),
        ListAgentsParams,
        read=lambda params, _: ListAgents(params.skill, params.tag),
    ),
    MethodRow(
        "get_capabilities",
        "What this gateway supports of its scope, part by part",
        (AccessScope.CALL, AccessScope.READ_TASKS, AccessScope.READ_APPROVALS, AccessScope.OPERATE),
        GetCapabilities,
        model=CapabilityPage,
    ),
    MethodRow(
        "list_deliveries",
        "Webhooks whose deliveries fail",
        (AccessScope.READ_TASKS, AccessScope.OPERATE),
        ListDeliveriesParams,
        read=lambda params, _: ListDeliveries(
            choose_size(params.page_size, params.limit, 100), params.page_token or None
        ),
    ),
    MethodRow(
        "retry_delivery",
        "Retry a failing webhook now, from the first unconfirmed event",
        (AccessScope.WRITE_TASKS, AccessScope.OPERATE),
        DeliveryParams,
        DeliveryRetried,
        read=lambda params, _: RetryDelivery(params.delivery),
    ),
)
CALLS: Final[Mapping[str, MethodRow]] = {
    row.name: row
    for row in (
        *_ROWS,
        *TASK_ROWS,
        *SESSION_ROWS,
        *MODEL_ROWS,
        *DEVICE_ROWS,
        *POLICY_ROWS,
        *EVIDENCE_ROWS,
        *SCHEDULE_ROWS,
        *JOB_ROWS,
        *OVERSIGHT_ROWS,
        *SUBAGENT_ROWS,
    )
}


async def call(
    service: CommandService,
    caller: Caller,
    method: str,
    params: JsonObject,
    gate: Gate | None = None,
) -> JsonObject:
    """Executes one method and returns the answer in its wire form.

    Raises:
        UnknownMethod: there is no such method.
        Forbidden: the caller lacks the scope.
        InvalidInput: a parameter is missing, unknown or malformed; the error names its path.
        Limited: the caller is over its rate.
        PasserelleError: any error of the service.
    """
    row = CALLS.get(method)
    if row is None:
        raise UnknownMethod(method, find_near(method, CALLS))
    require_scope(caller.principal, row.scopes)
    caller = name_key(row, caller, params)
    request = row.read(from_wire(row.params, params), caller)
    if gate is not None:
        await gate.enter(caller.principal, slot=False)
    if not row.changes:
        return await service.read(caller.principal, cast("Query", request))
    return await _execute(service, caller, cast("Command", request))


async def _execute(service: CommandService, caller: Caller, command: Command) -> JsonObject:
    match command:
        case SubmitTurn():
            require_sending(caller.principal, command.agent)
            return render_result(await _delegate(service, caller, command, command.agent))
        case StartTask() | SpawnSubagent():
            return render_result(await _delegate(service, caller, command, command.agent))
        case SendSubagentInput(subagent_id=name):
            return render_result(await _delegate(service, caller, command, name))
        case CancelTask():
            return to_wire(await _cancel(service, caller, command))
        case _:
            return render_result(await service.execute(caller.principal, command, caller.idem))


async def _delegate(
    service: CommandService,
    caller: Caller,
    command: SubmitTurn | StartTask | SpawnSubagent | SendSubagentInput,
    agent: str | None,
) -> Result:
    """Hides where an agent is, and what is wrong with its card: only the log has these details."""
    try:
        return await service.execute(caller.principal, command, caller.idem)
    except (PeerUnavailable, InvalidAgentResponse) as error:
        structlog.get_logger().warning(
            "rpc.peer", agent=agent, code=error.stable_code, reason=error.message
        )
        raise hide_agent_details(error, agent or "") from error


async def _cancel(service: CommandService, caller: Caller, command: CancelTask) -> CancelAnswer:
    """Returns every outcome as an answer (MK-12), including those that are errors in A2A."""
    try:
        await service.execute(caller.principal, command, caller.idem)
    except NotFound:
        return CancelAnswer("not_found")
    except NotCancelable as error:
        stopped = error.details.get("status") == Status.CANCELLED
        return CancelAnswer("already_cancelled" if stopped else "already_done")
    try:
        task = await service.read(caller.principal, GetTask(command.task))
    except NotFound:
        # Its caller cannot see it yet.
        task = {}
    return CancelAnswer("requested", task)


def render_result(result: Result) -> JsonObject:
    """The wire form of a command's result."""
    match result:
        case TurnAccepted():
            return to_wire(
                TurnAnswer(
                    session_id=result.session_id,
                    thread_id=result.thread_id,
                    turn_id=result.turn_id,
                    task_id=result.facade,
                    context_id=result.context_id,
                    state="accepted" if result.position is None else "queued",
                    repeated=result.repeated,
                    position=result.position,
                )
            )
        case CancelAccepted():
            return to_wire(CancelAnswer("requested"))
        case ActionAnswered():
            votes = (result.votes, result.need) if result.need > 1 else (None, None)
            return to_wire(DecisionAnswer(result.outcome, result.rev, result.decision, *votes))
        case PushConfigSet():
            return result.config
        case PushConfigDeleted():
            return {}
        case _:
            own: RecordResult = result
            return to_wire(own)
