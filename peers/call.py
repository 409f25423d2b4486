"""One call to a peer before any binding has given it a form, and its form over HTTP: what is written and read back.

Pure; ``http_transport`` has the sockets.
"""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, Final, Literal, Protocol, TypeAlias

from passerelle.core.peer import Unreached
from passerelle.core.wire.record import value

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from passerelle.core.peer import PeerOutcome, SendGuard, StreamOutcome
    from passerelle.core.wire.json import JsonObject
    from passerelle.peers.interface import Interface

Operation: TypeAlias = Literal[
    "SendMessage",
    "SendStreamingMessage",
    "GetTask",
    "ListTasks",
    "CancelTask",
    "SubscribeToTask",
    "CreateTaskPushNotificationConfig",
    "GetExtendedAgentCard",
]

STREAMS: Final = frozenset[Operation]({"SendStreamingMessage", "SubscribeToTask"})
SENDS: Final = frozenset[Operation]({"SendMessage", "SendStreamingMessage"})
LEASE_OVER: Final = Unreached(
    "the lease of this instance ended before anything was sent", why="lease"
)


@value
class PeerCall:
    """An operation of A2A 1.0 with its canonical params, and the time that all of it may take.

    ``may_send`` is asked right before the first byte of a send, with the connection at hand.
    """

    operation: Operation
    params: JsonObject
    timeout_s: float
    may_send: SendGuard | None = field(default=None, compare=False, repr=False)

    @property
    def is_held_back(self) -> bool:
        """Whether it must not be sent any more, or not now."""
        return self.may_send is not None and not self.may_send()


class Transport(Protocol):
    """Carries calls to one kind of interface. Nothing is sent twice from inside, and nothing raises."""

    async def call(self, interface: Interface, call: PeerCall) -> PeerOutcome:
        """One answer."""
        ...

    def follow(self, interface: Interface, call: PeerCall) -> AsyncGenerator[StreamOutcome, None]:
        """Many answers. All but the last outcome are ``Answered``; the last says how it ended."""
        ...


@value
class PeerRequest:
    """An HTTP request without the headers that every request carries."""

    method: Literal["GET", "POST"]
    url: str
    body: bytes | None = None


@value
class AgentReply:
    """A whole HTTP response; ``retry_after`` and ``extensions`` (``A2A-Extensions``) are headers of it.

    ``hold`` is its place in the memory budget, where it has one.
    """

    status: int
    retry_after: str | None
    raw: bytes
    extensions: str | None = None
    hold: object | None = field(default=None, compare=False, repr=False)


class BindingWire(Protocol):
    """One binding in one version. ``call_id`` ties an answer to its request where the binding does so."""

    def write(self, interface: Interface, call: PeerCall, call_id: int) -> PeerRequest:
        """The request."""
        ...

    def read(self, call: PeerCall, call_id: int, reply: AgentReply) -> PeerOutcome:
        """What a whole response stands for."""
        ...

    def read_event(self, call_id: int, payload: bytes) -> PeerOutcome:
        """What one event of a stream stands for."""
        ...
