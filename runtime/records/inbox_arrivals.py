"""Makes a reader of an inbox wait for approvals that its owner may already know.

The relay carries an approval to an inbox some time after the append that opened it. In the meantime its owner may have
learned of it from an answer or a read of this instance. So readers of an inbox wait here first, and lists, streams and
revocations agree about its content.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeAlias

from passerelle.core.approval.audience import list_readers
from passerelle.core.approval.record import ActionRecord
from passerelle.core.errors import StoreUnavailable
from passerelle.core.ids import shard_of
from passerelle.core.ports.projections import order_feed_id
from passerelle.runtime.records.lag import RELAY

if TYPE_CHECKING:
    from collections.abc import Callable

    from passerelle.core.ids import Shard
    from passerelle.core.machine import Record
    from passerelle.core.ports.projections import Projections

WAIT_S: Final = 2.0
"""An instance with the duty of a shard sees what others store there within a second (``ShardWatch``)."""
_PAUSE_S: Final = 0.005
_LONGEST_PAUSE_S: Final = 0.08
_PAGE: Final = 128
_MOST: Final = 4_096
"""Owners; beyond that the one with the oldest last approval is dropped."""
_Mark: TypeAlias = tuple[str, str]
"""The relay's position: the epoch of the shard, and the feed id."""


@dataclass(slots=True)
class InboxArrivals:
    """Shards, by owner, with approvals that may be missing from the owner's inbox. ``wake_relay`` wakes a relay."""

    projections: Projections
    wake_relay: Callable[[Shard], None]
    _shards: OrderedDict[str, dict[Shard, int]] = field(
        default_factory=OrderedDict["str", "dict[Shard, int]"]
    )
    """With the number of the last note, which distinguishes a note added during a wait from earlier ones."""
    _notes: int = 0

    def note_opened(self, before: Record | None, after: Record | None) -> None:
        """Records that an approval was stored: it goes to the inboxes of principals that could not read it before."""
        if isinstance(after, ActionRecord) and after.is_open:
            known = list_readers(before) if isinstance(before, ActionRecord) else ()
            for reader in list_readers(after):
                if reader not in known:
                    self.note(reader, shard_of(after.scope.session_id))

    def note(self, owner: str, shard: Shard) -> None:
        """Records that an owner knows of an approval in a shard."""
        self._notes += 1
        self._shards.setdefault(owner, {})[shard] = self._notes
        self._shards.move_to_end(owner)
        if len(self._shards) > _MOST:
            self._shards.popitem(last=False)

    async def wait(self, owner: str) -> None:
        """Returns once the inbox of an owner has the noted approvals; after ``WAIT_S`` in any case."""
        noted = self._shards.get(owner)
        if not noted:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(WAIT_S), asyncio.TaskGroup() as group:
                for shard, number in [*noted.items()]:
                    group.create_task(self._wait_for(owner, shard, number))

    async def _wait_for(self, owner: str, shard: Shard, number: int) -> None:
        try:
            await self._await_relay(shard)
        except StoreUnavailable:
            return  # The inbox may be in another shard, and shows what it has.
        noted = self._shards.get(owner, {})
        if noted.get(shard) == number:
            del noted[shard]
            if not noted:
                del self._shards[owner]

    async def _await_relay(self, shard: Shard) -> None:
        """Returns once the relay has processed all current rows of a shard's feed."""
        known = await self._read_mark(shard)
        last = await self._find_last(shard, known)
        if last is None:
            return
        self.wake_relay(shard)
        pause_s, reached = _PAUSE_S, known
        while not _has_passed(reached, last, known):
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)
            reached = await self._read_mark(shard)

    async def _read_mark(self, shard: Shard) -> _Mark | None:
        mark = await self.projections.read_mark(shard, RELAY)
        if mark is None:
            return None
        epoch, _, feed_id = mark.partition(".")
        return epoch, feed_id

    async def _find_last(self, shard: Shard, mark: _Mark | None) -> str | None:
        """The last row after a mark that a projection has to process."""
        last, after = None, mark and mark[1]
        while rows := await self.projections.read_feed(shard, after, _PAGE):
            last = next((row.id for row in reversed(rows) if row.look), last)
            if len(rows) < _PAGE:
                break
            after = rows[-1].id
        return last


def _has_passed(reached: _Mark | None, last: str, known: _Mark | None) -> bool:
    """Whether the relay has processed a row. A new epoch means new ids, so there is nothing left to wait for."""
    if reached is None:
        return False
    if known is not None and reached[0] != known[0]:
        return True
    return order_feed_id(reached[1]) >= order_feed_id(last)
