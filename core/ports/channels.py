"""Devices that follow: their links, what they acknowledged, and what they say of themselves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from passerelle.core.batch import Incarnation
    from passerelle.core.ports.due import DueRow
    from passerelle.core.ports.log import StreamRef
    from passerelle.core.session.presence import Presence


AckResult: TypeAlias = Literal["stored", "stale_generation", "ack_epoch", "ack_ahead"]


@dataclass(frozen=True, slots=True)
class Acked:
    """What one device, by its stored name, said last of a stream. ``cursor`` is None before its first ack."""

    device: str
    generation: int
    cursor: str | None
    seen_ms: int


class Acks(Protocol):
    """How far each device has come in a stream, as it says itself."""

    def store_ack(
        self, stream: StreamRef, device: str, generation: int, cursor: str, now_ms: int
    ) -> Awaitable[AckResult]:
        """Moves the acknowledged cursor forward, never back (CHN-5)."""
        ...

    async def read_ack(self, stream: StreamRef, device: str) -> str | None:
        """The cursor that a device acknowledged last."""
        ...

    async def list_acks(self, stream: StreamRef) -> list[Acked]:
        """Every device that is remembered, the one that was seen last first."""
        ...


@dataclass(frozen=True, slots=True)
class HelloRecorded:
    """A hello was noted: the new generation of its channel, and whether its owner had open questions then."""

    generation: int
    has_questions: bool


@dataclass(frozen=True, slots=True)
class ConnectionOpened:
    """A channel has a new connection."""

    channel: str
    generation: int


@dataclass(frozen=True, slots=True)
class PresenceChanged:
    """A device of the owner says something else of itself than before."""


@dataclass(frozen=True, slots=True)
class DevicesChanged:
    """A device of the principal may do less than before: whoever is connected is looked at again."""


@dataclass(frozen=True, slots=True)
class OwnerForgotten:
    """All that was known of the principal is forgotten: whoever is connected begins anew."""


ChannelUpdate: TypeAlias = ConnectionOpened | PresenceChanged | DevicesChanged | OwnerForgotten


class Channels(Protocol):
    """Records of device links."""

    def record_hello(
        self, owner: str, channel: str, record: bytes, driver: Incarnation | None
    ) -> Awaitable[HelloRecorded]:
        """Writes the record, makes the owner's inbox if there is none, counts the generation up."""
        ...

    async def listen(self, owner: str, on_update: Callable[[ChannelUpdate], None]) -> None:
        """Returns once news of the owner's devices are told, from now on.

        A word of it may be lost or doubled, like any hint. At most one listener for an owner.
        """
        ...

    async def ignore(self, owner: str) -> None:
        """Ends what ``listen`` began."""
        ...

    async def notify_devices(self, owner: str) -> None:
        """Tells all who listen that the devices of the owner have changed."""
        ...

    async def keep(self, channel: str, generation: int, driver: Incarnation | None) -> int:
        """Says that a link is still open, and returns the newest generation of its channel."""
        ...

    async def read_generation(self, channel: str) -> int:
        """The newest generation of a channel; 0 when there is none."""
        ...

    async def list_live(self, owner: str) -> tuple[bytes, ...]:
        """The records of a principal's links that are open, of those that were opened last."""
        ...

    async def is_live(self, channel: str) -> bool:
        """Whether a connection of the channel is open, as far as anybody has told."""
        ...


@dataclass(frozen=True, slots=True)
class PresentDevice:
    """A device that is there, and for how long its word still holds if nothing more is heard of it."""

    presence: Presence
    left_ms: int


class Presences(Protocol):
    """Which devices of a principal are there, over all instances. A word holds for a minute."""

    async def announce(self, owner: str, generation: int, presence: Presence) -> bool:
        """Notes the word of a connection, in place of the one before; False where a newer connection has spoken."""
        ...

    async def withdraw(self, owner: str, channel: str, generation: int) -> None:
        """A connection has ended: its word goes, unless a newer connection of the channel has spoken."""
        ...

    async def list_present(self, owner: str) -> tuple[PresentDevice, ...]:
        """The devices of one principal, by its key, that have spoken within the last minute."""
        ...


@dataclass(frozen=True, slots=True)
class PendingLink:
    """Facts of one kind about a link that are owed as one: ``total`` ever, ``told`` of them in facts before.

    ``payloads``: the last one; where each counts, up to 16 of them, each with a line feed.
    """

    record: bytes
    payloads: bytes
    total: int
    told: int


class Links(Protocol):
    """Facts that are owed about device links: several of one kind within a minute are told as one (EXT-8, I9)."""

    def add_pending(
        self,
        channel: str,
        generation: int,
        kind: str,
        payload: bytes,
        *,
        listed: bool = False,
        leaves: str | None = None,
        wait_ms: int = 0,
    ) -> Awaitable[None]:
        """Begins to note a fact; ``link:<channel>:<kind>`` comes due for it, after ``wait_ms`` at the earliest.

        ``listed``: each payload counts, not only that of the newest generation, in whichever order they come.
        ``leaves``: the instance whose connection has ended.
        """
        ...

    async def mark_lost(self, channel: str, payload: bytes, instance: str) -> None:
        """Notes that a link has ended with its instance, unless the device is connected elsewhere already."""
        ...

    async def read_pending(self, channel: str, kind: str) -> PendingLink | None:
        """What is owed; None where the record is gone."""
        ...

    async def settle(self, row: DueRow, kind: str, owed: PendingLink, *, listed: bool) -> None:
        """What was read has been told."""
        ...
