"""The bounds of execution, hooks, and changes of policy (EXT-2, EXT-3, PRS-4)."""

from __future__ import annotations

from typing import ClassVar, Literal, TypeAlias

from passerelle.core.event_type import EventType
from passerelle.core.facts import ErrorDetail
from passerelle.core.payloads.approval import ActionType, GrantScope
from passerelle.core.payloads.device import Device, DeviceAct
from passerelle.core.wire.record import record

HookPoint: TypeAlias = Literal[
    "before_delegate", "on_permission_request", "before_deliver", "on_stop"
]


GrantState: TypeAlias = Literal["live", "expired", "used_up", "revoked"]


@record
class SandboxApplied:
    """The bounds in force from here on (EXT-2).

    ``roots``, ``environment`` (names, never values), ``network`` and the process limits belong to a
    worker; ``hosts``, ``media_types`` and ``credentials_forwarded`` to the calls of a peer.
    """

    type: ClassVar = EventType.SANDBOX_APPLIED
    target: Literal["worker", "peer"]
    name: str
    roots: tuple[str, ...] = ()
    environment: tuple[str, ...] = ()
    network: Literal["none", "loopback", "allow_list", "open"] | None = None
    hosts: tuple[str, ...] = ()
    media_types: tuple[str, ...] = ()
    max_message_bytes: int | None = None
    max_memory_bytes: int | None = None
    max_cpu_ms: int | None = None
    max_processes: int | None = None
    credentials_forwarded: bool = False


@record
class SandboxViolation:
    """Something outside the bounds was asked for, and not done (EXT-2)."""

    type: ClassVar = EventType.SANDBOX_VIOLATION
    target: Literal["worker", "peer"]
    name: str
    bound: Literal[
        "path", "environment", "network", "host", "credential", "media_type", "size", "process"
    ]
    asked: str
    reason: str


@record
class HookStarted:
    """A hook was called; ``refs.input`` is the message that it left as it was, or all that it was given (EXT-3)."""

    type: ClassVar = EventType.HOOK_STARTED
    hook: str
    point: HookPoint
    on_error: Literal["closed", "open"]
    timeout_ms: int


@record
class HookCompleted:
    """A hook answered; a rewritten input stands behind ``refs.updatedInput`` (EXT-3, PRS-4)."""

    type: ClassVar = EventType.HOOK_COMPLETED
    hook: str
    point: HookPoint
    duration_ms: int
    verdict: Literal["silent", "allow", "ask", "deny", "rewrite"]
    reason: str | None = None
    updated_digest: str | None = None


@record
class HookFailed:
    """A hook failed or took too long; ``applied`` is what was done instead of its answer (EXT-3)."""

    type: ClassVar = EventType.HOOK_FAILED
    hook: str
    point: HookPoint
    duration_ms: int
    error: ErrorDetail
    on_error: Literal["closed", "open"]
    applied: Literal["silent", "ask", "deny"]


@record
class Grant:
    """One standing approval.

    ``place`` is the id of the task, thread or session that ``scope`` names, ``peer`` and ``card_hash`` whom it was
    given to; an owner's grant names no peer. Either ``subject_digest`` binds it to one exact subject, or ``tool`` to
    one tool with whatever arguments. Times are milliseconds of the server's clock.
    """

    grant_id: str
    action_id: str
    minted_by: str
    scope: GrantScope
    place: str
    action_type: ActionType
    created_ms: int
    expires_ms: int
    policy_version: str
    title: str
    peer: str | None = None
    card_hash: str | None = None
    subject_digest: str | None = None
    tool: str | None = None
    max_uses: int | None = None
    uses: int = 0
    last_used_at: str | None = None
    revoked_at: str | None = None
    revoked_by: str | None = None

    def judge(self, now_ms: int) -> GrantState:
        """Whether it holds, and if not, why."""
        if self.revoked_at is not None:
            return "revoked"
        if now_ms >= self.expires_ms:
            return "expired"
        if self.max_uses is not None and self.uses >= self.max_uses:
            return "used_up"
        return "live"


@record
class StatedRule:
    """A rule as an operator put it beside those of the configuration while the gateway runs.

    Its members are those of a rule in the settings. ``owner``: it is about the work of this caller alone. It never says
    who decides: that stands in the configuration.
    """

    name: str
    effect: Literal["deny", "ask", "allow"]
    about: tuple[Literal["asks", "calls", "delegations", "commands"], ...] = ("asks",)
    when: str | None = None
    argv: tuple[str, ...] = ()
    grantable: bool = False
    reason: str | None = None
    owner: str | None = None


@record
class PolicyChanged:
    """Rules, modes, hooks, grants or devices changed; versions are hashes of all of them (EXT-3).

    Of a device ``device`` is what it is from now on, ``act`` what was done, and the version counts its list. Of a
    grant, ``step`` says what became of it, and ``grant`` what it is where it was ``created``. Rules that were put while
    the gateway runs are named whole, with their ``revision``; those of the configuration stand in its file.
    """

    type: ClassVar = EventType.POLICY_CHANGED
    change: Literal["rules", "mode", "hooks", "limits", "grant", "device"]
    actor: str
    version: str
    previous: str | None = None
    mode: str | None = None
    until: str | None = None
    """When a temporary mode ends, RFC 3339."""
    ref: str | None = None
    device: Device | None = None
    act: DeviceAct | None = None
    step: Literal["created", "used", "revoked"] | None = None
    grant: Grant | None = None
    evaluation_id: str | None = None
    """What relies on the use."""
    revision: int | None = None
    rules: tuple[StatedRule, ...] | None = None


GovernancePayload: TypeAlias = (
    SandboxApplied | SandboxViolation | HookStarted | HookCompleted | HookFailed | PolicyChanged
)
