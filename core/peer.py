"""The port to agents: seven calls over canonical A2A 1.0 JSON.

An unknown outcome is a value, not an exception: the caller of the port decides what follows, and nothing is sent twice
without its knowledge.
"""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

from passerelle.core.frozen import frozen
from passerelle.core.wire.record import value

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Coroutine
    from typing import Any

    from passerelle.core.wire.json import JsonObject


@value
class Answered:
    """The agent answered. ``result`` is the JSON-RPC result: a StreamResponse, a Task, or a page of tasks.

    ``on_stored`` is called once the result is stored, if the agent waits for that before it sends more. ``hold`` is its
    reservation in the memory budget, which is released with it: code that keeps the result must keep ``hold`` too.
    """

    result: JsonObject
    on_stored: Callable[[], None] | None = field(default=None, compare=False, repr=False)
    hold: object | None = field(default=None, compare=False, repr=False)


@frozen
class RefusedByPeer:
    """The agent answered with an error: it did not accept the request. ``code`` is its JSON-RPC code.

    ``details`` are the typed details of the error. ``is_bare``: the answer had only an HTTP status, and the code is
    derived from it.
    """

    code: int
    message: str
    http_status: int = 200
    retry_after_s: int | None = None
    details: tuple[JsonObject, ...] = ()
    is_bare: bool = False


@frozen
class Unreached:
    """The agent certainly did not get the request: the connection was never made, or not tried.

    ``why`` names a cause on this side; then ``retry_after_s`` is known. ``absent``: the agent dials in, and is not
    linked to this instance. ``lease``: the lease of this instance ended before anything was sent.
    """

    reason: str
    retry_after_s: int | None = None
    why: Literal["connection", "breaker", "limit", "absent", "lease"] = "connection"


@frozen
class Unknown:
    """The agent may have got the request: the connection broke, or the answer did not come in time.

    ``http_status`` is the status that came instead of an answer, if any, and ``message`` the agent's text with it.
    ``gave_way``: the gateway stopped reading for lack of memory, so the connection to the agent is not at fault.
    ``had_begun``: the agent had begun to answer, so it can be reached.
    """

    reason: str
    http_status: int | None = None
    message: str = ""
    gave_way: bool = False
    had_begun: bool = False


@frozen
class Malformed:
    """The agent answered with something that is not A2A; ``raw`` is at most 4 KiB of it.

    ``too_long``: it was not read to its end; a repeat would be as long.
    """

    reason: str
    raw: bytes
    too_long: bool = False


class SendSlot:
    """A reserved slot among an agent's concurrent sends; released exactly once."""

    __slots__ = ("_leave", "_settled")

    def __init__(self, leave: Callable[[], None]) -> None:
        self._leave: Callable[[], None] | None = leave
        self._settled: Callable[[], None] | None = None

    def listen(self, settled: Callable[[], None]) -> None:
        """Calls ``settled`` once the send begins, or is given up."""
        if self._leave is None:
            settled()
        else:
            self._settled = settled

    def give_back(self) -> None:
        """Releases the slot without a send. No effect after ``use``: then the send releases it."""
        leave = self._leave
        if self.use() and leave is not None:
            leave()

    def use(self) -> bool:
        """Hands the slot to the send; False if it was used or released before."""
        taken, self._leave = self._leave is not None, None
        settled, self._settled = self._settled, None
        if settled is not None:
            settled()
        return taken


SendGuard: TypeAlias = "Callable[[], bool]"
"""Called once connected, right before the first byte: a send can wait any time for its connection.

If it returns False, nothing is written, and the outcome is ``Unreached`` for ``lease``. Its exceptions reach the
caller.
"""


PeerOutcome: TypeAlias = Answered | RefusedByPeer | Unreached | Unknown | Malformed


@frozen
class Closed:
    """A stream ended normally; that does not end the task (I6)."""


StreamOutcome: TypeAlias = PeerOutcome | Closed


SignatureStatus: TypeAlias = Literal["unchecked", "verified", "unsigned", "untrusted", "changed"]


@frozen
class PeerCard:
    """The known card of an agent: as received, its hash, and the chosen interface.

    ``protocol`` is ``a2a/1.0`` or ``a2a/0.3``. ``lists``: tasks can be listed; if not, the remote task of a send whose
    answer was lost cannot be found again. ``signature``: the card's signature checked against the operator's keys.
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
    """Whether it sends push notifications."""


class Peer(Protocol):
    """One agent over one transport. Timeouts are those of its configuration; calls are not retried inside."""

    @property
    def name(self) -> str:
        """The configured name."""
        ...

    async def describe(self) -> PeerCard:
        """The card, cached; the last good one while the agent is away.

        Raises:
            PeerUnavailable: there has never been one.
        """
        ...

    @property
    def fresh(self) -> PeerCard | None:
        """The card, if ``describe`` would return it without a request."""
        ...

    def peek(self) -> PeerCard | None:
        """The last known card; sends no request."""
        ...

    def send(
        self,
        params: JsonObject,
        *,
        timeout_s: float | None = None,
        may_send: SendGuard | None = None,
        place: SendSlot | None = None,
    ) -> Coroutine[Any, Any, PeerOutcome]:
        """SendMessage: waits for the answer. ``place`` is its reserved slot."""
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
        """CreateTaskPushNotificationConfig: the address for push notifications of a task."""
        ...
