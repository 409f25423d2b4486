"""Port to poll shards for writes of other instances, for the owner of a shard's duty."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from passerelle.core.frozen import frozen

if TYPE_CHECKING:
    from collections.abc import Sequence

    from passerelle.core.errors import StoreUnavailable
    from passerelle.core.ids import Shard


@frozen
class ShardHeads:
    """The first due row of a shard with its time, and the newest row of its feed; empty if there is none.

    Two equal values mean that no new work has appeared in between.
    """

    due: tuple[bytes, ...]
    feed: bytes

    @property
    def due_ms(self) -> int | None:
        """When the first row is due, by the clock of the shard's primary; None: there is no row."""
        return int(float(self.due[1])) if self.due else None


class ShardPoll(Protocol):
    """Reads the heads of many shards together."""

    async def read_heads(self, shards: Sequence[Shard]) -> list[ShardHeads | StoreUnavailable]:
        """The heads of each shard in the order asked for, in one exchange with each node; failures are values."""
        ...
