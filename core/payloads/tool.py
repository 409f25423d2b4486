"""What a turn may call, and the calls of a local worker or of the gateway itself (EVC-8, EVC-9, PRS-1).

A call is named by the ``tool_call_id`` of its scope. Arguments and results over the cap stand behind
``refs.input`` and ``refs.output``. The private tools of a peer are invisible (ID-8).
"""

from __future__ import annotations

from typing import ClassVar, Literal, TypeAlias

from passerelle.core.event_type import EventType
from passerelle.core.facts import ErrorDetail
from passerelle.core.wire.json import JsonObject
from passerelle.core.wire.record import record

ToolKind: TypeAlias = Literal[
    "read", "edit", "delete", "move", "search", "execute", "think", "fetch", "delegate", "other"
]
ToolState: TypeAlias = Literal["allowed", "ask", "denied", "unavailable"]


@record
class ToolGroup:
    """Skills of one peer, or actions of the gateway, of which policy says the same; `rules` say why (CMD-18).

    ``names`` are ids of skills, or names of commands; without any, nothing is known of what the peer can do.
    """

    kind: Literal["skill", "gateway_action"]
    state: ToolState
    names: tuple[str, ...] = ()
    peer: str | None = None
    rules: tuple[str, ...] = ()
    reason: str | None = None


@record
class ToolCatalogResolved:
    """What this caller has for the turn (EVC-8). ``groups`` is what is denied, asked about or away.

    ``allowed`` counts the peers whose skills are simply allowed, ``unnamed`` the groups that are too many to be
    listed. ``digest`` tells two catalogs apart; the next turn of a thread says its own where it is another one. Without
    ``digest`` nothing is held back any more.
    """

    type: ClassVar = EventType.TOOL_CATALOG_RESOLVED
    caller: str
    groups: tuple[ToolGroup, ...] = ()
    allowed: int = 0
    unnamed: int = 0
    policy_version: str | None = None
    mode: str | None = None
    digest: str | None = None


@record
class ToolStarted:
    """A call was opened; ``evaluation_id`` names the policy decision, ``hooks`` those that took part (EVC-9)."""

    type: ClassVar = EventType.TOOL_STARTED
    name: str
    origin: Literal["worker", "gateway"]
    kind: ToolKind = "other"
    title: str | None = None
    evaluation_id: str | None = None
    decision: Literal["allow", "ask", "deny"] | None = None
    hooks: tuple[str, ...] = ()
    input_schema: JsonObject | None = None


@record
class ToolArgs:
    """The arguments of a call; None when they stand behind ``refs.input`` (EVC-9)."""

    type: ClassVar = EventType.TOOL_ARGS
    sha256: str
    size: int
    arguments: JsonObject | None = None


@record
class ToolProgress:
    """A call goes on; ``preview`` is the output since ``offset`` bytes, the whole of it ``refs.output`` (EVC-9)."""

    type: ClassVar = EventType.TOOL_PROGRESS
    text: str | None = None
    percent: int | None = None
    offset: int | None = None
    preview: str | None = None


@record
class ToolResult:
    """A call ended well; its result stands behind ``refs.output``, ``preview`` is its beginning (EVC-9)."""

    type: ClassVar = EventType.TOOL_RESULT
    duration_ms: int
    size: int
    preview: str | None = None


@record
class ToolFailed:
    """A call failed or was not allowed; the category of ``error`` tells the two apart (EVC-9)."""

    type: ClassVar = EventType.TOOL_FAILED
    error: ErrorDetail
    duration_ms: int | None = None


ToolPayload: TypeAlias = (
    ToolCatalogResolved | ToolStarted | ToolArgs | ToolProgress | ToolResult | ToolFailed
)
