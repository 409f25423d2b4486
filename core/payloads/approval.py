"""Approvals, their decisions and the delivery of both (EVC-10, EXT-1, EXT-8, CHN-6).

``action.required`` holds the whole request as it was opened; later changes (votes, state, return) are further facts.
``permission.*`` accompanies ``action.*`` if the options allow or reject.
"""

from __future__ import annotations

from dataclasses import field
from typing import ClassVar, Literal, TypeAlias

from passerelle.core.event_type import EventType
from passerelle.core.wire.json import Json, JsonObject
from passerelle.core.wire.record import record

ActionKind: TypeAlias = Literal["permission", "input", "auth", "confirmation"]
ActionType: TypeAlias = Literal[
    "delegation",
    "inbound_call",
    "tool_call",
    "command",
    "file_change",
    "network",
    "process",
    "credential",
    "cancel_task",
    "policy_change",
    "device_pairing",
    "free_input",
]
OptionKind: TypeAlias = Literal[
    "allow_once", "allow_always", "reject_once", "reject_always", "answer", "cancel"
]
Risk: TypeAlias = Literal["low", "medium", "high", "critical"]
GrantScope: TypeAlias = Literal["task", "thread", "session", "peer", "owner"]
OnTimeout: TypeAlias = Literal["reject", "cancel_task", "keep_waiting"]
AudienceDevices: TypeAlias = Literal["paired"]
ClosingState: TypeAlias = Literal[
    "allowed", "rejected", "answered", "answered_by_caller", "expired", "cancelled", "superseded"
]
"""``answered_by_caller``: the agent asked for an authorization, and the task's owner wrote to it."""
ListedState: TypeAlias = Literal["pending", "closed", "resolved", ClosingState]
"""Filter of listed approvals; ``resolved``: answered; ``closed``: all that are not pending."""
DecisionCause: TypeAlias = Literal[
    "human",
    "host_policy",
    "rule",
    "grant",
    "hook",
    "mode",
    "default",
    "timeout",
    "task_cancelled",
    "asker_withdrew",
    "asker_lost",
    "peer_terminal",
    "peer_moved_on",
    "superseded",
    "unavailable",
    "integrity",
]
AnswerSource: TypeAlias = Literal[
    "answer", "timeout", "policy_deny", "policy_allow", "auth_failure", "system"
]


@record
class GrantOffer:
    """The grant that an option creates: an allow that applies to further requests.

    Bound to the exact subject (``subject_digest``), or to a tool with any arguments.
    """

    scope: GrantScope
    ttl_ms: int
    subject_digest: str | None = None
    tool: str | None = None
    max_uses: int | None = None


@record
class Option:
    """One way to answer. ``sends`` is the option that the asking side gets instead, if set."""

    option_id: str
    name: str
    kind: OptionKind
    grant: GrantOffer | None = None
    sends: str | None = None


@record
class Origin:
    """Who asks, and for what (CHN-6)."""

    direction: Literal["inbound", "outbound", "local", "control"]
    asked_by: Literal["principal", "peer", "worker", "gateway"]
    peer: str | None = None
    card_hash: str | None = None
    applies_to: Literal["channel", "session", "owner"] = "session"


@record
class Quorum:
    """How many principals must agree before an approval is allowed; devices do not count.

    ``veto``: a single rejection closes it; otherwise rejections need the same quorum. Without ``allow_self`` the
    principal that the work is done for may not decide.
    """

    need: int = 1
    veto: bool = True
    allow_self: bool = True


@record
class AudienceStep:
    """The principals who may decide from ``after_ms`` after the opening: ids in the approval's tenant.

    They include the members that ``roles`` had at the opening. ``devices``: the devices on which they may see and
    decide it; None: any.
    """

    principals: tuple[str, ...]
    after_ms: int = 0
    roles: tuple[str, ...] | None = None
    devices: AudienceDevices | None = None


@record
class RemotePause:
    """The pause of an agent that the decision is delivered to. Ids of the agent are for correlation only."""

    dialect: str
    native_id: str | None
    occurrence: str
    native_status: str
    message_id: str | None = None
    answerable: bool = True
    said_at: str | None = None
    """When the agent began to wait, by its own clock; kept for typed requests, which some agents report only once."""


@record
class ApprovalRequest:
    """An approval request as it was opened; it never changes, and ``digest`` binds a decision to it.

    ``peer_message`` is untrusted text; ``title`` is never made from it. ``created_ms`` and ``expires_ms`` are
    milliseconds of the server's clock.
    """

    action_id: str
    kind: ActionKind
    action_type: ActionType
    title: str
    owner: str
    tenant: str
    principal: str
    origin: Origin
    options: tuple[Option, ...]
    digest: str
    risk: Risk
    on_timeout: OnTimeout
    created_ms: int
    expires_ms: int
    policy_version: str
    evaluation_id: str
    subject: JsonObject = field(default_factory=dict[str, Json])
    description: str | None = None
    peer_message: str | None = None
    remote: RemotePause | None = None
    response_schema: JsonObject | None = None
    destructive: bool = False
    group_id: str | None = None
    risk_reasons: tuple[str, ...] = ()
    quorum: Quorum = Quorum()
    audience: tuple[AudienceStep, ...] = ()
    """The steps of the audience; empty: the owner decides."""


