"""The dependencies of channels, passed in as arguments: channels know neither the store nor the services."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, Protocol, TypeAlias

from passerelle.core.errors import NotFound, Unauthenticated
from passerelle.core.frozen import frozen
from passerelle.core.principal import AccessScope

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
"""The stream name part for the lists of all owners."""
StreamWord: TypeAlias = Literal[
    "session", "task", "inbox", "inputs", "results", "messages", "tasks", "jobs"
]


@frozen
class StreamName:
    """A stream name of clients: a word and an id, or ``inbox``, ``tasks`` or ``jobs`` alone.

    ``session``, ``inputs`` and ``results`` have the id of a session, ``task`` that of a task, ``inbox`` a principal.
    ``messages`` has the id of a thread. ``tasks`` may have ``tenant``: the tasks of all owners.
    """

    word: StreamWord
    id: str | None


def parse_stream_name(text: str) -> StreamName:
    """Parses a stream name.

    Raises:
        NotFound: no stream has such a name; the same answer as for another principal's stream.
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


FOLLOW: Final = (AccessScope.CALL, AccessScope.READ_TASKS)
"""Scopes to follow the streams of tasks; one of them is enough."""
FOLLOW_INBOX: Final = (AccessScope.READ_APPROVALS, AccessScope.DECIDE)
"""Scopes to follow an inbox; one of them is enough."""


@frozen
class StreamGrant:
    """The right to follow a stored stream in one view."""

    stream: StreamRef
    view: View
    reader: str | None = None
    """The key of a reader that does not own the stream; the owner's devices are told apart from its devices by it."""


class StreamAccess(Protocol):
    """Authorizes streams, before anything of the stream is read."""

    async def grant(self, principal: Principal, name: StreamName, *, full: bool) -> StreamGrant:
        """The stream behind a name, in the view that the principal may see.

        Raises:
            NotFound: unknown, or another principal's: the two look the same.
            Forbidden: the full view is asked for without the right to it.
        """
        ...


class Snapshots(Protocol):
    """Read models for channels."""

    async def read_snapshot(
        self, principal: Principal, name: StreamName, grant: StreamGrant
    ) -> JsonObject:
        """The state of a stream; the caller has read its cursor before, so no event is missed."""
        ...

    async def read_pending(
        self, principal: Principal, limit: int
    ) -> tuple[tuple[JsonObject, ...], bool]:
        """Open actions of the principal from keyed state, and whether there are more."""
        ...

    async def read_withdrawn(
        self, before: Principal, now: Principal
    ) -> Sequence[tuple[str, WithdrawalReason]]:
        """Open actions that a principal could see or answer ``before`` and cannot ``now``, with the reason."""
        ...


class ChannelCalls(Protocol):
    """The commands and reads of a channel; HTTP offers the same table (CMD-27)."""

    async def call(
        self, principal: Principal, method: str, data: JsonObject, idem: str | None
    ) -> JsonObject:
        """Carries out one method, once per idempotency key. Raises PasserelleError."""
        ...

    def foresee(self, principal: Principal, method: str, data: JsonObject) -> None:
        """Prefetches for a call that follows in this task's context, unless its connection is superseded."""
        ...


class ChannelLink(Protocol):
    """One connection of a channel, for facts about it."""

    @property
    def owner(self) -> str:
        """The key of its principal."""
        ...

    @property
    def channel(self) -> str:
        """Its channel."""
        ...

    @property
    def generation(self) -> int:
        """Its number within the channel."""
        ...

    @property
    def since(self) -> str:
        """When it was welcomed."""
        ...


class LinkFacts(Protocol):
    """Records facts about links (EXT-8)."""

    def find_driver(self, owner: str) -> Incarnation | None:
        """The incarnation whose lease covers a principal's links; None while this instance holds none there."""
        ...

    def record(self, link: ChannelLink, fact: LinkFact) -> asyncio.Future[None]:
        """Starts to write a fact, several of a kind as one; the future may raise StoreUnavailable."""
        ...


async def refuse_ticket(_ticket: str, _origin: str | None, _device: str) -> Credentials:
    """Refuses every ticket: for a gateway that issues none."""
    raise Unauthenticated("the ticket is not known")


@frozen
class ChannelServices:
    """The dependencies of a connection."""

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
    """The credentials of a handshake, from its ASGI scope."""
    clock: Clock
    """The time of this machine: credentials expire by it."""
    store_clock: Clock
    """The store's time: stored records use it."""
    ids: Ids
    agents: AgentHost | None = None
    """Serves agents that dial in; None: not supported here."""
    asked: AskedAgents | None = None
    """Carries out calls of dialled-in agents; None: not supported here."""
    redeem: Callable[[str, str | None, str], Awaitable[Credentials]] = refuse_ticket
    """The credentials behind a ticket, by ticket, origin and device; raises Unauthenticated."""

    @property
    def counts(self) -> ChannelCounts:
        """The channel counters of this instance."""
        return self.hub.counts
