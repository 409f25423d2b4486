"""Every frame of the channel protocol, in both directions: two closed unions, and the only definition of the wire.

A WebSocket text message holds one or more JSON objects separated by a line feed; each has a member ``t``, its type. The
``Wire`` of a field defines its short name and its values. Decoder, encoder, JSON Schema, AsyncAPI document and the
tables of the protocol page are generated from this file (``frame_codec``, ``tools``).

``p`` of an event means: no event of this view lies strictly between ``p`` and ``o``. A client whose cursor is below
``p`` has missed events and subscribes again with its cursor.
"""

# The annotations are evaluated at run time, so their names are imported at run time.

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Final, Literal, TypeAlias, get_args

from passerelle.core.vocabulary import PresenceState, WithdrawalReason
from passerelle.core.wire.json import Json, JsonObject
from passerelle.protocol.cursor import Cursor, GapReason
from passerelle.protocol.frame_codec import Frame, Nested
from passerelle.protocol.members import (
    NAME,
    TOKEN,
    CursorMap,
    CursorText,
    Flag,
    Integer,
    IntegerMap,
    Number,
    ObjectList,
    ObjectValue,
    PresentFlag,
    Prose,
    Switch,
    Text,
    Wire,
    Word,
    WordSet,
)
from passerelle.protocol.reverse_frames import AgentFrame, HostFrame

SUBPROTOCOL: Final = "passerelle.v1+json"
VERSION: Final = 1
CAPABILITIES: Final = frozenset({"rpc", "perm", "vol"})
"""Capabilities of the gateway; used are those that both sides list."""
_MOST_STREAMS: Final = 128
_MOST_FOCUSED: Final = 16

Role: TypeAlias = Literal["ui", "device", "peer", "agent"]
StartAt: TypeAlias = Literal["ack", "snap", "live", "start"]
SnapshotPolicy: TypeAlias = Literal["gap", "first", "never"]
Mode: TypeAlias = Literal["resumed", "acked", "snap", "live", "start", "gap"]
SnapshotPlace: TypeAlias = Literal["inline", "fetch", "none"]
UnsubscribeCode: TypeAlias = Literal["forbidden", "gone", "limit"]

_Stream: TypeAlias = Annotated[
    str, Wire("s", Text(NAME), "stream, by the name it is followed under")
]
_Id: TypeAlias = Annotated[str, Wire("id", Text(), "ties the answer to its call")]
_OptionalId: TypeAlias = Annotated[
    str | None, Wire("id", Text(), "comes back in the answer to this frame")
]
_After: TypeAlias = Annotated[Cursor, Wire("c", CursorText(), "cursor")]
_Data: TypeAlias = Annotated[JsonObject, Wire("d", ObjectValue())]
_Retry: TypeAlias = Annotated[
    int | None, Wire("retry", Integer(), "seconds after which a retry can help")
]


@dataclass(frozen=True, slots=True)
class Subscribe(Frame):
    """Follow a stream: from the cursor ``c``, else from ``from``, else from the device's stored ack."""

    TAG: ClassVar = "sub"
    stream: _Stream
    full: Annotated[
        bool, Wire("view", Switch("full", "plain"), "with reasoning and hidden tasks, or without")
    ] = False
    cursor: Annotated[Cursor | None, Wire("c", CursorText(), "what the client holds")] = None
    start: Annotated[
        StartAt | None, Wire("from", Word(StartAt), "where to begin without a cursor")
    ] = None
    snapshot: Annotated[
        SnapshotPolicy | None,
        Wire("snap", Word(SnapshotPolicy), "when a snapshot is wanted; the stream has a default"),
    ] = None
    max_events: Annotated[
        int | None, Wire("max", Integer(least=1), "events that are replayed before a gap")
    ] = None
    id: _OptionalId = None
    volatile: Annotated[
        bool, Wire("vol", PresentFlag(), "streamed text, too; needs the capability `vol`")
    ] = False


