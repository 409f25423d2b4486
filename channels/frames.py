"""Every frame of the channel protocol, in both directions: two closed unions.

A WebSocket text message holds one or more JSON objects separated by a line feed; each has a member
``t``. Short member names travel (``s`` stream, ``c`` cursor, ``o`` sequence, ``p`` previous, ``h`` chain,
``d`` data, ``m`` method), long ones stand here. ``channels.wire`` turns one into the other.

``p`` of an event says: no event of this view lies strictly between ``p`` and ``o``. A client that holds
a cursor below ``p`` has missed something and subscribes again with the cursor it holds.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping

    from passerelle.channels.cursor import Cursor, GapReason
    from passerelle.core.json import JsonObject

SUBPROTOCOL: Final = "passerelle.v1+json"
VERSION: Final = 1
CAPABILITIES: Final = frozenset({"rpc", "perm"})
"""What this side can do; what is used is the intersection with the other side's list."""

Role: TypeAlias = Literal["ui", "device", "peer", "agent"]
StartAt: TypeAlias = Literal["ack", "snap", "live", "start"]
SnapshotWish: TypeAlias = Literal["gap", "first", "never"]
Mode: TypeAlias = Literal["resumed", "acked", "snap", "live", "start", "gap"]
SnapshotPlace: TypeAlias = Literal["inline", "fetch", "none"]
UnsubscribeCode: TypeAlias = Literal["forbidden", "gone", "limit"]


@dataclass(frozen=True, slots=True)
class Subscribe:
    """``sub``: follow a stream from ``cursor``, else from ``start``, else from the stored ack."""

    stream: str
    full: bool = False
    cursor: Cursor | None = None
    start: StartAt | None = None
    snapshot: SnapshotWish | None = None
    """When a snapshot is wanted: after a gap, before the replay, or never; None is the stream's own default."""
    max_events: int | None = None
    id: str | None = None


@dataclass(frozen=True, slots=True)
class Hello:
    """``hello``: the first frame; opens everything in one round trip."""

    version: int
    token: str | None
    device: str
    tab: str | None
    role: Role
    sdk: str
    capabilities: frozenset[str]
    resume: str | None
    subscriptions: tuple[Subscribe, ...]


@dataclass(frozen=True, slots=True)
class Unsubscribe:
    """``unsub``: stop following."""

    stream: str


@dataclass(frozen=True, slots=True)
class AskSnapshot:
    """``snap`` from a client: the read model of a stream, now."""

    stream: str
    id: str | None = None


@dataclass(frozen=True, slots=True)
class Ack:
    """``ack``: cumulative, per stream; sent after the client's own persistence (CHN-5)."""

    cursors: Mapping[str, Cursor]


@dataclass(frozen=True, slots=True)
class ClientBeat:
    """``hb`` from a client, which may carry acks."""

    number: int
    cursors: Mapping[str, Cursor] = field(default_factory=dict[str, "Cursor"])


@dataclass(frozen=True, slots=True)
class Call:
    """``rpc``: a command or a read of the control plane. With ``idem`` it has its effect once (CHN-13)."""

    id: str
    method: str
    idem: str | None
    data: JsonObject


ClientFrame: TypeAlias = Hello | Subscribe | Unsubscribe | AskSnapshot | Ack | ClientBeat | Call


@dataclass(frozen=True, slots=True)
class Welcome:
    """``welcome``: accepted. ``pending`` are the open actions this device may see, read from keyed state."""

    connection: str
    channel: str
    generation: int
    principal: str
    capabilities: tuple[str, ...]
    heartbeat_s: float
    idle_s: float
    limits: Mapping[str, int]
    resume: str
    now: str
    pending: tuple[JsonObject, ...]
    pending_more: bool


@dataclass(frozen=True, slots=True)
class Subscribed:
    """``sub`` from the server: always with a cursor, also for a stream that has no event yet.

    ``missed`` is how many sequences lie between ``cursor`` and the end.
    """

    stream: str
    mode: Mode
    cursor: Cursor
    dense: bool
    missed: int
    id: str | None = None


@dataclass(frozen=True, slots=True)
class Unsubscribed:
    """``unsub`` from the server: it has stopped sending this stream."""

    stream: str
    code: UnsubscribeCode


@dataclass(frozen=True, slots=True)
class Event:
    """``ev``: one stored event, as a client reads it; the server builds the frame out of stored bytes."""

    stream: str
    sequence: int
    previous: int
    chain: str
    data: JsonObject


@dataclass(frozen=True, slots=True)
class Live:
    """``live``: the replay has ended; sent each time a reader joins the ring."""

    stream: str
    cursor: Cursor
    replayed: int


@dataclass(frozen=True, slots=True)
class Gap:
    """``gap``: the cursor cannot be honoured (I8). ``top`` is None where no stream is left."""

    stream: str
    why: GapReason
    have: Cursor | None
    top: Cursor | None
    first: int | None
    snapshot: SnapshotPlace
    url: str | None = None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """``snap``: the read model as of ``cursor``; events after it follow."""

    stream: str
    cursor: Cursor
    data: JsonObject
    id: str | None = None


@dataclass(frozen=True, slots=True)
class ServerBeat:
    """``hb`` from the server; ``cursors`` moves filtered views past events that this caller does not see."""

    number: int
    cursors: Mapping[str, Cursor] = field(default_factory=dict[str, "Cursor"])


@dataclass(frozen=True, slots=True)
class Answer:
    """``ok``: the result of the frame with this id."""

    id: str
    data: JsonObject


@dataclass(frozen=True, slots=True)
class Failure:
    """``err``: the frame with this id was not carried out; ``retry_s`` where trying again can help."""

    id: str
    code: str
    message: str
    retry_s: int | None = None
    data: JsonObject | None = None


@dataclass(frozen=True, slots=True)
class Refusal:
    """``error``: a frame was refused and changed nothing; a close follows a fatal one."""

    code: str
    message: str
    of: str | None = None
    stream: str | None = None
    fatal: bool = False
    retry_s: int | None = None


@dataclass(frozen=True, slots=True)
class Drain:
    """``drain``: connect elsewhere within ``within_ms`` plus a random part of ``jitter_ms``, then close this one."""

    within_ms: int
    jitter_ms: int


ServerFrame: TypeAlias = (
    Welcome
    | Subscribed
    | Unsubscribed
    | Event
    | Live
    | Gap
    | Snapshot
    | ServerBeat
    | Answer
    | Failure
    | Refusal
    | Drain
)

CLIENT_TYPES: Final = frozenset({"hello", "sub", "unsub", "snap", "ack", "hb", "rpc"})
SERVER_ONLY_TYPES: Final = frozenset(
    {"welcome", "ev", "vol", "live", "gap", "ok", "err", "error", "drain", "action.withdrawn"}
)
"""A client that sends one of these claims to be the server: refused, and nothing changes (CMD-29)."""
