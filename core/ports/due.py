"""Ports for due rows: claimed at their time, handled and settled; and to poll many shards for new ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeAlias

from passerelle.core.batch import DueClaim
from passerelle.core.frozen import frozen

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from passerelle.core.errors import StoreUnavailable
    from passerelle.core.ids import Shard


@frozen
class DueRow(DueClaim):
    """A claimed row."""

    @property
    def kind(self) -> str:
        """The text before the first colon: names the handler."""
        return self.member.partition(":")[0]

    @property
    def entity(self) -> str:
        """The id that the row is about."""
        return self.member.split(":", 2)[1]


DropRow: TypeAlias = "Callable[[Shard, DueRow], Awaitable[bool]]"
"""Removes a claimed row without a fact; False: it was claimed again or settled meanwhile."""


@frozen
class ClaimedRows:
    """Rows whose time has come, hidden from other claims for the visibility time, and when the next one is due."""

    rows: tuple[DueRow, ...]
    now_ms: int
    next_ms: float | None


class DueRows(Protocol):
    """Deadlines and pending acts of a shard (I9)."""

    async def claim(
        self, shard: Shard, limit: int, visibility_ms: int, skip_prefix: str = ""
    ) -> ClaimedRows:
        """Claims up to ``limit`` due rows, and any number of lease rows; none that begins with ``skip_prefix``."""
        ...


@frozen
class ShardHeads:
    """The first due row of a shard with its time, and the newest row of its feed; empty if there is none.

    Two equal values mean that no new work has appeared in between.
    """

    due: tuple[bytes, ...]
    feed: bytes

    @property
    def due_ms(self) -> float | None:
        """When the first row is due, by the clock of the shard's primary; None: there is no row."""
        return float(self.due[1]) if self.due else None


class ShardPoll(Protocol):
    """Reads the heads of many shards together."""

    async def read_heads(self, shards: Sequence[Shard]) -> list[ShardHeads | StoreUnavailable]:
        """The heads of each shard in the order asked for, in one exchange with each node; failures are values."""
        ...
