"""Execution limits, hooks, and changes of policy (EXT-2, EXT-3, PRS-4)."""

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
    """The limits in force from now on (EXT-2).

    ``roots``, ``environment`` (names, never values), ``network`` and the process limits belong to a worker; ``hosts``,
    ``media_types`` and ``credentials_forwarded`` to the calls of an agent.
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
    """A request outside the limits was refused (EXT-2)."""

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
    """A hook was called; ``refs.input`` is the message if the hook left it unchanged, else its whole input (EXT-3)."""

    type: ClassVar = EventType.HOOK_STARTED
    hook: str
    point: HookPoint
    on_error: Literal["closed", "open"]
    timeout_ms: int


@record
class HookCompleted:
    """A hook answered; a rewritten input is in ``refs.updatedInput`` (EXT-3, PRS-4)."""

    type: ClassVar = EventType.HOOK_COMPLETED
    hook: str
    point: HookPoint
    duration_ms: int
    verdict: Literal["silent", "allow", "ask", "deny", "rewrite"]
    reason: str | None = None
    updated_digest: str | None = None


@record
class HookFailed:
    """A hook failed or timed out; ``applied`` is the verdict used instead (EXT-3)."""

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

    ``place`` is the id of the task, thread or session that ``scope`` names; ``peer`` and ``card_hash`` name the agent
    it was given to; a grant of scope owner names no agent. Either ``subject_digest`` binds it to one exact subject, or
    ``tool`` to one tool with any arguments. Times are milliseconds of the server's clock.
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
        """Whether it applies, and if not, why."""
        if self.revoked_at is not None:
            return "revoked"
        if now_ms >= self.expires_ms:
            return "expired"
        if self.max_uses is not None and self.uses >= self.max_uses:
            return "used_up"
        return "live"


@record
class StatedRule:
    """A rule that an operator added to those of the configuration while the gateway runs.

    Its members are those of a rule in the settings. ``owner``: it applies only to the work of this caller. It never
    names approvers: those are set in the configuration.
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

    For a device, ``device`` is its new state, ``act`` the change, and the version counts its list. For a grant,
    ``step`` is what happened to it, and ``grant`` its content if it was ``created``. Rules edited at run time are
    included whole, with their ``revision``; those of the configuration are in its file.
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
    """The policy evaluation that uses the grant."""
    revision: int | None = None
    rules: tuple[StatedRule, ...] | None = None


GovernancePayload: TypeAlias = (
    SandboxApplied | SandboxViolation | HookStarted | HookCompleted | HookFailed | PolicyChanged
)