@record
class DecisionSignature:
    """The signature of a device over a decision: ``value`` in base64url, ``iat`` in ms of the device's clock."""

    key_id: str
    value: str
    iat: int


@record
class Vote:
    """The vote of one principal, if several are needed; a later vote replaces it."""

    principal: str
    option_id: str
    decision_id: str
    agrees: bool
    at: str
    device: str | None = None
    device_name: str | None = None
    comment: str | None = None
    signature: DecisionSignature | None = None


@record
class ApprovalDecision:
    """One recorded decision. ``decided_by`` comes from the authenticated session, never from the body."""

    decision_id: str
    outcome: ClosingState
    cause: DecisionCause
    source: AnswerSource
    rev: int
    digest: str
    decided_by: str
    decided_kind: Literal["person", "service", "agent", "gateway"]
    decided_at: str
    option_id: str | None = None
    device: str | None = None
    device_name: str | None = None
    comment: str | None = None
    content: JsonObject | None = None
    assurance: tuple[Literal["bearer", "signature"], ...] = ("bearer",)
    signature: DecisionSignature | None = None
    grant_id: str | None = None
    """The grant that this decision creates, or that made it."""
    native: JsonObject | None = None
    """The answer in the form of the agent that asked; the agent gets it byte for byte."""


@record
class ActionRequired:
    """An approval is needed; the task makes no progress until it is decided (EVC-10)."""

    type: ClassVar = EventType.ACTION_REQUIRED
    request: ApprovalRequest


@record
class ActionResolved:
    """Closed, exactly once (I7)."""

    type: ClassVar = EventType.ACTION_RESOLVED
    decision: ApprovalDecision
    superseded_by: str | None = None
    returns: bool = False
    """Whether the decision must be delivered to an agent."""


@record
class TrailStep:
    """The verdict of one source of the policy chain."""

    source: str
    verdict: str
    ref: str | None = None
    ms: int | None = None
    """How long the source took, if it was called."""


@record
class PermissionEvaluated:
    """A policy decision, allows included (EXT-1)."""

    type: ClassVar = EventType.PERMISSION_EVALUATED
    evaluation_id: str
    decision: Literal["allow", "ask", "deny"]
    source: str
    reason: str
    subject: str
    policy_version: str
    risk: Risk
    trail: tuple[TrailStep, ...] = ()
    rules: tuple[str, ...] = ()
    consumes: bool = False
    """Evaluated right before the allowed act runs: this uses the approval up."""
    case: JsonObject | None = None
    """The evaluated case, in the fields of rules, so that other rules can be tried on it."""


@record
class PermissionRequested:
    """A permission was opened; the request itself is on ``action.required``."""

    type: ClassVar = EventType.PERMISSION_REQUESTED
    kind: ActionKind
    risk: Risk
    digest: str
    expires_ms: int


@record
class PermissionResolved:
    """A permission was closed; the decision itself is on ``action.resolved``."""

    type: ClassVar = EventType.PERMISSION_RESOLVED
    state: ClosingState
    cause: DecisionCause
    source: AnswerSource
    decided_by: str
    decision_id: str
    option_id: str | None = None
    grant_id: str | None = None


@record
class ChannelPermissionForwarded:
    """One target was notified of an approval, or there was none (CHN-6).

    ``escalated``: the principals of a further ``step`` of the audience may decide from now on. ``seen``: it was shown
    to a ``principal``.
    """

    type: ClassVar = EventType.CHANNEL_PERMISSION_FORWARDED
    transport: Literal["ws", "webpush", "webhook", "a2a", "none"]
    outcome: Literal["sent", "queued", "suppressed", "no_device", "failed", "escalated", "seen"]
    attempt: int
    asking_peer: str | None
    applies_to: Literal["channel", "session", "owner"]
    channel_scoped: bool
    channel_id: str | None = None
    device_id: str | None = None
    reason: str | None = None
    step: int | None = None
    principal: str | None = None


@record
class ChannelPermissionReturned:
    """An answer was received (``answer``), or a decision was sent to the asking side (``delivery``) (CHN-6).

    An answer that did not close the approval is ``counted`` as a ``vote``, ``withdrawn`` with its device, or
    ``refused``: then ``reason`` is the cause, and ``attempts`` the number of refused answers of that kind.
    """

    type: ClassVar = EventType.CHANNEL_PERMISSION_RETURNED
    direction: Literal["answer", "delivery"]
    source: AnswerSource
    accepted: bool
    outcome: Literal[
        "owed",
        "returning",
        "returned",
        "undeliverable",
        "stale",
        "not_needed",
        "counted",
        "withdrawn",
        "refused",
    ]
    attempts: int = 0
    native_status: str | None = None
    channel_id: str | None = None
    reason: str | None = None
    vote: Vote | None = None
    principal: str | None = None


ApprovalPayload: TypeAlias = (
    ActionRequired
    | ActionResolved
    | PermissionEvaluated
    | PermissionRequested
    | PermissionResolved
    | ChannelPermissionForwarded
    | ChannelPermissionReturned
)
