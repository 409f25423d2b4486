"""Who drives what, and for how long: one lease per instance and shard."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from passerelle.core.batch import Incarnation
    from passerelle.core.errors import StoreUnavailable
    from passerelle.core.ids import Shard


@dataclass(frozen=True, slots=True)
class Lease:
    """Held until ``until_ms`` of the server's clock; ``duty`` says whether the shard's duties are ours too.

    One that rests is held for longer than a lease from now; its ``until_ms`` is the one that was written last.
    """

    until_ms: int
    now_ms: int
    duty: bool
    found_ms: int | None = None
    """Until when it was held before, as the store had it; None where it was opened.

    Earlier than an extension that was acknowledged: that extension is lost, and what was written behind it.
    """
    epoch: int = 0
    """Of the shard."""


@dataclass(frozen=True, slots=True)
class LeaseLost:
    """The set was gone, missing or of another incarnation; what was driven there is no longer ours."""


@dataclass(frozen=True, slots=True)
class TakenOver:
    """The lease of a dead instance had ended: its runs, as run id and task id, and its channels."""

    number: int
    """The incarnation that died."""
    runs: tuple[tuple[str, str], ...]
    channels: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Alive:
    """The instance has extended its lease in the meantime."""


class Replicas(Protocol):
    """Copies of what is stored, of which one takes over in a failover: acts that nothing undoes wait for them."""

    def are_seen(self, shard: Shard) -> bool:
        """Whether acts wait for one: some were seen, and it is not a promoted server that has been without for long."""
        ...

    async def have_all(self, shard: Shard) -> bool:
        """Whether one of them has everything that was stored in a shard before; False while the store is away."""
        ...


@dataclass(frozen=True, slots=True)
class LeaseRequest:
    """A lease that shall be opened or extended."""

    shard: Shard
    driver: Incarnation
    opens: bool
    wants_duty: bool
    seen: int = 0
    """The epoch of the shard since which the instance has compared what it drives with its set."""
    may_rest: bool = False
    """Whether it need not be extended for as long as nothing is driven under it."""
    living: tuple[str, ...] = ()
    """The instances that are known to live: the duty of any other one is free."""


class Leases(Protocol):
    """One lease per instance and shard; time is the server's."""

    async def extend(self, request: LeaseRequest, lease_ms: int) -> Lease | LeaseLost:
        """Opens or extends the lease. Extending what is gone is a loss, never a silent new start."""
        ...

    async def extend_each(
        self, requests: Sequence[LeaseRequest], lease_ms: int
    ) -> list[Lease | LeaseLost | StoreUnavailable]:
        """The same for one lease in each of many shards, together; nothing is tried twice."""
        ...

    async def take_over(self, shard: Shard, instance: str) -> TakenOver | Alive:
        """Marks an expired lease as gone and says what it drove; an empty one is deleted with its due row."""
        ...

    async def release(self, shard: Shard, driver: Incarnation) -> None:
        """Ends the lease at once, so that its runs are taken over without waiting."""
        ...

    async def announce(self, instance: str) -> dict[str, int]:
        """Says that this instance lives. All that said so lately, and how many ms ago: duties are spread over them."""
        ...

    async def withdraw(self, instance: str) -> None:
        """Takes the instance off the list, so that others get its duties at once."""
        ...
