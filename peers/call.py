"""One call to a peer independent of its binding, and its HTTP form: the request and the response.

Pure; ``http_transport`` does the I/O.
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
    """An operation of A2A 1.0 with its canonical params, and the time limit of the whole call.

    ``may_send`` is called right before the first byte of a send, once there is a connection.
    """

    operation: Operation
    params: JsonObject
    timeout_s: float
    may_send: SendGuard | None = field(default=None, compare=False, repr=False)

    @property
    def is_held_back(self) -> bool:
        """Whether it must not be sent now, or not at all."""
        return self.may_send is not None and not self.may_send()


class Transport(Protocol):
    """Carries calls to one kind of interface. It never sends twice and never raises."""

    async def call(self, interface: Interface, call: PeerCall) -> PeerOutcome:
        """Makes a call with one answer."""
        ...

    def follow(self, interface: Interface, call: PeerCall) -> AsyncGenerator[StreamOutcome, None]:
        """Makes a call with many answers. All but the last outcome are ``Answered``; the last states how it ended.

        An outcome belongs to its reader, who may pause for long before it asks for the next one. So a generator that
        passes outcomes on keeps none in a variable meanwhile: a large event would stay in memory, and in the budget.
        """
        ...


@value
class PeerRequest:
    """An HTTP request without the headers that all requests have."""

    method: Literal["GET", "POST"]
    url: str
    body: bytes | None = None


@value
class AgentReply:
    """A whole HTTP response; ``retry_after`` and ``extensions`` (``A2A-Extensions``) are headers.

    ``hold`` is its share of the memory budget, if it has one.
    """

    status: int
    retry_after: str | None
    raw: bytes
    extensions: str | None = None
    hold: object | None = field(default=None, compare=False, repr=False)


class BindingWire(Protocol):
    """One binding in one version. ``call_id`` matches an answer to its request, if the binding does that."""

    def write(self, interface: Interface, call: PeerCall, call_id: int) -> PeerRequest:
        """Writes the request."""
        ...

    def read(self, call: PeerCall, call_id: int, reply: AgentReply) -> PeerOutcome:
        """Reads a whole response."""
        ...

    def read_event(self, payload: bytes) -> PeerOutcome:
        """Reads one event of a stream."""
        ...
