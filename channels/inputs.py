"""The inputs of a connection's state machine, as a closed union."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import TypeAlias

from passerelle.core.frozen import frozen
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


@frozen
class Received:
    """A frame arrived. ``reached`` has the positions of live streams, hidden events included."""

    frame: ClientFrame
    reached: Mapping[str, Cursor] = field(default_factory=dict[str, Cursor])


@frozen
class Undecodable:
    """Data arrived that is no valid client frame; ``answer`` reports that."""

    answer: Refusal | Failure


@frozen
class Admitted:
    """The credential is valid, until ``expires_s`` if it expires."""

    welcome: Welcome
    expires_s: float | None = None


@frozen
class Renewed:
    """A new credential of the same principal is valid, until ``expires_s`` if it expires."""

    expires_s: float | None


@frozen
class NoticeDue:
    """A notice for the client: about a stream, its other devices, or a request that it may no longer see."""

    frame: NoticeFrame


@frozen
class EventsDelivered:
    """Events of streams were handed to the writer, up to these cursors."""

    cursors: Mapping[str, Cursor]


@frozen
class AckJudged:
    """The store's result for an acknowledgement."""

    stream: str
    result: AckResult


@frozen
class CallAnswered:
    """A call has its result."""

    frame: Answer | Failure


@frozen
class Ticked:
    """Time has passed. ``waits``: meanwhile no frames of the client are read."""

    waits: bool = False


@frozen
class DrainAsked:
    """This instance shuts down."""

    within_ms: int
    jitter_ms: int


@frozen
class EndRequested:
    """The connection has to end, for a reason found outside of the state machine."""

    code: CloseCode
    notice: Refusal | None = None


@frozen
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
