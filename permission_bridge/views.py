"""The JSON view of an approval request, the same for devices, HTTP and the list of pending ones.

A client can compute the digest from the view (``compute_digest``), and so approves what it rendered. The view contains
no ids of the agent.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from passerelle.core.approval.record import DELIVERY_STATES
from passerelle.core.wire.canonical import digest
from passerelle.core.wire.codec import to_wire
from passerelle.core.wire.times import format_ms

if TYPE_CHECKING:
    from passerelle.core.approval.record import ActionRecord
    from passerelle.core.facts import Scope
    from passerelle.core.payloads.approval import (
        ApprovalDecision,
        ApprovalRequest,
        AudienceStep,
        Option,
        Quorum,
        Vote,
    )
    from passerelle.core.wire.json import Json, JsonObject

BINDING_VERSION: Final = 1
BOUND: Final = (
    "actionId",
    "kind",
    "peer",
    "cardDigest",
    "taskId",
    "runId",
    "occurrence",
    "subject",
    "options",
    "responseSchema",
    "quorum",
    "expiresAt",
    "policyVersion",
)
"""The members of a view that a decision is bound to; an absent one counts as null."""


def compute_digest(view: JsonObject) -> str:
    """``sha256:…`` over the canonical JSON (RFC 8785) of ``{"v": 1}`` and the ``BOUND`` members.

    Raises:
        InvalidInput: a member has no canonical form, such as an integer beyond 2^53.
    """
    binding: JsonObject = {name: view.get(name) for name in BOUND}
    return digest({"v": BINDING_VERSION, **binding})


def digest_request(request: ApprovalRequest, scope: Scope) -> str:
    """The digest of a request about the task of ``scope``. Raises InvalidInput as ``compute_digest`` does."""
    return compute_digest(render_request(request, scope))


def seal_request(request: ApprovalRequest, scope: Scope) -> ApprovalRequest:
    """The request with its digest, which binds everything that decides (P6)."""
    return replace(request, digest=digest_request(request, scope))


def render_view(record: ActionRecord) -> JsonObject:
    """The current state of the request, with its decision once it is closed."""
    view: JsonObject = {
        "actionId": record.request.action_id,
        "rev": record.rev,
        "state": record.state,
        **render_request(record.request, record.scope),
        "delivery": DELIVERY_STATES[record.return_state],
        "returnState": record.return_state,
    }
    if record.return_attempts:
        view["returnAttempts"] = record.return_attempts
    if record.return_error is not None:
        view["returnError"] = record.return_error
    if record.consumed_at is not None:
        view["usedAt"] = record.consumed_at
    if record.superseded_by is not None:
        view["supersededBy"] = record.superseded_by
    if record.votes:
        view["votes"] = [_render_vote(vote) for vote in record.votes]
    if record.seen:
        view["seenBy"] = list(record.seen)
    if record.step:
        view["step"] = record.step
    if record.decision is not None:
        view["decision"] = render_decision(record.decision)
    return view


def render_request(request: ApprovalRequest, scope: Scope) -> JsonObject:
    """The request as it was opened; none of this changes later."""
    members: dict[str, Json] = {
        "actionId": request.action_id,
        "digest": request.digest,
        "kind": request.kind,
        "actionType": request.action_type,
        "title": request.title,
        "description": request.description,
        "peerMessage": request.peer_message,
        "subject": request.subject,
        "options": [_render_option(option) for option in request.options],
        "responseSchema": request.response_schema,
        "destructive": request.destructive,
        "risk": request.risk,
        "riskReasons": list(request.risk_reasons),
        "direction": request.origin.direction,
        "askedBy": request.origin.asked_by,
        "appliesTo": request.origin.applies_to,
        "peer": request.origin.peer,
        "cardDigest": request.origin.card_hash,
        "occurrence": request.remote.occurrence if request.remote else None,
        "quorum": _render_quorum(request.quorum),
        **_render_audience(request.audience),
        "policyVersion": request.policy_version,
        "evaluationId": request.evaluation_id,
        "groupId": request.group_id,
        "createdAt": format_ms(request.created_ms),
        "expiresAt": format_ms(request.expires_ms),
        "onTimeout": request.on_timeout,
        "sessionId": scope.session_id,
        "threadId": scope.thread_id,
        "turnId": scope.turn_id,
        "taskId": scope.task_id,
        "runId": scope.run_id,
    }
    return {name: member for name, member in members.items() if member is not None}


def _render_audience(steps: tuple[AudienceStep, ...]) -> dict[str, Json]:
    """The per-step lists ``audienceRoles`` and ``audienceDevices`` are present only if a step has roles or devices."""
    view: dict[str, Json] = {"audience": [list(step.principals) for step in steps] or None}
    if any(step.roles for step in steps):
        view["audienceRoles"] = [list(step.roles or ()) for step in steps]
    if any(step.devices for step in steps):
        view["audienceDevices"] = [step.devices or "any" for step in steps]
    return view


def _render_option(option: Option) -> JsonObject:
    view: JsonObject = {"optionId": option.option_id, "name": option.name, "kind": option.kind}
    # Shown verbatim and bound by the digest: the approver reads what an "always" grants.
    return view if option.grant is None else {**view, "grant": to_wire(option.grant)}


def render_decision(decision: ApprovalDecision) -> JsonObject:
    """Who closed the request and how; the same for the winner and for later answers."""
    members: dict[str, Json] = {
        "decisionId": decision.decision_id,
        "outcome": decision.outcome,
        "optionId": decision.option_id,
        "cause": decision.cause,
        "source": decision.source,
        "decidedBy": decision.decided_by,
        "decidedKind": decision.decided_kind,
        "deviceName": decision.device_name,
        "decidedAt": decision.decided_at,
        "comment": decision.comment,
        "content": decision.content,
        "assurance": list(decision.assurance) or None,
        "grantId": decision.grant_id,
    }
    return {name: member for name, member in members.items() if member is not None}


def _render_quorum(quorum: Quorum) -> JsonObject:
    """Default values are left out: a request with one approver has ``{"need": 1}``."""
    view: JsonObject = {"need": quorum.need}
    if quorum.need > 1:
        view["veto"] = quorum.veto
    return view if quorum.allow_self else {**view, "allowSelf": False}


def _render_vote(vote: Vote) -> JsonObject:
    members: dict[str, Json] = {
        "principal": vote.principal,
        "optionId": vote.option_id,
        "agrees": vote.agrees,
        "deviceName": vote.device_name,
        "at": vote.at,
        "comment": vote.comment,
    }
    return {name: member for name, member in members.items() if member is not None}