@dataclass(frozen=True, slots=True)
class Hello(Frame):
    """The first frame; opens everything in one round trip."""

    TAG: ClassVar = "hello"
    version: Annotated[int, Wire("v", Integer(least=1), "minor version that the client speaks")]
    device: Annotated[str, Wire("device", Text(), "name of the device, lasting")]
    role: Annotated[Role, Wire("role", Word(Role), "kind of client")]
    token: Annotated[
        str | None, Wire("token", Text(TOKEN), "bearer, where the handshake has none")
    ] = None
    tab: Annotated[str | None, Wire("tab", Text(), "one of several connections of the device")] = (
        None
    )
    sdk: Annotated[str, Wire("sdk", Text(), "client and its version")] = ""
    capabilities: Annotated[frozenset[str], Wire("caps", WordSet(32), "what the client can do")] = (
        frozenset()
    )
    resume: Annotated[str | None, Wire("resume", Text(NAME), "`resume` of the last `welcome`")] = (
        None
    )
    subscriptions: Annotated[
        tuple[Subscribe, ...],
        Wire("subs", Nested(Subscribe, _MOST_STREAMS), "`sub` frames without `t`"),
    ] = ()
    ticket: Annotated[
        str | None, Wire("ticket", Text(), "a ticket in place of a bearer, for browsers")
    ] = None


@dataclass(frozen=True, slots=True)
class Unsubscribe(Frame):
    """Stop following a stream."""

    TAG: ClassVar = "unsub"
    stream: _Stream


@dataclass(frozen=True, slots=True)
class AskSnapshot(Frame):
    """Request the read model of a stream."""

    TAG: ClassVar = "snap"
    stream: _Stream
    id: _OptionalId = None


@dataclass(frozen=True, slots=True)
class Ack(Frame):
    """The device has stored everything up to there. Cumulative; sent after the client's own persistence (CHN-5)."""

    TAG: ClassVar = "ack"
    cursors: Annotated[
        Mapping[str, Cursor], Wire("a", CursorMap(_MOST_STREAMS, least=1), "cursor of each stream")
    ]


@dataclass(frozen=True, slots=True)
class ClientBeat(Frame):
    """Sign of life, which may carry acks."""

    TAG: ClassVar = "hb"
    number: Annotated[int, Wire("n", Integer(), "comes back in the answer")]
    cursors: Annotated[
        Mapping[str, Cursor], Wire("a", CursorMap(_MOST_STREAMS), "acks, as in `ack`")
    ] = field(default_factory=dict[str, Cursor])


@dataclass(frozen=True, slots=True)
class Call(Frame):
    """A command or a read, or a call of an agent to another one. With ``idem`` it takes effect once (CHN-13)."""

    TAG: ClassVar = "rpc"
    id: _Id
    method: Annotated[str, Wire("m", Text(), "method")]
    idem: Annotated[str | None, Wire("idem", Text(), "idempotency key")] = None
    data: _Data = field(default_factory=dict[str, Json])
    to: Annotated[str | None, Wire("to", Text(), "the called agent of an `a2a:` method")] = None
    window: Annotated[
        int | None, Wire("win", Integer(least=1), "items that may be sent before `win` brings more")
    ] = None
    headers: Annotated[
        JsonObject | None, Wire("hdr", ObjectValue(), "A2A service parameters, and the trace")
    ] = None


@dataclass(frozen=True, slots=True)
class Renew(Frame):
    """A new bearer of the same principal, before the current one expires. The link stays open."""

    TAG: ClassVar = "auth"
    token: Annotated[str, Wire("token", Text(TOKEN), "bearer")]


@dataclass(frozen=True, slots=True)
class SayPresence(Frame):
    """The user's presence at the device, for the user's other devices. Refreshed by heartbeats, ends with the link."""

    TAG: ClassVar = "presence"
    state: Annotated[PresenceState, Wire("state", Word(PresenceState), "presence of the user")]
    focus: Annotated[frozenset[str], Wire("focus", WordSet(_MOST_FOCUSED), "streams in focus")] = (
        frozenset()
    )


ClientFrame: TypeAlias = (
    Hello
    | Subscribe
    | Unsubscribe
    | AskSnapshot
    | Ack
    | ClientBeat
    | Call
    | Renew
    | SayPresence
    | AgentFrame
)


