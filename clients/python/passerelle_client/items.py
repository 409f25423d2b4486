"""The values that a client's application sees: items of a stream, results of a decision, link states, errors."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from passerelle.core.wire.json import JsonObject
    from passerelle.protocol.cursor import GapReason

Acknowledge: TypeAlias = Callable[[str, str], None]
"""Called with stream and cursor."""


@dataclass(frozen=True, slots=True)
class _Positioned:
    """An item with the position after it. ``ack`` reports that the application has stored it durably (CHN-5)."""

    stream: str
    cursor: str
    _acknowledge: Acknowledge = field(repr=False, compare=False)

    async def ack(self) -> None:
        """Acknowledges every event of the stream up to this item. Acknowledgements are batched, within a second."""
        self._acknowledge(self.stream, self.cursor)


@dataclass(frozen=True, slots=True)
class Event(_Positioned):
    """One stored event. ``replayed``: an earlier snapshot contains it already; do not apply it again."""

    sequence: int
    data: JsonObject
    replayed: bool = False


@dataclass(frozen=True, slots=True)
class Snapshot(_Positioned):
    """The read model as of ``cursor``. Replace the application's state of this stream with it."""

    data: JsonObject


@dataclass(frozen=True, slots=True)
class Live(_Positioned):
    """The replay is complete; later items are new events."""

    replayed: int


@dataclass(frozen=True, slots=True)
class Gap:
    """Events between ``have`` and ``top`` cannot be delivered (I8). If ``has_snapshot``, a snapshot follows."""

    stream: str
    why: GapReason
    have: str | None
    top: str | None
    has_snapshot: bool
    url: str | None = None
    """Address of a state that is too large for a frame. The stream ends; load the state and follow from its cursor."""


@dataclass(frozen=True, slots=True)
class Delta:
    """Text in progress, with ``volatile``: append it to block ``block``, or replace the block if ``anew``.

    It may stop at any point. The event that closes the block contains the whole text and replaces it.
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
    """This decision counts."""

    decision: JsonObject


@dataclass(frozen=True, slots=True)
class Replayed:
    """This decision repeats an earlier one of this client, which counted."""

    decision: JsonObject


@dataclass(frozen=True, slots=True)
class Voted:
    """This vote counts; more votes are needed before the approval is decided."""

    votes: int
    need: int


@dataclass(frozen=True, slots=True)
class Lost:
    """Another decision came first; ``winner`` describes it (I7)."""

    winner: JsonObject


@dataclass(frozen=True, slots=True)
class Refused:
    """The decision does not count, and no other decision won."""

    code: str
    message: str


@dataclass(frozen=True, slots=True)
class Unsure:
    """No result arrived; ``action`` is the approval as read afterwards. Show that state, not a guess."""

    action: JsonObject


AnswerResult: TypeAlias = Won | Voted | Replayed | Lost | Refused | Unsure


@dataclass(frozen=True, slots=True)
class Connecting:
    """An attempt is in progress."""


@dataclass(frozen=True, slots=True)
class Connected:
    """The server sent its welcome; ``replaying`` are the streams that are not live yet."""

    replaying: frozenset[str]

    @property
    def is_live(self) -> bool:
        """Returns whether every stream is live."""
        return not self.replaying


@dataclass(frozen=True, slots=True)
class Offline:
    """Waiting between two attempts; ``next_try_s`` is the time until the next one."""

    code: int | None
    next_try_s: float


@dataclass(frozen=True, slots=True)
class Stopped:
    """Stopped for good: by the application (1000), or with a close code that forbids retries."""

    code: int
    reason: str = ""


LinkStatus: TypeAlias = Connecting | Connected | Offline | Stopped


class ChannelError(Exception):
    """The base of the errors of a client."""


class GapError(ChannelError):
    """A gap occurred and no handler is set: pass ``on_gap`` to the client."""

    def __init__(self, gap: Gap) -> None:
        super().__init__(f"{gap.stream}: {gap.why.value} (have {gap.have}, top {gap.top})")
        self.gap = gap


class StreamClosed(ChannelError):
    """The server refused or ended this stream; ``code`` is the reason."""

    def __init__(self, stream: str, code: str) -> None:
        super().__init__(f"{stream}: {code}")
        self.stream = stream
        self.code = code


class ChannelStopped(ChannelError):
    """The client has stopped for good."""

    def __init__(self, status: Stopped) -> None:
        super().__init__(f"closed with {status.code} {status.reason}".strip())
        self.code = status.code


class CallRefused(ChannelError):
    """A call failed with an error; ``retry_s`` is set if a retry can help."""

    def __init__(self, code: str, message: str, retry_s: int | None, data: JsonObject) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.retry_s = retry_s
        self.data = data


class UnknownOutcome(ChannelError):
    """The link was lost during a call without an idempotency key: it may or may not have been executed."""


class AnswersCut(ChannelError):
    """The link was lost during a stream of responses. Its task continues (I6): subscribe to ``task`` after ``cursor``.

    If no response has named a task, it is unknown whether the call created one.
    """

    def __init__(self, method: str, task: str | None, cursor: str | None) -> None:
        super().__init__(f"{method}: the link was lost after {cursor or 'nothing'}")
        self.task = task
        self.cursor = cursor
