"""The inputs of a connection's state machine, as a closed union."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from passerelle.core.ports.channels import AckResult
from passerelle.protocol.closing import CloseCode
from passerelle.protocol.cursor import Cursor
from passerelle.protocol.frames import (
    Answer,
    ClientFrame,
    Failure,
    Gap,
    Live,
    Refusal,
    ShowPresence,
    Snapshot,
    Subscribed,
    Unsubscribed,
    Welcome,
    Withdrawn,
)

NoticeFrame: TypeAlias = (
    Subscribed | Live | Gap | Snapshot | Unsubscribed | Refusal | Failure | ShowPresence | Withdrawn
)


@dataclass(frozen=True, slots=True)
class Received:
    """A frame arrived. ``reached`` has the positions of live streams, hidden events included."""

    frame: ClientFrame
    reached: Mapping[str, Cursor] = field(default_factory=dict[str, Cursor])


@dataclass(frozen=True, slots=True)
class Undecodable:
    """Data arrived that is no valid client frame; ``answer`` reports that."""

    answer: Refusal | Failure


@dataclass(frozen=True, slots=True)
class Admitted:
    """The credential is valid, until ``expires_s`` if it expires."""

    welcome: Welcome
    expires_s: float | None = None


@dataclass(frozen=True, slots=True)
class Renewed:
    """A new credential of the same principal is valid, until ``expires_s`` if it expires."""

    expires_s: float | None


@dataclass(frozen=True, slots=True)
class NoticeDue:
    """A notice for the client: about a stream, its other devices, or a request that it may no longer see."""

    frame: NoticeFrame


@dataclass(frozen=True, slots=True)
class EventsDelivered:
    """Events of streams were handed to the writer, up to these cursors."""

    cursors: Mapping[str, Cursor]


@dataclass(frozen=True, slots=True)
class AckJudged:
    """The store's result for an acknowledgement."""

    stream: str
    result: AckResult


@dataclass(frozen=True, slots=True)
class CallAnswered:
    """A call has its result."""

    frame: Answer | Failure


@dataclass(frozen=True, slots=True)
class Ticked:
    """Time has passed."""


@dataclass(frozen=True, slots=True)
class DrainAsked:
    """This instance shuts down."""

    within_ms: int
    jitter_ms: int


@dataclass(frozen=True, slots=True)
class EndRequested:
    """The connection has to end, for a reason found outside of the state machine."""

    code: CloseCode
    notice: Refusal | None = None


@dataclass(frozen=True, slots=True)
class SocketGone:
    """The socket is closed."""


Input: TypeAlias = (
    Received
    | Undecodable
    | Admitted
    | Renewed
    | NoticeDue
    | EventsDelivered
    | AckJudged
    | CallAnswered
    | Ticked
    | DrainAsked
    | EndRequested
    | SocketGone
)