@dataclass(frozen=True, slots=True)
class Welcome(Frame):
    """Accepted. Pending approvals come first, from stored state, before any replay."""

    TAG: ClassVar = "welcome"
    connection: Annotated[str, Wire("conn", Text(), "this connection")]
    channel: Annotated[str, Wire("channel", Text(), "this device and tab, lasting")]
    generation: Annotated[int, Wire("gen", Integer(), "counts the connections of the channel")]
    principal: Annotated[str, Wire("principal", Text(NAME), "authenticated principal")]
    capabilities: Annotated[frozenset[str], Wire("caps", WordSet(64), "what both sides can do")]
    heartbeat_s: Annotated[float, Wire("hb", Number(), "seconds between two heartbeats")]
    idle_s: Annotated[float, Wire("idle", Number(), "seconds of silence that end it")]
    limits: Annotated[Mapping[str, int], Wire("limits", IntegerMap(), "limits that a client needs")]
    resume: Annotated[str, Wire("resume", Text(NAME), "to be given back in the next `hello`")]
    now: Annotated[str, Wire("now", Text(), "time of the server, RFC 3339")]
    pending: Annotated[
        tuple[JsonObject, ...], Wire("pending", ObjectList(1_000), "open approvals of the caller")
    ]
    pending_more: Annotated[bool, Wire("pendingMore", Flag(), "whether there are more")]
    expires_s: Annotated[
        int | None, Wire("exp", Integer(), "seconds until the credential expires, if it does")
    ] = None


@dataclass(frozen=True, slots=True)
class Subscribed(Frame):
    """The position from which a stream continues; always with a cursor, also for an empty stream."""

    TAG: ClassVar = "sub"
    FIXED: ClassVar[Mapping[str, Json]] = {"ok": True}
    stream: _Stream
    mode: Annotated[Mode, Wire("mode", Word(Mode), "how the stream starts")]
    cursor: _After
    dense: Annotated[bool, Wire("dense", Flag(), "whether the view hides nothing")]
    missed: Annotated[int, Wire("n", Integer(), "sequences between `c` and the end")]
    id: _OptionalId = None


@dataclass(frozen=True, slots=True)
class Unsubscribed(Frame):
    """The subscription has ended."""

    TAG: ClassVar = "unsub"
    stream: _Stream
    code: Annotated[UnsubscribeCode, Wire("code", Word(UnsubscribeCode), "why")]


@dataclass(frozen=True, slots=True)
class Event(Frame):
    """One stored event; the server builds this frame from stored bytes."""

    TAG: ClassVar = "ev"
    stream: _Stream
    sequence: Annotated[int, Wire("o", Integer(least=1), "sequence")]
    previous: Annotated[int, Wire("p", Integer(), "no event of this view lies between it and `o`")]
    chain: Annotated[str, Wire("h", Text(), "chain after this event")]
    data: Annotated[JsonObject, Wire("d", ObjectValue(), "the event, as it is stored")]


@dataclass(frozen=True, slots=True)
class Volatile(Frame):
    """Streamed text, for a block of exactly ``at`` characters. The event that closes the block has all of it."""

    TAG: ClassVar = "vol"
    stream: _Stream
    block: Annotated[str, Wire("blk", Text(NAME), "`<task>/<artifact>`")]
    at: Annotated[
        int, Wire("at", Integer(), "characters (code points) before it; at 0 the block begins anew")
    ]
    text: Annotated[str, Wire("d", Prose(), "text")]


@dataclass(frozen=True, slots=True)
class Live(Frame):
    """The replay has ended; sent each time a subscriber has caught up."""

    TAG: ClassVar = "live"
    stream: _Stream
    cursor: _After
    replayed: Annotated[int, Wire("n", Integer(), "events that were replayed")]


@dataclass(frozen=True, slots=True)
class Gap(Frame):
    """The cursor cannot be honoured (I8)."""

    TAG: ClassVar = "gap"
    stream: _Stream
    why: Annotated[GapReason, Wire("why", Word(GapReason), "what happened")]
    have: Annotated[Cursor | None, Wire("have", CursorText(), "cursor that does not verify")]
    top: Annotated[
        Cursor | None, Wire("top", CursorText(), "end of the stream; absent where none is left")
    ]
    first: Annotated[int | None, Wire("first", Integer(), "first sequence that is still kept")]
    snapshot: Annotated[
        SnapshotPlace, Wire("snap", Word(SnapshotPlace), "how the state comes, if at all")
    ]
    url: Annotated[str | None, Wire("url", Text(TOKEN), "where to fetch it")] = None


@dataclass(frozen=True, slots=True)
class Snapshot(Frame):
    """The read model as of ``c``; events after it follow."""

    TAG: ClassVar = "snap"
    stream: _Stream
    cursor: _After
    data: _Data
    id: _OptionalId = None


