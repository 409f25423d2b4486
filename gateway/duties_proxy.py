"""Gives services access to the duties of their instance, which are created after them and drive them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from passerelle.core.batch import Incarnation
    from passerelle.core.ids import Shard
    from passerelle.core.ports.due import DueRow
    from passerelle.delegation.duties.duty_loop import Duties
    from passerelle.delegation.duties.leases import LeaseKeeper
    from passerelle.runtime.records.feed_snapshot import FeedSnapshot

_WAKE_WITHIN_S: Final = 0.05
"""How long new questions and deliveries may wait, so that several are handled at once."""


class DutiesProxy:
    """Forwards calls to the duties; call ``bind`` first."""

    __slots__ = ("_duties",)

    _duties: Duties

    def bind(self, duties: Duties) -> None:
        """Sets the duties that answer calls."""
        self._duties = duties

    @property
    def keeper(self) -> LeaseKeeper:
        """The keeper of this instance's leases."""
        return self._duties.keeper

    def drives(self, shard: Shard) -> Incarnation:
        """As ``LeaseKeeper.drives``."""
        return self._duties.keeper.drives(shard)

    async def regain(self, shard: Shard) -> None:
        """As ``LeaseKeeper.regain``."""
        await self._duties.keeper.regain(shard)

    def find_sender(self, shard: Shard) -> Incarnation | None:
        """As ``LeaseKeeper.find_sender``."""
        return self._duties.keeper.find_sender(shard)

    def may_send(self, shard: Shard) -> bool:
        """Whether an action that cannot be undone may start."""
        return self._duties.keeper.find_sender(shard) is not None

    async def drop(self, shard: Shard, row: DueRow) -> bool:
        """As ``FactlessWrites.drop_row``: False if another instance has settled the row."""
        return await self._duties.factless_writes.drop_row(shard, row)

    def wake(self, shard: Shard, within_s: float) -> None:
        """Checks the shard's due rows within this time."""
        self._duties.due.wake(shard, within_s)

    def on_feed_snapshot(self, seen: FeedSnapshot) -> None:
        """As ``Relay.on_feed_snapshot``."""
        self._duties.relay.on_feed_snapshot(seen)

    def wake_duties(self, shard: Shard) -> None:
        """Has the shard's due rows and feed checked soon, after an append."""
        self._duties.wake(shard, _WAKE_WITHIN_S)

    def wake_relay(self, shard: Shard) -> None:
        """Makes the relay visit a shard at once, for a caller that waits for its feed."""
        self._duties.relay.wake(shard)
