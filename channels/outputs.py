"""What a connection's machine wants done: the closed union of its outputs."""

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
    """Look at the credential of a ``hello``; answer with Admitted or Ended."""

    hello: Hello


@dataclass(frozen=True, slots=True)
class Reauthenticate:
    """Look at a credential that is to take the place of ours; answer with Renewed or Ended."""

    token: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Open:
    """Follow a stream, in place of what this connection follows under that name."""

    subscribe: Subscribe


@dataclass(frozen=True, slots=True)
class Release:
    """Stop following a stream."""

    stream: str


@dataclass(frozen=True, slots=True)
class TakeSnapshot:
    """Build a snapshot for a client that asked for one."""

    ask: AskSnapshot


@dataclass(frozen=True, slots=True)
class StoreAcks:
    """Store acknowledged cursors, by stream."""

    cursors: Mapping[str, Cursor]


@dataclass(frozen=True, slots=True)
class Execute:
    """Carry out a call; answer with Answered."""

    call: Call


@dataclass(frozen=True, slots=True)
class Serve:
    """An agent registers, or says something about a call to it."""

    frame: ServingFrame


@dataclass(frozen=True, slots=True)
class Ask:
    """An agent calls another one, answer with Answered; or says something about such a call."""

    frame: Call | AskingFrame | AnswerPiece


@dataclass(frozen=True, slots=True)
class NotePresence:
    """Have the device stand among those that are there, for a while."""

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
