"""Kinds of targets: how a target's name is resolved, and what its receiver gets.

A target's name reads ``<kind>:<rest>``. A new kind is one more row of the registry that ``deliveries`` is given;
order, retries, gaps and dead letters are the same for all kinds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import TYPE_CHECKING, Protocol

from passerelle.core.frozen import frozen

if TYPE_CHECKING:
    from passerelle.channels.cursor_check import LinkedEntry
    from passerelle.core.ports.log import Entry, StreamRef
    from passerelle.core.principal import AccessScope, Principal
    from passerelle.core.wire.json import JsonObject
    from passerelle.protocol.cursor import Cursor
    from passerelle.webhooks.addresses import Address


@frozen
class DeliveryRequest:
    """One request to a receiver. ``headers`` may hold secrets."""

    body: bytes
    event_id: str
    headers: Mapping[str, str] = field(repr=False)


@frozen
class StateSnapshot:
    """The current state in place of events: the request (None: nothing to send), and the cursor after that state."""

    request: DeliveryRequest | None
    cursor: Cursor
    ends: bool


@frozen
class ReplayLimits:
    """How far behind a receiver may be and still get every event: in events that it wants, and in all stream events."""

    wanted: int
    events: int


class Feed(Protocol):
    """What one target receives, opened for one run of deliveries."""

    @property
    def address(self) -> Address:
        """Where requests are sent.

        Raises:
            InvalidInput: the address may not be called (any more).
        """
        ...

    async def weigh(self, *, whole: bool) -> int:
        """Bytes of content that one request may have: with events, or with the ``whole`` state."""
        ...

    @property
    def bounds(self) -> ReplayLimits:
        """Beyond these limits the receiver gets the state in place of events."""
        ...

    def wants(self, entry: Entry) -> bool:
        """Whether the receiver gets an entry."""
        ...

    def ends_with(self, entry: Entry) -> bool:
        """Whether this wanted entry is the last one of the feed."""
        ...

    def is_over(self, cursor: Cursor) -> bool:
        """Whether no entry can ever follow a cursor."""
        ...

    def split(self, wanted: tuple[LinkedEntry, ...]) -> list[tuple[LinkedEntry, ...]]:
        """Groups entries into requests, in order; no group is empty."""
        ...

    async def compose(
        self, together: tuple[LinkedEntry, ...], since: Cursor, cursor: Cursor
    ) -> DeliveryRequest:
        """The request for entries after ``since``; ``cursor`` is the position after the last of them."""
        ...

    def find_acked(
        self, answer: bytes, together: tuple[LinkedEntry, ...], cursor: Cursor
    ) -> Cursor | None:
        """The cursor up to which a receiver that answered 2xx has confirmed; None if it has confirmed nothing."""
        ...

    async def compose_snapshot(self, why: str, since: Cursor) -> StateSnapshot:
        """The request with the current state, for a receiver that cannot get every event after ``since``."""
        ...

    async def warn(self, reason: str, since_ms: int) -> None:
        """Records in the stream that deliveries were given up; once for each ``since_ms``."""
        ...


@frozen
class Opened:
    """A target whose stream is known; ``feed`` None: its owner has removed the target."""

    stream: StreamRef
    feed: Feed | None


@frozen
class TargetDescription:
    """A target in a list; ``owner`` is the key of a principal."""

    owner: str
    stream: StreamRef
    members: JsonObject


class TargetKind(Protocol):
    """One kind of target."""

    async def open(self, name: str) -> Opened | None:
        """Opens a target; None when nothing of it is left and its row can be dropped."""
        ...

    async def describe(self, name: str) -> TargetDescription | None:
        """Describes a target for its owner and for operators, without secrets."""
        ...


def may_follow(who: Principal | None, scopes: tuple[AccessScope, ...]) -> bool:
    """Whether a principal, with its current rights, could still follow what a target delivers; None: it is gone.

    A target outlives the credential that set it.
    """
    return who is not None and not who.scopes.isdisjoint(scopes)
