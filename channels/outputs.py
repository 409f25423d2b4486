"""The outputs of a connection's state machine, as a closed union."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from passerelle.protocol.closing import CloseCode
from passerelle.protocol.cursor import Cursor
from passerelle.protocol.frames import (
    AskSnapshot,
    Call,
    Hello,
    SayPresence,
    ServerFrame,
    Subscribe,
)
from passerelle.protocol.reverse_frames import AnswerPiece, AskingFrame, ServingFrame


@dataclass(frozen=True, slots=True)
class Send:
    """Send a frame, after everything that was sent before."""

    frame: ServerFrame


@dataclass(frozen=True, slots=True)
class Admit:
    """Authenticate a ``hello``; answer with ``Admitted`` or ``EndRequested``."""

    hello: Hello


@dataclass(frozen=True, slots=True)
class Reauthenticate:
    """Authenticate a new credential in place of the current one; answer with ``Renewed`` or ``EndRequested``."""

    token: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Open:
    """Follow a stream, replacing this connection's subscription of that name."""

    subscribe: Subscribe


@dataclass(frozen=True, slots=True)
class Release:
    """Stop following a stream."""

    stream: str


@dataclass(frozen=True, slots=True)
class TakeSnapshot:
    """Build a snapshot that the client asked for."""

    ask: AskSnapshot


@dataclass(frozen=True, slots=True)
class StoreAcks:
    """Store acknowledged cursors, by stream."""

    cursors: Mapping[str, Cursor]


@dataclass(frozen=True, slots=True)
class Execute:
    """Carry out a call; answer with ``CallAnswered``."""

    call: Call


@dataclass(frozen=True, slots=True)
class Serve:
    """Process a frame of an agent: a registration, or an answer to a call to it."""

    frame: ServingFrame


@dataclass(frozen=True, slots=True)
class Ask:
    """Process a call of an agent to another agent, or a frame about such a call; answer with ``CallAnswered``."""

    frame: Call | AskingFrame | AnswerPiece


@dataclass(frozen=True, slots=True)
class NotePresence:
    """Store the presence of the device, for a limited time."""

    said: SayPresence


@dataclass(frozen=True, slots=True)
class Close:
    """Close the socket."""

    code: CloseCode
    reason: str


Output: TypeAlias = (
    Send
    | Admit
    | Reauthenticate
    | Open
    | Release
    | TakeSnapshot
    | StoreAcks
    | Execute
    | Serve
    | Ask
    | NotePresence
    | Close
)
