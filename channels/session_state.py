"""The state of a connection, and small changes that all parts of its state machine make."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from enum import StrEnum
from typing import TypeAlias

from passerelle.channels.acks import choose_later
from passerelle.channels.limits import ChannelLimits
from passerelle.channels.outputs import Output, StoreAcks
from passerelle.core.wire.record import change, value
from passerelle.protocol.cursor import Cursor
from passerelle.protocol.frames import Hello, SayPresence


class ConnectionPhase(StrEnum):
    """The phase of a connection."""

    GREETING = "greeting"
    ADMITTING = "admitting"
    OPEN = "open"
    CLOSED = "closed"


@value
class ConnectionState:
    """The whole state of the machine. ``sent`` is, per stream, the last cursor sent to the client."""

    limits: ChannelLimits
    opened_s: float
    heard_s: float
    phase: ConnectionPhase = ConnectionPhase.GREETING
    hello: Hello | None = None
    sent: Mapping[str, Cursor | None] = field(default_factory=dict[str, "Cursor | None"])
    calls: frozenset[str] = frozenset()
    asks: frozenset[str] = frozenset()
    """Calls to other agents. The reader continues meanwhile: the called agent may be on the same socket."""
    acks: Mapping[str, Cursor] = field(default_factory=dict[str, Cursor])
    """Acknowledged, not yet stored."""
    acks_stored_s: float = float("-inf")
    window_s: float = 0.0
    window_frames: int = 0
    refusals: int = 0
    drains_at_s: float | None = None
    expires_s: float | None = None
    """When the credential expires; None if it does not."""
    warned: bool = False
    """Whether the client was warned of the expiry."""
    presence: SayPresence | None = None
    """The presence that the device reported; each heartbeat renews it."""

    @property
    def is_saturated(self) -> bool:
        """Whether the reader should stop reading: TCP backpressure then slows the client down, and nothing queues."""
        return len(self.calls) >= self.limits.calls


ConnectionStep: TypeAlias = tuple[ConnectionState, tuple[Output, ...]]


def start(limits: ChannelLimits, now_s: float) -> ConnectionState:
    """The state of a socket that was just accepted."""
    return ConnectionState(limits, now_s, now_s, window_s=now_s)


def mark(state: ConnectionState, stream: str, cursor: Cursor) -> ConnectionState:
    """Records the last cursor sent to the client for a stream that it follows."""
    if stream not in state.sent or state.sent[stream] is cursor:
        return state
    return change(state, sent={**state.sent, stream: cursor})


def mark_delivered(state: ConnectionState, cursors: Mapping[str, Cursor]) -> ConnectionState:
    """Records delivered positions of several streams; a later position that was sent already is kept."""
    sent = state.sent
    later = {
        stream: choose_later(sent[stream], cursor)
        for stream, cursor in cursors.items()
        if stream in sent
    }
    return change(state, sent={**sent, **later})


def forget(state: ConnectionState, stream: str) -> ConnectionState:
    """Removes a stream that is no longer followed."""
    return change(state, sent={name: sent for name, sent in state.sent.items() if name != stream})


def flush_acks(state: ConnectionState) -> tuple[Output, ...]:
    """Stores all pending acks."""
    return (StoreAcks(state.acks),) if state.acks else ()
