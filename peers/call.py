"""One call to a peer, before any binding has given it a form."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, Protocol, TypeAlias

from passerelle.core.wire.record import value

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from passerelle.core.peer import PeerOutcome, StreamOutcome
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


@value
class Call:
    """An operation of A2A 1.0 with its canonical params, and the time that all of it may take."""

    operation: Operation
    params: JsonObject
    timeout_s: float


class Transport(Protocol):
    """Carries calls to one kind of interface. Nothing is sent twice from inside, and nothing raises."""

    async def call(self, interface: Interface, call: Call) -> PeerOutcome:
        """One answer."""
        ...

    def follow(self, interface: Interface, call: Call) -> AsyncGenerator[StreamOutcome, None]:
        """Many answers. All but the last outcome are ``Answered``; the last says how it ended."""
        ...