@dataclass(frozen=True, slots=True)
class ServerBeat(Frame):
    """Answers a heartbeat; its cursors move filtered views past events that this caller does not see."""

    TAG: ClassVar = "hb"
    number: Annotated[int, Wire("n", Integer(), "that of the client's")]
    cursors: Annotated[
        Mapping[str, Cursor], Wire("c", CursorMap(_MOST_STREAMS), "cursor of each stream")
    ] = field(default_factory=dict[str, Cursor])


@dataclass(frozen=True, slots=True)
class Answer(Frame):
    """The result of a call."""

    TAG: ClassVar = "ok"
    id: Annotated[str, Wire("id", Text(NAME), "that of the call")]
    data: _Data = field(default_factory=dict[str, Json])


@dataclass(frozen=True, slots=True)
class Failure(Frame):
    """The frame with this id was not executed."""

    TAG: ClassVar = "err"
    id: Annotated[str, Wire("id", Text(NAME), "that of the call")]
    code: Annotated[str, Wire("code", Text(), "stable code")]
    message: Annotated[str, Wire("msg", Prose(), "for people")]
    retry_s: _Retry = None
    data: Annotated[JsonObject | None, Wire("d", ObjectValue(), "details")] = None


@dataclass(frozen=True, slots=True)
class Refusal(Frame):
    """A frame was refused and changed nothing; a close follows a fatal one."""

    TAG: ClassVar = "error"
    code: Annotated[str, Wire("code", Text(), "stable code")]
    message: Annotated[str, Wire("msg", Prose(), "for people")]
    of: Annotated[str | None, Wire("of", Text(), "type of the frame that was refused")] = None
    stream: Annotated[str | None, Wire("s", Text(NAME), "stream that it was about")] = None
    fatal: Annotated[bool, Wire("fatal", Flag(), "whether a close follows")] = False
    retry_s: _Retry = None
    id: Annotated[str | None, Wire("id", Text(), "that of a `sub` or `snap` with one")] = None


@dataclass(frozen=True, slots=True)
class Expiry(Frame):
    """The credential expires soon: send ``auth`` with a new one. Sent again, with the new time, once accepted."""

    TAG: ClassVar = "auth"
    expires_s: Annotated[int, Wire("exp", Integer(), "seconds until the credential expires")]


@dataclass(frozen=True, slots=True)
class Drain(Frame):
    """Connect elsewhere first, then close this one."""

    TAG: ClassVar = "drain"
    within_ms: Annotated[int, Wire("in", Integer(), "ms until this connection is closed")]
    jitter_ms: Annotated[int, Wire("jitter", Integer(), "ms; wait a random part of it first")]


@dataclass(frozen=True, slots=True)
class ShowPresence(Frame):
    """The user's devices with a presence of the last minute, sent to these devices. No event, and no fact."""

    TAG: ClassVar = "presence"
    stream: Annotated[str, Wire("s", Text(NAME), "inbox of the person")]
    devices: Annotated[
        tuple[JsonObject, ...],
        Wire("devices", ObjectList(1_000), "`device`, `tab`, `state`, `focus` of each"),
    ]


@dataclass(frozen=True, slots=True)
class Withdrawn(Frame):
    """This device may no longer see an open approval, or no longer answer it. The approval itself is unchanged."""

    TAG: ClassVar = "action.withdrawn"
    action: Annotated[str, Wire("action", Text(NAME), "the approval")]
    why: Annotated[
        WithdrawalReason,
        Wire("why", Word(WithdrawalReason), "the right that the device has lost"),
    ]


ServerFrame: TypeAlias = (
    Welcome
    | Subscribed
    | Unsubscribed
    | Event
    | Volatile
    | Live
    | Gap
    | Snapshot
    | ServerBeat
    | Answer
    | Failure
    | Refusal
    | Expiry
    | Drain
    | HostFrame
    | ShowPresence
    | Withdrawn
)

CLIENT_TYPES: Final = frozenset(frame.TAG for frame in get_args(ClientFrame))
SERVER_ONLY_TYPES: Final = frozenset(frame.TAG for frame in get_args(ServerFrame)) - CLIENT_TYPES
"""A client that sends one of these claims to be the server: refused, without effect (CMD-29)."""
