"""What a client's application sees: items of a stream, results of an answer, states of the link, errors."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from passerelle.core.wire.json import JsonObject
    from passerelle.protocol.cursor import GapReason

Acknowledge: TypeAlias = Callable[[str, str], None]
"""Takes stream and cursor."""


@dataclass(frozen=True, slots=True)
class _Positioned:
    """An item with the position after it; ``ack`` says that the application has it for good (CHN-5)."""

    stream: str
    cursor: str
    _acknowledge: Acknowledge = field(repr=False, compare=False)

    async def ack(self) -> None:
        """Acknowledges everything of the stream up to here; sent with others, within a second."""
        self._acknowledge(self.stream, self.cursor)


@dataclass(frozen=True, slots=True)
class Event(_Positioned):
    """One stored event. ``replayed``: a snapshot that came before contains it already; do not fold it again."""

    sequence: int
    data: JsonObject
    replayed: bool = False


@dataclass(frozen=True, slots=True)
class Snapshot(_Positioned):
    """The read model as of ``cursor``: replaces what the application has of this stream."""

    data: JsonObject


@dataclass(frozen=True, slots=True)
class Live(_Positioned):
    """The replay has ended; what follows is new."""

    replayed: int


@dataclass(frozen=True, slots=True)
class Gap:
    """Events between ``have`` and ``top`` cannot be given (I8); a snapshot follows where ``has_snapshot``."""

    stream: str
    why: GapReason
    have: str | None
    top: str | None
    has_snapshot: bool
    url: str | None = None
    """Where a state is that was too large to come by itself; the stream ends, and is followed anew from its cursor."""


@dataclass(frozen=True, slots=True)
class Delta:
    """Text on its way, with ``volatile``: put it behind what block ``block`` shows, or in place of it where ``anew``.

    It may break off at any point. The event that closes the block has all of it, and takes its place.
    """

    stream: str
    block: str
    text: str
    anew: bool


Item: TypeAlias = Event | Snapshot | Live | Gap
AnyItem: TypeAlias = Item | Delta
GapChoice: TypeAlias = Literal["snapshot", "stop"]
OnGap: TypeAlias = Callable[[Gap], Awaitable[GapChoice]]


@dataclass(frozen=True, slots=True)
class Won:
    """Our answer counts."""

    decision: JsonObject


@dataclass(frozen=True, slots=True)
class Replayed:
    """We had answered so before, and it counted."""

    decision: JsonObject


@dataclass(frozen=True, slots=True)
class Voted:
    """Our answer is one of several that are needed; nothing is decided yet."""

    votes: int
    need: int


@dataclass(frozen=True, slots=True)
class Lost:
    """Somebody else answered first; ``winner`` says who and how (I7)."""

    winner: JsonObject


@dataclass(frozen=True, slots=True)
class Refused:
    """The answer does not count, and nobody won by it."""

    code: str
    message: str


@dataclass(frozen=True, slots=True)
class Unsure:
    """No result came; ``action`` is the canonical state as it was read afterwards. Show that, not a guess."""

    action: JsonObject


AnswerResult: TypeAlias = Won | Voted | Replayed | Lost | Refused | Unsure


@dataclass(frozen=True, slots=True)
class Connecting:
    """An attempt is under way."""


@dataclass(frozen=True, slots=True)
class Connected:
    """Welcomed; ``replaying`` are the streams that are not live yet."""

    replaying: frozenset[str]

    @property
    def is_live(self) -> bool:
        """Whether every stream has caught up."""
        return not self.replaying


@dataclass(frozen=True, slots=True)
class Offline:
    """Between two attempts; ``next_try_s`` is how long until the next one."""

    code: int | None
    next_try_s: float


@dataclass(frozen=True, slots=True)
class Stopped:
    """Ended for good: by the application (1000), or by a code that no retry helps against."""

    code: int
    reason: str = ""


LinkStatus: TypeAlias = Connecting | Connected | Offline | Stopped


class ChannelError(Exception):
    """The root of what a client raises."""


class GapError(ChannelError):
    """A gap came and nobody was there to handle it: give the client an ``on_gap``."""

    def __init__(self, gap: Gap) -> None:
        super().__init__(f"{gap.stream}: {gap.why.value} (have {gap.have}, top {gap.top})")
        self.gap = gap


class StreamClosed(ChannelError):
    """The server will not send this stream, or not any more; ``code`` says why."""

    def __init__(self, stream: str, code: str) -> None:
        super().__init__(f"{stream}: {code}")
        self.stream = stream
        self.code = code


class ChannelStopped(ChannelError):
    """The client has ended for good."""

    def __init__(self, status: Stopped) -> None:
        super().__init__(f"closed with {status.code} {status.reason}".strip())
        self.code = status.code


class CallRefused(ChannelError):
    """A call was answered with an error; ``retry_s`` where trying again can help."""

    def __init__(self, code: str, message: str, retry_s: int | None, data: JsonObject) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.retry_s = retry_s
        self.data = data


class UnknownOutcome(ChannelError):
    """The link was lost under a call without an idempotency key: it may or may not have been carried out."""


class AnswersCut(ChannelError):
    """The link was lost under a stream of answers. Its task goes on (I6): subscribe to ``task`` after ``cursor``.

    Where no answer has told of a task there is none to subscribe to: nobody knows whether the call has begun one.
    """

    def __init__(self, method: str, task: str | None, cursor: str | None) -> None:
        super().__init__(f"{method}: the link was lost after {cursor or 'nothing'}")
        self.task = task
        self.cursor = cursor
