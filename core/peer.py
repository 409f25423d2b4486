"""The seam to peer agents: seven calls over canonical A2A 1.0 JSON.

An unknown outcome is a value, not an exception: whoever sends decides what follows, and nothing is ever
sent twice behind its back.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

from passerelle.core.wire.record import value

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Coroutine
    from typing import Any

    from passerelle.core.wire.json import JsonObject


@value
class Answered:
    """The peer answered. ``result`` is the JSON-RPC result: a StreamResponse, a Task, or a page of them.

    ``on_stored`` is called once what it says is stored, where the peer waits for that before it says more. ``hold`` is
    its place in the memory budget, which is given back with it: who keeps the result keeps that, too.
    """

    result: JsonObject
    on_stored: Callable[[], None] | None = field(default=None, compare=False, repr=False)
    hold: object | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class RefusedByPeer:
    """The peer answered with an error of its own: it did not take the request. ``code`` is its JSON-RPC code.

    ``details`` are the typed details of the error. ``is_bare``: it said no more than its HTTP status, and the code
    stands for that.
    """

    code: int
    message: str
    http_status: int = 200
    retry_after_s: int | None = None
    details: tuple[JsonObject, ...] = ()
    is_bare: bool = False


@dataclass(frozen=True, slots=True)
class Unreached:
    """It is certain that the peer did not take the request: the connection was never made, or not tried.

    ``why`` says whether we held the call back ourselves; then ``retry_after_s`` is known. ``absent``: the agent dials
    in, and is not linked to this instance. ``lease``: that of this instance ended before anything was sent.
    """

    reason: str
    retry_after_s: int | None = None
    why: Literal["connection", "breaker", "limit", "absent", "lease"] = "connection"


@dataclass(frozen=True, slots=True)
class Unknown:
    """The request may have been taken: the connection broke, or the answer did not come in time.

    ``http_status`` is what came in place of an answer, where anything did, and ``message`` what the peer wrote with it.
    ``gave_way``: we stopped reading it for want of memory, which says nothing about the way to the peer.
    """

    reason: str
    http_status: int | None = None
    message: str = ""
    gave_way: bool = False


@dataclass(frozen=True, slots=True)
class Malformed:
    """The peer answered with something that is not A2A; ``raw`` is at most 4 KiB of it.

    ``too_long`` says that it was not read to its end: asked again, it would be as long.
    """

    reason: str
    raw: bytes
    too_long: bool = False


class SendSlot:
    """A place among the sends that an agent may have under way, taken before the send; given back once."""

    __slots__ = ("_leave", "_settled")

    def __init__(self, leave: Callable[[], None]) -> None:
        self._leave: Callable[[], None] | None = leave
        self._settled: Callable[[], None] | None = None

    def listen(self, settled: Callable[[], None]) -> None:
        """Calls ``settled`` once the send begins, or will not."""
        if self._leave is None:
            settled()
        else:
            self._settled = settled

    def give_back(self) -> None:
        """There is no send. Nothing where there was one, which gives it back itself."""
        leave = self._leave
        if self.use() and leave is not None:
            leave()

    def use(self) -> bool:
        """The send has it now; False where it is used or given back already."""
        taken, self._leave = self._leave is not None, None
        settled, self._settled = self._settled, None
        if settled is not None:
            settled()
        return taken


SendGuard: TypeAlias = "Callable[[], bool]"
"""Asked when there is a connection, right before the first byte: between a send and its bytes lie waits of any length.

Where it says no, nothing is written, and the outcome is ``Unreached`` for ``lease``. What it raises goes to the caller.
"""


PeerOutcome: TypeAlias = Answered | RefusedByPeer | Unreached | Unknown | Malformed


@dataclass(frozen=True, slots=True)
class Closed:
    """A stream ended in good order; that says nothing about the task (I6)."""


StreamOutcome: TypeAlias = PeerOutcome | Closed


SignatureStatus: TypeAlias = Literal["unchecked", "verified", "unsigned", "untrusted", "changed"]


@dataclass(frozen=True, slots=True)
class PeerCard:
    """What is known of a peer: its card as it was received, its hash, and the interface that was chosen from it.

    ``protocol`` is ``a2a/1.0`` or ``a2a/0.3``. ``lists`` says whether tasks can be listed: without, the remote task
    of a send whose answer got lost is not found again. ``signature``: how the card stands by the operator's keys.
    """

    card: JsonObject
    sha256: str
    endpoint: str
    streaming: bool
    protocol: str
    stale: bool = False
    lists: bool = True
    signature: SignatureStatus = "unchecked"
    push: bool = False
    """Whether it calls back with news of a task."""


class Peer(Protocol):
    """One peer agent over one transport. Timeouts are those of its configuration; nothing is retried inside."""

    @property
    def name(self) -> str:
        """The configured name."""
        ...

    async def describe(self) -> PeerCard:
        """The card, cached; the last good one while the peer is away.

        Raises:
            PeerUnavailable: there has never been one.
        """
        ...

    @property
    def fresh(self) -> PeerCard | None:
        """The card, where ``describe`` would have to ask nobody for it."""
        ...

    def peek(self) -> PeerCard | None:
        """The card as it is known by now; nobody is asked."""
        ...

    def send(
        self,
        params: JsonObject,
        *,
        timeout_s: float | None = None,
        may_send: SendGuard | None = None,
        place: SendSlot | None = None,
    ) -> Coroutine[Any, Any, PeerOutcome]:
        """SendMessage: waits for the answer. ``place`` was reserved for it."""
        ...

    def stream(
        self,
        params: JsonObject,
        *,
        may_send: SendGuard | None = None,
        place: SendSlot | None = None,
    ) -> AsyncGenerator[StreamOutcome, None]:
        """SendStreamingMessage: one outcome per frame; anything but Answered is the last one."""
        ...

    async def get(self, task: str, *, history_length: int | None = None) -> PeerOutcome:
        """GetTask."""
        ...

    async def list(self, params: JsonObject) -> PeerOutcome:
        """ListTasks, one page."""
        ...

    def subscribe(self, task: str) -> AsyncGenerator[StreamOutcome, None]:
        """SubscribeToTask, like ``stream``."""
        ...

    async def cancel(self, task: str) -> PeerOutcome:
        """CancelTask."""
        ...

    async def register_push(self, task: str, config: JsonObject) -> PeerOutcome:
        """CreateTaskPushNotificationConfig: where the peer is to call with news of a task."""
        ...
