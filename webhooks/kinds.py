"""Kinds of targets: what a target's name leads to, and what its receiver gets.

A target's name reads ``<kind>:<rest>``. A further kind is a further row of the registry that ``deliveries`` is given;
order, retries, gaps and dead letters are the same for all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from passerelle.channels.cursor_check import LinkedEntry
    from passerelle.core.ports.log import Entry, StreamRef
    from passerelle.core.wire.json import JsonObject
    from passerelle.protocol.cursor import Cursor
    from passerelle.webhooks.addresses import Address


@dataclass(frozen=True, slots=True)
class DeliveryRequest:
    """One request to a receiver. ``headers`` may hold secrets."""

    body: bytes
    event_id: str
    headers: Mapping[str, str] = field(repr=False)


@dataclass(frozen=True, slots=True)
class StateSnapshot:
    """The state in place of events: None where there is nothing to be told, and the cursor behind all that it holds."""

    request: DeliveryRequest | None
    cursor: Cursor
    ends: bool


@dataclass(frozen=True, slots=True)
class ReplayLimits:
    """How far behind a receiver may be and still get every event: in events that it wants, and in all of the stream."""

    wanted: int
    events: int


class Feed(Protocol):
    """What one target gets, opened for one run of deliveries."""

    @property
    def address(self) -> Address:
        """Where it is sent.

        Raises:
            InvalidInput: it may not be called (any more).
        """
        ...

    @property
    def bounds(self) -> ReplayLimits:
        """When it gets the state in place of events."""
        ...

    def wants(self, entry: Entry) -> bool:
        """Whether the receiver gets an entry."""
        ...

    def ends_with(self, entry: Entry) -> bool:
        """Whether nothing comes after an entry that it wants."""
        ...

    def is_over(self, cursor: Cursor) -> bool:
        """Whether nothing will ever come after a cursor."""
        ...

    def split(self, wanted: tuple[LinkedEntry, ...]) -> list[tuple[LinkedEntry, ...]]:
        """What goes in one request, in order; no part is empty."""
        ...

    async def compose(
        self, together: tuple[LinkedEntry, ...], since: Cursor, cursor: Cursor
    ) -> DeliveryRequest:
        """The request for entries after ``since``; ``cursor`` is the position behind the last of them."""
        ...

    def find_acked(
        self, answer: bytes, together: tuple[LinkedEntry, ...], cursor: Cursor
    ) -> Cursor | None:
        """How far a receiver has come that has answered well; None where it has nothing of it."""
        ...

    async def compose_snapshot(self, why: str, since: Cursor) -> StateSnapshot:
        """The request for the state as it stands, for a receiver that cannot get every event after ``since``."""
        ...

    async def warn(self, reason: str, since_ms: int) -> None:
        """Records in the stream that the receiver was given up; once for each ``since_ms``."""
        ...


@dataclass(frozen=True, slots=True)
class Opened:
    """A target whose stream is known; ``feed`` None: its owner has removed it."""

    stream: StreamRef
    feed: Feed | None


@dataclass(frozen=True, slots=True)
class TargetDescription:
    """A target in a list; ``owner`` is the key of a principal."""

    owner: str
    stream: StreamRef
    members: JsonObject


class TargetKind(Protocol):
    """One kind of target."""

    async def open(self, name: str) -> Opened | None:
        """What a target gets; None when nothing of it is left, and its row can go."""
        ...

    async def describe(self, name: str) -> TargetDescription | None:
        """What can be told of a target to its owner and to operators, without secrets."""
        ...
