"""The tools of a turn, and the calls of a local worker or of the gateway itself (EVC-8, EVC-9, PRS-1).

A call is named by the ``tool_call_id`` of its scope. Arguments and results over the limit are in ``refs.input`` and
``refs.output``. The private tools of an agent are invisible (ID-8).
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
    """Skills of one agent, or gateway actions, with the same policy decision; ``rules`` are its reasons (CMD-18).

    ``names`` are ids of skills, or names of commands; empty if the agent's skills are unknown.
    """

    kind: Literal["skill", "gateway_action"]
    state: ToolState
    names: tuple[str, ...] = ()
    peer: str | None = None
    rules: tuple[str, ...] = ()
    reason: str | None = None


@record
class ToolCatalogResolved:
    """The tools of this caller for the turn (EVC-8). ``groups`` are the denied, asked-about and unavailable ones.

    ``allowed`` counts the agents whose skills are all allowed, ``unnamed`` the groups that are too many to be listed.
    ``digest`` identifies a catalog; a turn of a thread records its own only if it differs from the last one. Without
    ``digest`` nothing is restricted any more.
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
    """The arguments of a call; None if they are in ``refs.input`` (EVC-9)."""

    type: ClassVar = EventType.TOOL_ARGS
    sha256: str
    size: int
    arguments: JsonObject | None = None


@record
class ToolProgress:
    """A call goes on; ``preview`` is the output since ``offset`` bytes, ``refs.output`` all of it (EVC-9)."""

    type: ClassVar = EventType.TOOL_PROGRESS
    text: str | None = None
    percent: int | None = None
    offset: int | None = None
    preview: str | None = None


@record
class ToolResult:
    """A call succeeded; its result is in ``refs.output``, ``preview`` is its beginning (EVC-9)."""

    type: ClassVar = EventType.TOOL_RESULT
    duration_ms: int
    size: int
    preview: str | None = None


@record
class ToolFailed:
    """A call failed or was not allowed; the category of ``error`` distinguishes them (EVC-9)."""

    type: ClassVar = EventType.TOOL_FAILED
    error: ErrorDetail
    duration_ms: int | None = None


ToolPayload: TypeAlias = (
    ToolCatalogResolved | ToolStarted | ToolArgs | ToolProgress | ToolResult | ToolFailed
)
