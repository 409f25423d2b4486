"""The outputs of a connection's state machine, as a closed union."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import TypeAlias

from passerelle.core.frozen import frozen
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


@frozen
class Send:
    """Send a frame, after everything that was sent before."""

    frame: ServerFrame


@frozen
class Admit:
    """Authenticate a ``hello``; answer with ``Admitted`` or ``EndRequested``."""

    hello: Hello


@frozen
class Reauthenticate:
    """Authenticate a new credential in place of the current one; answer with ``Renewed`` or ``EndRequested``."""

    token: str = field(repr=False)


@frozen
class Open:
    """Follow a stream, replacing this connection's subscription of that name."""

    subscribe: Subscribe


@frozen
class Release:
    """Stop following a stream."""

    stream: str


@frozen
class TakeSnapshot:
    """Build a snapshot that the client asked for."""

    ask: AskSnapshot


@frozen
class StoreAcks:
    """Store acknowledged cursors, by stream."""

    cursors: Mapping[str, Cursor]


@frozen
class Execute:
    """Carry out a call; answer with ``CallAnswered``."""

    call: Call


@frozen
class Serve:
    """Process a frame of an agent: a registration, or an answer to a call to it."""

    frame: ServingFrame


@frozen
class Ask:
    """Process a call of an agent to another agent, or a frame about such a call; answer with ``CallAnswered``."""

    frame: Call | AskingFrame | AnswerPiece


@frozen
class NotePresence:
    """Store the presence of the device, for a limited time."""

    said: SayPresence


@frozen
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
