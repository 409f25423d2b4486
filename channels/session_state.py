"""The state of a connection: what its machine decides by, and the small changes that all of its parts make."""

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
    """Where a connection stands."""

    GREETING = "greeting"
    ADMITTING = "admitting"
    OPEN = "open"
    CLOSED = "closed"


@value
class ConnectionState:
    """Everything that a decision needs. ``told`` is per stream the last cursor that the client was given."""

    limits: ChannelLimits
    opened_s: float
    heard_s: float
    phase: ConnectionPhase = ConnectionPhase.GREETING
    hello: Hello | None = None
    told: Mapping[str, Cursor | None] = field(default_factory=dict[str, "Cursor | None"])
    calls: frozenset[str] = frozenset()
    asks: frozenset[str] = frozenset()
    """Calls to other agents. The reader goes on beside them: their agent is called over the same socket."""
    acks: Mapping[str, Cursor] = field(default_factory=dict[str, Cursor])
    """Acknowledged, not yet stored."""
    acks_stored_s: float = float("-inf")
    window_s: float = 0.0
    window_frames: int = 0
    refusals: int = 0
    drains_at_s: float | None = None
    expires_s: float | None = None
    """When the credential ends; None where it does not."""
    warned: bool = False
    """Whether the client knows that it ends soon."""
    presence: SayPresence | None = None
    """What the device says of whoever sits before it; each heartbeat says it again."""

    @property
    def is_saturated(self) -> bool:
        """Whether the reader should stop reading: TCP then slows the client down, nothing queues."""
        return len(self.calls) >= self.limits.calls


ConnectionStep: TypeAlias = tuple[ConnectionState, tuple[Output, ...]]


def start(limits: ChannelLimits, now_s: float) -> ConnectionState:
    """The state of a socket that has just been accepted."""
    return ConnectionState(limits, now_s, now_s, window_s=now_s)


def mark(state: ConnectionState, stream: str, cursor: Cursor) -> ConnectionState:
    """Notes the last cursor that the client was given of a stream that it follows."""
    if stream not in state.told or state.told[stream] is cursor:
        return state
    return change(state, told={**state.told, stream: cursor})


def mark_delivered(state: ConnectionState, cursors: Mapping[str, Cursor]) -> ConnectionState:
    """Notes how far events of several streams were delivered; what the client was told since may be further."""
    told = state.told
    later = {
        stream: choose_later(told[stream], cursor)
        for stream, cursor in cursors.items()
        if stream in told
    }
    return change(state, told={**told, **later})


def forget(state: ConnectionState, stream: str) -> ConnectionState:
    """A stream is not followed any more."""
    return change(state, told={name: told for name, told in state.told.items() if name != stream})


def flush_acks(state: ConnectionState) -> tuple[Output, ...]:
    """Has every ack stored that is not yet."""
    return (StoreAcks(state.acks),) if state.acks else ()
