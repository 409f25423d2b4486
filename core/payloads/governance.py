"""The bounds of execution, hooks, and changes of policy (EXT-2, EXT-3, PRS-4)."""

from __future__ import annotations

from typing import ClassVar, Literal, TypeAlias

from passerelle.core.event_type import EventType
from passerelle.core.facts import Failure
from passerelle.core.payloads.device import Device, DeviceAct
from passerelle.core.record import record

HookPoint: TypeAlias = Literal[
    "before_delegate", "on_permission_request", "before_deliver", "on_stop"
]


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
    """A hook was called at its point; what it was given stands behind ``refs.input`` (EXT-3)."""

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
    error: Failure
    on_error: Literal["closed", "open"]
    applied: Literal["silent", "ask", "deny"]


@record
class PolicyChanged:
    """Rules, modes, hooks, grants or devices changed; versions are hashes of all of them (EXT-3).

    Of a device ``device`` is what it is from now on, ``act`` what was done, and the version counts its list.
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


GovernancePayload: TypeAlias = (
    SandboxApplied | SandboxViolation | HookStarted | HookCompleted | HookFailed | PolicyChanged
)
