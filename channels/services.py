"""What a channel asks of the rest of the gateway, given to it as arguments: it knows no store and no service."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, Protocol, TypeAlias

from passerelle.core.errors import NotFound, Unauthenticated

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable, Callable, Sequence

    from starlette.types import Scope

    from passerelle.channels.counts import ChannelCounts
    from passerelle.channels.follower import StreamReads
    from passerelle.channels.hub import Hub
    from passerelle.channels.replays import Replays
    from passerelle.channels.reverse_asks import AskedAgents
    from passerelle.channels.reverse_side import AgentHost
    from passerelle.channels.states import States
    from passerelle.channels.story import LinkFact
    from passerelle.channels.texts import Texts
    from passerelle.channels.views import View
    from passerelle.core.batch import Incarnation
    from passerelle.core.commands import Authenticator
    from passerelle.core.credentials import Credentials
    from passerelle.core.ports.chance import Clock, Ids
    from passerelle.core.ports.channels import Acks, Channels, Presences
    from passerelle.core.ports.log import StreamRef
    from passerelle.core.principal import Principal
    from passerelle.core.vocabulary import WithdrawalReason
    from passerelle.core.wire.json import JsonObject

EVERY_OWNER: Final = "tenant"
"""What is said of a list for the lists of all owners."""
StreamWord: TypeAlias = Literal[
    "session", "task", "inbox", "inputs", "results", "messages", "tasks", "jobs"
]


@dataclass(frozen=True, slots=True)
class StreamName:
    """A stream as clients name it: a word and an id, or ``inbox``, ``tasks`` or ``jobs`` alone.

    ``session``, ``inputs`` and ``results`` have the id of a session, ``task`` that of a task, ``inbox`` a principal.
    ``messages`` has the id of a thread. ``tasks`` may have ``tenant``: the tasks of all owners.
    """

    word: StreamWord
    id: str | None


def parse_stream_name(text: str) -> StreamName:
    """Reads a stream name.

    Raises:
        NotFound: no stream has such a name; the same answer as for a stream of somebody else.
    """
    word, colon, identifier = text.partition(":")
    match word:
        case "inbox" if not colon:
            return StreamName("inbox", None)
        case "tasks" | "jobs" if not colon:
            return StreamName(word, None)
        case "tasks" if identifier == EVERY_OWNER:
            return StreamName(word, identifier)
        case "session" | "task" | "inbox" | "inputs" | "results" | "messages" if identifier:
            return StreamName(word, identifier)
        case _:
            raise NotFound("stream", text)


@dataclass(frozen=True, slots=True)
class StreamGrant:
    """The right to follow a stored stream in one view."""

    stream: StreamRef
    view: View


class StreamAccess(Protocol):
    """Who may follow what, asked before anything of the stream is read."""

    async def grant(self, principal: Principal, name: StreamName, *, full: bool) -> StreamGrant:
        """The stream behind a name, in the view that the principal may see.

        Raises:
            NotFound: unknown, or another principal's: the two look the same.
            Forbidden: the full view is asked for without the right to it.
        """
        ...


class Snapshots(Protocol):
    """Read models as they go over a channel."""

    async def read_snapshot(
        self, principal: Principal, name: StreamName, grant: StreamGrant
    ) -> JsonObject:
        """The state of a stream; the caller has read its cursor before, so nothing is missing in it."""
        ...

    async def read_pending(
        self, principal: Principal, limit: int
    ) -> tuple[tuple[JsonObject, ...], bool]:
        """Open actions of the principal from keyed state, and whether there are more."""
        ...

    async def read_withdrawn(
        self, before: Principal, now: Principal
    ) -> Sequence[tuple[str, WithdrawalReason]]:
        """Open actions that a principal could see or answer ``before`` and cannot ``now``, and why."""
        ...


class ChannelCalls(Protocol):
    """The commands and reads that a channel offers; HTTP offers the same table (CMD-27)."""

    async def call(
        self, principal: Principal, method: str, data: JsonObject, idem: str | None
    ) -> JsonObject:
        """Carries out one method, once per idempotency key. Raises PasserelleError."""
        ...

    def foresee(self, principal: Principal, method: str, data: JsonObject) -> None:
        """A call of this task's context comes, unless its link does not count any more: reading may begin."""
        ...


class ChannelLink(Protocol):
    """One connection of a channel, as far as facts about it go."""

    @property
    def owner(self) -> str:
        """The key of its principal."""
        ...

    @property
    def channel(self) -> str:
        """The channel that it is of."""
        ...

    @property
    def generation(self) -> int:
        """Its place among the connections of the channel."""
        ...

    @property
    def since(self) -> str:
        """When it began."""
        ...


class LinkFacts(Protocol):
    """Where a connection says what there is to tell of its link (EXT-8)."""

    def find_driver(self, owner: str) -> Incarnation | None:
        """Under whose lease a link of a principal stands; None while this instance holds none there."""
        ...

    def tell(self, link: ChannelLink, fact: LinkFact) -> asyncio.Future[None]:
        """Has a fact written, several of a kind as one. It has begun; the future may raise StoreUnavailable."""
        ...


async def refuse_ticket(_ticket: str, _origin: str | None, _device: str) -> Credentials:
    """Where no tickets are given out, none holds."""
    raise Unauthenticated("the ticket is not known")


@dataclass(frozen=True, slots=True)
class ChannelServices:
    """Everything that a connection works with."""

    hub: Hub
    texts: Texts
    log: StreamReads
    acks: Acks
    channels: Channels
    presences: Presences
    access: StreamAccess
    snapshots: Snapshots
    states: States
    replays: Replays
    calls: ChannelCalls
    links: LinkFacts
    authenticator: Authenticator
    read_credentials: Callable[[Scope], Credentials]
    """What the handshake shows, from its ASGI scope."""
    clock: Clock
    """Of this machine: credentials end by it."""
    store_clock: Clock
    """Of the store: what is stored has its times."""
    ids: Ids
    agents: AgentHost | None = None
    """Serves agents that dial in; None: nobody does here."""
    asked: AskedAgents | None = None
    """Takes the calls of agents that dialled in; None: they call nobody here."""
    redeem: Callable[[str, str | None, str], Awaitable[Credentials]] = refuse_ticket
    """What was shown for a ticket, by the ticket, the origin and the device; raises Unauthenticated."""

    @property
    def counts(self) -> ChannelCounts:
        """Where all that happens to channels here is counted."""
        return self.hub.counts
