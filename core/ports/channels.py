"""Ports for devices: links, acknowledgements and presence."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

from passerelle.core.frozen import frozen
from passerelle.core.vocabulary import PresenceState
from passerelle.core.wire.record import record

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from passerelle.core.batch import Incarnation
    from passerelle.core.ports.due import DueRow
    from passerelle.core.ports.log import StreamRef


@record
class Presence:
    """The last presence of one connection. ``focus`` are the viewed streams, by channel name."""

    channel_id: str
    device: str
    tab: str | None
    state: PresenceState
    focus: tuple[str, ...] = ()


AckResult: TypeAlias = Literal["stored", "stale_generation", "ack_epoch", "ack_ahead"]


@frozen
class Acked:
    """The last acknowledgement of a device for a stream. ``cursor`` is None before the first one."""

    device: str
    generation: int
    cursor: str | None
    seen_ms: int


class Acks(Protocol):
    """How far each device has acknowledged a stream."""

    def store_ack(
        self, stream: StreamRef, device: str, generation: int, cursor: str, now_ms: int
    ) -> Awaitable[AckResult]:
        """Moves the acknowledged cursor forward, never back (CHN-5)."""
        ...

    async def read_ack(self, stream: StreamRef, device: str) -> str | None:
        """The last acknowledged cursor of a device."""
        ...

    async def list_acks(self, stream: StreamRef) -> list[Acked]:
        """All remembered devices, last seen first."""
        ...


@frozen
class HelloRecorded:
    """A stored hello: the new generation of its channel, and whether its owner had open approvals then."""

    generation: int
    has_questions: bool


@frozen
class ConnectionOpened:
    """A channel has a new connection."""

    channel: str
    generation: int


@frozen
class PresenceChanged:
    """A device of the owner changed its presence."""


@frozen
class DevicesChanged:
    """A device of the principal has fewer rights than before: its connections are checked again."""


@frozen
class OwnerForgotten:
    """All data of the principal was deleted: its connections start again."""


ChannelUpdate: TypeAlias = ConnectionOpened | PresenceChanged | DevicesChanged | OwnerForgotten


class Channels(Protocol):
    """Records of device links."""

    def record_hello(
        self, owner: str, channel: str, record: bytes, driver: Incarnation | None
    ) -> Awaitable[HelloRecorded]:
        """Writes the record, creates the owner's inbox if there is none, and increments the generation."""
        ...

    async def listen(self, owner: str, on_update: Callable[[ChannelUpdate], None]) -> None:
        """Returns once updates of the owner's devices arrive here.

        An update may be lost or doubled, like any hint. At most one listener per owner.
        """
        ...

    async def ignore(self, owner: str) -> None:
        """Ends ``listen``."""
        ...

    async def notify_devices(self, owner: str) -> None:
        """Notifies all listeners that the devices of the owner have changed."""
        ...

    async def keep(self, channel: str, generation: int, driver: Incarnation | None) -> int:
        """Refreshes an open link, and returns the newest generation of its channel."""
        ...

    async def read_generation(self, channel: str) -> int:
        """The newest generation of a channel; 0 if there is none."""
        ...

    async def list_live(self, owner: str) -> tuple[bytes, ...]:
        """The records of a principal's open links, last opened first."""
        ...

    async def is_live(self, channel: str) -> bool:
        """Whether a connection of the channel is open, as far as is stored."""
        ...


@frozen
class PresentDevice:
    """A present device, and for how many ms its presence is valid without a refresh."""

    presence: Presence
    left_ms: int


class Presences(Protocol):
    """Presence of a principal's devices, over all instances. An entry expires after a minute."""

    async def announce(self, owner: str, generation: int, presence: Presence) -> bool:
        """Stores the presence of a connection, replacing the last one; False if a newer connection has stored one."""
        ...

    async def withdraw(self, owner: str, channel: str, generation: int) -> None:
        """Removes the presence of an ended connection, unless a newer connection of the channel has stored one."""
        ...

    async def list_present(self, owner: str) -> tuple[PresentDevice, ...]:
        """The present devices of one principal, by its key."""
        ...


@frozen
class PendingLink:
    """Facts of one kind about a link that are to be written as one: ``total`` ever, ``written`` of them written before.

    ``payloads``: the last one; if each counts, up to 16 of them, each followed by a line feed.
    """

    record: bytes
    payloads: bytes
    total: int
    written: int


class Links(Protocol):
    """Pending facts about device links: several of one kind within a minute are written as one (EXT-8, I9)."""

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
        """Stores a pending fact; the row ``link:<channel>:<kind>`` comes due for it, after at least ``wait_ms``.

        ``listed``: each payload counts, not only the newest generation's, in any order. ``leaves``: the instance whose
        connection has ended.
        """
        ...

    async def mark_lost(self, channel: str, payload: bytes, instance: str) -> None:
        """Stores that a link ended with its instance, unless the device is connected elsewhere already."""
        ...

    async def read_pending(self, channel: str, kind: str) -> PendingLink | None:
        """The pending facts; None if the record is gone."""
        ...

    async def settle(self, row: DueRow, kind: str, owed: PendingLink, *, listed: bool) -> None:
        """Settles the pending facts that were read: they are written."""
        ...
