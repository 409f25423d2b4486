"""Questions, their answers and the way of both (EVC-10, EXT-1, EXT-8, CHN-6).

``action.required`` holds the whole request as it was opened; what changes later (votes, state, return)
is in further facts. ``permission.*`` accompanies ``action.*`` where the options allow or reject.
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
"""``answered_by_caller``: whoever has the task has written to its agent, which wanted an authorization."""
ListedState: TypeAlias = Literal[
    "pending",
    "closed",
    "resolved",
    "allowed",
    "rejected",
    "answered",
    "answered_by_caller",
    "expired",
    "cancelled",
    "superseded",
]
"""Which questions are listed; ``resolved``: somebody has answered; ``closed``: all that are not pending."""
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
    """The grant that an option writes: a yes that holds for more than this question.

    Bound to the exact subject (``subject_digest``), or to a tool with whatever arguments.
    """

    scope: GrantScope
    ttl_ms: int
    subject_digest: str | None = None
    tool: str | None = None
    max_uses: int | None = None


@record
class Option:
    """One way to answer. ``sends`` is the option that the asking side is told, where that is another one."""

    option_id: str
    name: str
    kind: OptionKind
    grant: GrantOffer | None = None
    sends: str | None = None


@record
class Origin:
    """Who asks, and for whom (CHN-6)."""

    direction: Literal["inbound", "outbound", "local", "control"]
    asked_by: Literal["principal", "peer", "worker", "gateway"]
    peer: str | None = None
    card_hash: str | None = None
    applies_to: Literal["channel", "session", "owner"] = "session"


@record
class Quorum:
    """How many principals must agree before a question is allowed; devices do not count.

    ``veto``: one no closes it; else so many of them as a yes needs. Without ``allow_self`` whoever the work is done for
    does not decide.
    """

    need: int = 1
    veto: bool = True
    allow_self: bool = True


@record
class AudienceStep:
    """Who may decide from ``after_ms`` after the opening on: ids of principals of the question's tenant.

    Members of ``roles`` stand among them, as the roles had them at the opening. ``devices``: from where they see the
    question and decide; None: from everywhere.
    """

    principals: tuple[str, ...]
    after_ms: int = 0
    roles: tuple[str, ...] | None = None
    devices: AudienceDevices | None = None


@record
class RemotePause:
    """The pause of a peer that the answer goes back to. Ids of the peer are correlation, never ours."""

    dialect: str
    native_id: str | None
    occurrence: str
    native_status: str
    message_id: str | None = None
    answerable: bool = True
    said_at: str | None = None
    """When the peer began to wait, as it says; kept where it shows the question only once."""


@record
class ApprovalRequest:
    """A question as it was opened; nothing in it changes afterwards, and ``digest`` binds an answer to it.

    ``peer_message`` is untrusted text; ``title`` is never made of it. ``created_ms`` and ``expires_ms`` are
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
    """Who decides, step by step; none: the owner."""


@record
class DecisionSignature:
    """What a device signed a decision with: ``value`` in base64url, ``iat`` in ms of the device's clock."""

    key_id: str
    value: str
    iat: int


@record
class Vote:
    """The word of one principal where more than one is needed; a later one takes its place."""

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
    """One recorded answer. ``decided_by`` comes from the authenticated session, never from the body."""

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
    """The grant that this answer writes, or that gave it."""
    native: JsonObject | None = None
    """The answer as it was given in the form of the agent that asked, which gets it byte for byte."""


@record
class ActionRequired:
    """Somebody must decide; the task makes no progress until then (EVC-10)."""

    type: ClassVar = EventType.ACTION_REQUIRED
    request: ApprovalRequest


@record
class ActionResolved:
    """Closed, exactly once (I7)."""

    type: ClassVar = EventType.ACTION_RESOLVED
    decision: ApprovalDecision
    superseded_by: str | None = None
    returns: bool = False
    """Whether an answer is owed to a peer now."""


@record
class TrailStep:
    """What one source of the policy chain said."""

    source: str
    verdict: str
    ref: str | None = None
    ms: int | None = None
    """How long it took to hear it, where that took time."""


@record
class PermissionEvaluated:
    """How policy judged something; allows included (EXT-1)."""

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
    """Judged right before what an answer has allowed is done: the answer is used up with it."""
    case: JsonObject | None = None
    """What was judged, in the fields of rules, so that other rules can be tried on it."""


@record
class PermissionRequested:
    """A permission was opened; the request itself stands on ``action.required``."""

    type: ClassVar = EventType.PERMISSION_REQUESTED
    kind: ActionKind
    risk: Risk
    digest: str
    expires_ms: int


@record
class PermissionResolved:
    """A permission was closed; the decision itself stands on ``action.resolved``."""

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
    """One target was told of a question, or there was none (CHN-6).

    ``escalated`` says that the principals of a further ``step`` of the audience may decide from here on, ``seen`` that
    it was shown to a ``principal``.
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
    """An answer came in (``answer``), or went back to the asking side (``delivery``) (CHN-6).

    An answer that did not close the question is ``counted`` as a ``vote``, ``withdrawn`` with the device that it came
    from, or ``refused``: then ``reason`` says why, and ``attempts`` how many of its kind this fact stands for.
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
