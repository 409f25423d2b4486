"""Port for leases: which instance drives what, one lease per instance and shard."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from passerelle.core.frozen import frozen

if TYPE_CHECKING:
    from collections.abc import Sequence

    from passerelle.core.batch import Incarnation
    from passerelle.core.errors import StoreUnavailable
    from passerelle.core.ids import Shard


@frozen
class Lease:
    """Held until ``until_ms`` of the server's clock; ``duty``: this instance also has the shard's duties.

    A resting lease is valid for longer than one lease time; its ``until_ms`` is the last one written.
    """

    until_ms: int
    now_ms: int
    duty: bool
    found_ms: int | None = None
    """The previous end, as the store had it; None if the lease was opened.

    If it is earlier than an acknowledged extension, that extension was lost, with all later writes.
    """
    epoch: int = 0
    """Epoch of the shard."""


@frozen
class LeaseLost:
    """The set is gone or has another incarnation; this instance no longer drives anything there."""


@frozen
class TakenOver:
    """The lease of a dead instance had ended: its runs, as run id and task id, and its channels."""

    number: int
    """The incarnation that died."""
    runs: tuple[tuple[str, str], ...]
    channels: tuple[str, ...]


@frozen
class Alive:
    """The instance has extended its lease in the meantime."""


class Replicas(Protocol):
    """Replicas of the store, one of which takes over in a failover: irreversible acts wait for them."""

    def are_seen(self, shard: Shard) -> bool:
        """Whether acts wait for a replica: some were seen, unless a promoted server has had none for long."""
        ...

    async def have_all(self, shard: Shard) -> bool:
        """Whether one of them has all earlier writes of a shard; False while the store is away."""
        ...


@frozen
class LeaseRequest:
    """A request to open or extend a lease."""

    shard: Shard
    driver: Incarnation
    opens: bool
    wants_duty: bool
    seen: int = 0
    """The epoch of the shard when the instance last compared its runs with its set."""
    may_rest: bool = False
    """Whether it may go without extension while it drives nothing."""
    living: tuple[str, ...] = ()
    """The instances that are alive: the duty of any other instance may be taken."""


class Leases(Protocol):
    """One lease per instance and shard; time is the server's."""

    async def extend(self, request: LeaseRequest, lease_ms: int) -> Lease | LeaseLost:
        """Opens or extends the lease. Extending a lost lease is a loss, never a silent new start."""
        ...

    async def extend_each(
        self, requests: Sequence[LeaseRequest], lease_ms: int
    ) -> list[Lease | LeaseLost | StoreUnavailable]:
        """The same for one lease in each of many shards, together; without retries."""
        ...

    async def take_over(self, shard: Shard, instance: str) -> TakenOver | Alive:
        """Marks an expired lease as gone and returns its runs; an empty one is deleted with its due row."""
        ...

    async def release(self, shard: Shard, driver: Incarnation) -> None:
        """Ends the lease at once, so that its runs are taken over without waiting."""
        ...

    async def announce(self, instance: str) -> dict[str, int]:
        """Announces that this instance is alive; returns each live instance with the ms since its last announcement."""
        ...

    async def withdraw(self, instance: str) -> None:
        """Removes the instance from the list, so that others take its duties at once."""
        ...
