"""The facts of an approval: its opening, its closing and each step of its delivery."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from passerelle.core.errors import UnsupportedOperation
from passerelle.core.events import Fact
from passerelle.core.ids import derive_id, shard_of
from passerelle.core.payloads.approval import (
    ActionRequired,
    ActionResolved,
    AnswerSource,
    ApprovalDecision,
    ChannelPermissionForwarded,
    ChannelPermissionReturned,
    ClosingState,
    DecisionCause,
    OptionKind,
    PermissionRequested,
    PermissionResolved,
)
from passerelle.core.wire.times import format_ms

if TYPE_CHECKING:
    from passerelle.core.approval.commands import AnswerAction, ConsumeAction, SettleAction
    from passerelle.core.approval.record import ActionRecord
    from passerelle.core.facts import Scope
    from passerelle.core.payloads.approval import ApprovalRequest, Option
    from passerelle.core.principal import Principal

ReturnOutcome: TypeAlias = Literal["owed", "returning", "returned", "undeliverable"]

OUTCOMES: Final[dict[OptionKind, ClosingState]] = {
    "allow_once": "allowed",
    "allow_always": "allowed",
    "reject_once": "rejected",
    "reject_always": "rejected",
    "answer": "answered",
    "cancel": "cancelled",
}
_YES: Final[tuple[OptionKind, ...]] = ("allow_once",)
_NO: Final[tuple[OptionKind, ...]] = ("reject_once", "cancel")
_GATED: Final = frozenset({"permission", "confirmation"})
"""Kinds whose options allow or reject: ``permission.*`` accompanies ``action.*``."""


def record_opening(scope: Scope, request: ApprovalRequest) -> list[Fact]:
    """The facts that open an approval."""
    scope = replace(scope, action_id=request.action_id)
    facts = [Fact(scope, ActionRequired(request))]
    if request.kind in _GATED:
        asked = PermissionRequested(request.kind, request.risk, request.digest, request.expires_ms)
        facts.append(Fact(scope, asked))
    return facts


def record_answer(
    state: ActionRecord, answer: AnswerAction, option: Option, now_ms: int
) -> ApprovalDecision:
    """The decision of a valid answer. A message that may contain a credential is left out."""
    who = answer.who
    offered = state.find_option(option.option_id)
    by_caller = answer.turn_id is not None and state.request.kind == "auth"
    return ApprovalDecision(
        decision_id=answer.decision_id,
        outcome="answered_by_caller" if by_caller else OUTCOMES[option.kind],
        # A service that decides is policy: it must never read as the decision of a person.
        cause="human" if who.kind == "person" and not answer.is_host else "host_policy",
        source="answer",
        rev=answer.rev,
        digest=answer.digest,
        decided_by=who.id,
        decided_kind=who.kind,
        decided_at=format_ms(now_ms),
        option_id=offered.option_id if offered is not None else None,
        device=who.device,
        # An unnamed device is shown by the name that it gives itself.
        device_name=who.device_name or who.device,
        comment=answer.comment,
        content=None if by_caller else answer.content,
        assurance=("bearer", "signature") if answer.signature else ("bearer",),
        signature=answer.signature,
        native=answer.native,
    )


def decide_alone(
    state: ActionRecord,
    outcome: ClosingState,
    cause: DecisionCause,
    source: AnswerSource,
    now_ms: int,
) -> ApprovalDecision:
    """A closing without a decider; its id is derived from the action, so a repeat has the same id."""
    action_id = state.request.action_id
    return ApprovalDecision(
        decision_id=derive_id("dec", shard_of(action_id), action_id, cause),
        outcome=outcome,
        cause=cause,
        source=source,
        rev=state.rev,
        digest=state.request.digest,
        decided_by="gateway",
        decided_kind="gateway",
        decided_at=format_ms(now_ms),
        assurance=(),
    )


def settle(state: ActionRecord, command: SettleAction, now_ms: int) -> ApprovalDecision:
    """The decision of policy: the first option that is a single allow, or a single reject.

    Raises:
        UnsupportedOperation: no option allows.
    """
    kinds = _YES if command.allows else _NO
    fitting = (option for option in state.request.options if option.kind in kinds)
    option = min(fitting, key=lambda one: kinds.index(one.kind), default=None)
    if option is None:
        raise UnsupportedOperation("the approval offers nothing that policy could choose")
    source: AnswerSource = "policy_allow" if command.allows else "policy_deny"
    decision = decide_alone(state, OUTCOMES[option.kind], command.cause, source, now_ms)
    return replace(decision, option_id=option.option_id, grant_id=command.grant_id)


def record_closing(
    state: ActionRecord, decision: ApprovalDecision, superseded_by: str | None = None
) -> list[Fact]:
    """The one terminal fact (I7) and its companions; all of them belong in one append."""
    returns = _is_owed(state.request, decision)
    facts = [Fact(state.scope, ActionResolved(decision, superseded_by, returns))]
    if state.request.kind in _GATED:
        permission = PermissionResolved(
            state=decision.outcome,
            cause=decision.cause,
            source=decision.source,
            decided_by=decision.decided_by,
            decision_id=decision.decision_id,
            option_id=decision.option_id,
            grant_id=decision.grant_id,
        )
        facts.insert(0, Fact(state.scope, permission))
    if decision.source != "system":
        payload = ChannelPermissionReturned(
            direction="answer",
            source=decision.source,
            accepted=True,
            outcome="owed" if returns else "not_needed",
            channel_id=decision.device,
        )
        facts.append(Fact(state.scope, payload))
    return facts


def record_use(state: ActionRecord, command: ConsumeAction) -> Fact:
    """The allowed act is about to run: the policy evaluation that uses the approval up."""
    return Fact(state.scope, replace(command.evaluation, consumes=True))


def record_return(
    state: ActionRecord,
    outcome: ReturnOutcome,
    *,
    native_status: str | None = None,
    reason: str | None = None,
) -> Fact:
    """One step of the delivery of a decision; beginning an attempt counts it."""
    payload = ChannelPermissionReturned(
        direction="delivery",
        source=state.decision.source if state.decision else "system",
        accepted=True,
        outcome=outcome,
        attempts=state.return_attempts + (outcome == "returning"),
        native_status=native_status,
        reason=reason,
    )
    return Fact(state.scope, payload)


def record_escalation(state: ActionRecord, step: int) -> Fact:
    """Widens the audience by a step.

    Raises:
        UnsupportedOperation: there is no such step, or it has begun.
    """
    if not state.step < step < len(state.request.audience):
        raise UnsupportedOperation("the audience has no such later step", step=step)
    origin = state.request.origin
    payload = ChannelPermissionForwarded(
        transport="none",
        outcome="escalated",
        attempt=step,
        asking_peer=origin.peer,
        applies_to=origin.applies_to,
        channel_scoped=origin.applies_to == "channel",
        step=step,
    )
    return Fact(state.scope, payload)


def record_seen(state: ActionRecord, who: Principal) -> Fact:
    """An approver has seen the approval; the device is named if it has an id."""
    origin = state.request.origin
    seen = ChannelPermissionForwarded(
        transport="ws" if who.device else "none",
        outcome="seen",
        attempt=1,
        asking_peer=origin.peer,
        applies_to=origin.applies_to,
        channel_scoped=origin.applies_to == "channel",
        device_id=who.device,
        principal=who.id,
    )
    return Fact(state.scope, seen)


def _is_owed(request: ApprovalRequest, decision: ApprovalDecision) -> bool:
    """Whether an agent waits for the decision: for an answer or a timeout, not for the end of its own request."""
    remote = request.remote
    return decision.source != "system" and remote is not None and remote.answerable
