"""Frames of an agent that dials in: it registers a name, is called under it, and answers over the same socket.

It may call other agents over it, too: with ``rpc``, as everybody carries out commands. The ids of its calls never begin
as those of the gateway's do, so a piece or an item says by its id which way the call went.

They belong to ``frames``, which is the definition of the whole wire. An A2A request or answer stands in ``d`` as it is.
What is longer than one frame may be goes ahead in ``more`` frames: the JSON text in pieces, and a frame without ``d``
behind the last one.
"""

# The annotations are read at run time, so what they name is imported for real.

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Final, Literal, TypeAlias

from passerelle.core.wire.json import Json, JsonObject
from passerelle.protocol.frame_codec import Frame
from passerelle.protocol.members import NAME, Integer, ObjectValue, Prose, Text, Wire, Word

AGENT_METHODS: Final = "a2a:"
"""What stands before the A2A name of a method."""
HOST_IDS: Final = "g"
"""How the ids of the gateway's calls begin."""

UnregisterCode: TypeAlias = Literal["superseded", "forbidden", "asked"]

_Agent: TypeAlias = Annotated[str, Wire("agent", Text(), "name that it is served under")]
_Id: TypeAlias = Annotated[str, Wire("id", Text(), "that of the call")]
_Data: TypeAlias = Annotated[
    JsonObject | None,
    Wire("d", ObjectValue(), "what it says; absent where it went ahead in `more`"),
]


@dataclass(frozen=True, slots=True)
class Register(Frame):
    """Be served as an agent. The name has to be granted to the credential."""

    TAG: ClassVar = "reg"
    agent: _Agent
    card: Annotated[
        JsonObject, Wire("card", ObjectValue(), "A2A agent card; its addresses do not count")
    ]
    most: Annotated[int, Wire("max", Integer(least=1), "calls that it takes at once")] = 8


@dataclass(frozen=True, slots=True)
class Unregister(Frame):
    """Be served no more; calls that are under way go on."""

    TAG: ClassVar = "unreg"
    agent: _Agent


@dataclass(frozen=True, slots=True)
class AnswerItem(Frame):
    """One more of the answers to a streaming call: a StreamResponse."""

    TAG: ClassVar = "item"
    id: _Id
    number: Annotated[int, Wire("n", Integer(least=1), "counts the items of the call")]
    data: _Data = None


@dataclass(frozen=True, slots=True)
class AnswerPiece(Frame):
    """A piece of the JSON text that the next ``item``, ``ok`` or ``rpc`` with this id has as its ``d``."""

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
    """The call was refused, or failed. ``d`` has the ``code`` of an A2A error, or the ``status`` of an HTTP one."""

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
    """So many more items of the agent's own call may be sent: what was sent before is taken."""

    TAG: ClassVar = "win"
    id: _Id
    number: Annotated[int, Wire("n", Integer(least=1), "items")]


@dataclass(frozen=True, slots=True)
class StopAsking(Frame):
    """The agent waits for its own call no more; what it began goes on."""

    TAG: ClassVar = "cancel"
    id: _Id


@dataclass(frozen=True, slots=True)
class Registered(Frame):
    """The name is served from now on."""

    TAG: ClassVar = "reg"
    FIXED: ClassVar[Mapping[str, Json]] = {"ok": True}
    agent: _Agent
    url: Annotated[str, Wire("url", Text(NAME), "where callers find it")]
    generation: Annotated[int, Wire("gen", Integer(), "counts the registrations of the name")]


@dataclass(frozen=True, slots=True)
class Unregistered(Frame):
    """The name is not served over this socket any more."""

    TAG: ClassVar = "unreg"
    agent: _Agent
    code: Annotated[UnregisterCode, Wire("code", Word(UnregisterCode), "why")]


@dataclass(frozen=True, slots=True)
class AgentCall(Frame):
    """A call to the agent."""

    TAG: ClassVar = "rpc"
    id: _Id
    to: Annotated[str, Wire("to", Text(), "the agent, by the name it has registered")]
    method: Annotated[str, Wire("m", Text(), "`a2a:` and the A2A 1.0 name of the method")]
    deadline_ms: Annotated[int | None, Wire("dl", Integer(), "ms for which an answer helps")] = None
    window: Annotated[
        int | None, Wire("win", Integer(least=1), "items that may be sent before `win` brings more")
    ] = None
    headers: Annotated[
        JsonObject, Wire("hdr", ObjectValue(), "A2A service parameters, and the trace")
    ] = field(default_factory=dict[str, Json])
    data: _Data = None


@dataclass(frozen=True, slots=True)
class Credit(Frame):
    """So many more items may be sent: what was sent before is stored."""

    TAG: ClassVar = "win"
    id: _Id
    number: Annotated[int, Wire("n", Integer(least=1), "items")]


@dataclass(frozen=True, slots=True)
class StopWaiting(Frame):
    """Nobody waits for this call any more; what it began goes on."""

    TAG: ClassVar = "cancel"
    id: _Id


@dataclass(frozen=True, slots=True)
class CallPiece(Frame):
    """A piece of the JSON text of a call to the agent, or of an answer to its own call, ahead of it."""

    TAG: ClassVar = "more"
    id: _Id
    text: Annotated[str, Wire("x", Prose(), "the piece")]


@dataclass(frozen=True, slots=True)
class StreamItem(Frame):
    """One more of the answers to a streaming call of the agent's own: a StreamResponse."""

    TAG: ClassVar = "item"
    id: _Id
    number: Annotated[int, Wire("n", Integer(least=1), "counts the items of the call")]
    cursor: Annotated[
        str | None, Wire("c", Text(), "cursor after it: `after` of a later SubscribeToTask")
    ] = None
    data: _Data = None


AnswerFrame: TypeAlias = AnswerItem | AnswerPiece | Done | Failed
"""What an agent says about a call."""
AskingFrame: TypeAlias = TakeMore | StopAsking
"""What an agent says about its own calls."""
ServingFrame: TypeAlias = Register | Unregister | AnswerFrame
"""What it says about what it serves."""
AgentFrame: TypeAlias = ServingFrame | AskingFrame
"""What an agent may send beside what every client may."""
HostFrame: TypeAlias = (
    Registered | Unregistered | AgentCall | Credit | StopWaiting | CallPiece | StreamItem
)
"""What only an agent is sent."""
