"""Frames of an agent that dials in: it registers a name, is called under it, and answers over the same socket.

It may also call other agents over it, with ``rpc`` like any command. The ids of its calls never begin with the prefix
of the gateway's ids, so the id of a piece or an item shows the direction of its call.

They belong to ``frames``, which defines the whole wire. An A2A request or answer is in ``d``, unchanged. If it is
longer than one frame, its JSON text is sent before in ``more`` frames, followed by a frame without ``d``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Final, Literal, TypeAlias

from passerelle.core.wire.json import Json, JsonObject
from passerelle.protocol.frame_codec import Frame
from passerelle.protocol.members import NAME, Integer, ObjectValue, Prose, Text, Wire, Word

PIECE_CHARS: Final = 131_072
"""Characters of a piece; in UTF-8, and escaped, it stays below the frame limit."""
AGENT_METHODS: Final = "a2a:"
"""The prefix of an A2A method name."""
HOST_IDS: Final = "g"
"""The prefix of the ids of the gateway's calls."""

UnregisterCode: TypeAlias = Literal["superseded", "forbidden", "asked"]

_Agent: TypeAlias = Annotated[str, Wire("agent", Text(), "registered name")]
_Id: TypeAlias = Annotated[str, Wire("id", Text(), "that of the call")]
_Data: TypeAlias = Annotated[
    JsonObject | None,
    Wire("d", ObjectValue(), "content; absent if it was sent in `more`"),
]


@dataclass(frozen=True, slots=True)
class Register(Frame):
    """Register as an agent. The name must be granted to the credential."""

    TAG: ClassVar = "reg"
    agent: _Agent
    card: Annotated[
        JsonObject, Wire("card", ObjectValue(), "A2A agent card; its addresses are ignored")
    ]
    most: Annotated[int, Wire("max", Integer(least=1), "concurrent calls that it accepts")] = 8


@dataclass(frozen=True, slots=True)
class Unregister(Frame):
    """Stop serving an agent; active calls go on."""

    TAG: ClassVar = "unreg"
    agent: _Agent


@dataclass(frozen=True, slots=True)
class AnswerItem(Frame):
    """One answer of a streaming call: a StreamResponse."""

    TAG: ClassVar = "item"
    id: _Id
    number: Annotated[int, Wire("n", Integer(least=1), "counts the items of the call")]
    data: _Data = None


@dataclass(frozen=True, slots=True)
class AnswerPiece(Frame):
    """A piece of the JSON text that is the ``d`` of the next ``item``, ``ok`` or ``rpc`` with this id."""

    TAG: ClassVar = "more"
    id: _Id
    text: Annotated[str, Wire("x", Prose(), "the piece")]


@dataclass(frozen=True, slots=True)
class Done(Frame):
    """The answer to a call, or the end of a streaming one."""

    TAG: ClassVar = "ok"
    id: _Id
    data: _Data = None


@dataclass(frozen=True, slots=True)
class Failed(Frame):
    """The call was refused, or failed. ``d`` has the ``code`` and ``data`` of an A2A error, and the HTTP ``status``."""

    TAG: ClassVar = "err"
    id: _Id
    code: Annotated[str, Wire("code", Text(), "`busy`, `a2a`, `status` or `failed`")]
    message: Annotated[str, Wire("msg", Prose(), "for people")] = ""
    retry_s: Annotated[
        int | None, Wire("retry", Integer(), "seconds after which a retry can help")
    ] = None
    data: Annotated[JsonObject | None, Wire("d", ObjectValue(), "details")] = None


@dataclass(frozen=True, slots=True)
class TakeMore(Frame):
    """Credit for ``n`` more items of the agent's own call: the earlier ones were processed."""

    TAG: ClassVar = "win"
    id: _Id
    number: Annotated[int, Wire("n", Integer(least=1), "items")]


@dataclass(frozen=True, slots=True)
class StopAsking(Frame):
    """The agent no longer waits for its own call; the started work goes on."""

    TAG: ClassVar = "cancel"
    id: _Id


@dataclass(frozen=True, slots=True)
class Registered(Frame):
    """The name is served from now on."""

    TAG: ClassVar = "reg"
    FIXED: ClassVar[Mapping[str, Json]] = {"ok": True}
    agent: _Agent
    url: Annotated[str, Wire("url", Text(NAME), "its address for callers")]
    generation: Annotated[int, Wire("gen", Integer(), "counts the registrations of the name")]


@dataclass(frozen=True, slots=True)
class Unregistered(Frame):
    """The name is no longer served over this socket."""

    TAG: ClassVar = "unreg"
    agent: _Agent
    code: Annotated[UnregisterCode, Wire("code", Word(UnregisterCode), "why")]


@dataclass(frozen=True, slots=True)
class AgentCall(Frame):
    """A call to the agent."""

    TAG: ClassVar = "rpc"
    id: _Id
    to: Annotated[str, Wire("to", Text(), "the agent, by its registered name")]
    method: Annotated[str, Wire("m", Text(), "`a2a:` and the A2A 1.0 name of the method")]
    deadline_ms: Annotated[
        int | None, Wire("dl", Integer(), "ms until the answer is no longer needed")
    ] = None
    window: Annotated[
        int | None, Wire("win", Integer(least=1), "items that may be sent before `win` brings more")
    ] = None
    headers: Annotated[
        JsonObject, Wire("hdr", ObjectValue(), "A2A service parameters, and the trace")
    ] = field(default_factory=dict[str, Json])
    data: _Data = None


@dataclass(frozen=True, slots=True)
class Credit(Frame):
    """Credit for ``n`` more items. It may be more than were stored, if items are small, or fewer."""

    TAG: ClassVar = "win"
    id: _Id
    number: Annotated[int, Wire("n", Integer(least=1), "items")]


@dataclass(frozen=True, slots=True)
class StopWaiting(Frame):
    """The gateway no longer waits for this call; the started work goes on."""

    TAG: ClassVar = "cancel"
    id: _Id


@dataclass(frozen=True, slots=True)
class CallPiece(Frame):
    """A piece of the JSON text of a call to the agent, or of an answer to its own call, sent before it."""

    TAG: ClassVar = "more"
    id: _Id
    text: Annotated[str, Wire("x", Prose(), "the piece")]


@dataclass(frozen=True, slots=True)
class StreamItem(Frame):
    """One answer of the agent's own streaming call: a StreamResponse."""

    TAG: ClassVar = "item"
    id: _Id
    number: Annotated[int, Wire("n", Integer(least=1), "counts the items of the call")]
    cursor: Annotated[
        str | None, Wire("c", Text(), "cursor after it: `after` of a later SubscribeToTask")
    ] = None
    data: _Data = None


AnswerFrame: TypeAlias = AnswerItem | AnswerPiece | Done | Failed
"""Frames of an agent about a call to it."""
AskingFrame: TypeAlias = TakeMore | StopAsking
"""Frames of an agent about its own calls."""
ServingFrame: TypeAlias = Register | Unregister | AnswerFrame
"""Frames of an agent about what it serves."""
AgentFrame: TypeAlias = ServingFrame | AskingFrame
"""Frames of an agent besides those of every client."""
HostFrame: TypeAlias = (
    Registered | Unregistered | AgentCall | Credit | StopWaiting | CallPiece | StreamItem
)
"""Frames that are sent to agents only."""
