"""Claims due rows of this instance's shards and passes each to its handler, which settles it (I9).

A handler settles its row in the append that records the effect, by the claim that the row carries, or drops it
alone. When a handler fails, or dies with this process, the row comes due again after the visibility time. So a
handler must tolerate a second call: its appends compare the claim, and only one of two is stored.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeAlias

from passerelle.core.errors import PasserelleError, StoreUnavailable
from passerelle.core.ids import Shard
from passerelle.core.ports.due import DueRow
from passerelle.delegation.duties.rounds import Rounds

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

    from passerelle.core.ports.due import DueRows

Handler: TypeAlias = Callable[[Shard, DueRow, int], Awaitable[None]]
"""Acts on a claimed row: the shard, the row, and the server's time of the claim in ms."""

VISIBILITY_MS: Final = 10_000
"""A handler has this long. Then it is cancelled, since its row may be claimed again."""
MOST_AT_ONCE: Final = 64
LEASE_ROWS: Final = "own:"
_FULL_PAUSE_S: Final = 0.05
_HELD_PAUSE_S: Final = 1.0
"""Pause between two looks for leases that are left to their owners after an outage."""
_CROWDED_PAUSE_S: Final = 0.25
"""Pause between two looks for expired leases while no other row fits."""


@dataclass(slots=True)
class DueLoop:
    """Claims the rows of the shards in ``duties()`` and gives each to the handler of its kind.

    ``count(kind, outcome)`` is called for each row: ``done``, ``failed``, ``cut`` (too slow) or ``unknown`` (no
    handler). For ``lease_ms`` after an outage of the store the rows of leases are skipped: their owners could not
    extend them either, and get the time to do so.
    """

    due: DueRows
    handlers: Mapping[str, Handler]
    duties: Callable[[], frozenset[Shard]]
    log: FilteringBoundLogger
    lease_ms: int
    visibility_ms: int = VISIBILITY_MS
    count: Callable[[str, str], None] = lambda _kind, _outcome: None
    _rounds: Rounds = field(init=False)
    _running: set[tuple[Shard, str]] = field(default_factory=set["tuple[Shard, str]"])
    _group: asyncio.TaskGroup | None = None
    _held_until_s: dict[Shard, float | None] = field(default_factory=dict["Shard", "float | None"])

    def __post_init__(self) -> None:
        self._rounds = Rounds("due", self._visit, self.duties, self.log)

    def wake(self, shard: Shard, within_s: float = 0.0) -> None:
        """A row was set in a shard; it may be due before the next visit."""
        self._rounds.wake(shard, within_s)

    def look_again(self) -> None:
        """The set of duties has changed."""
        self._rounds.look_again()

    async def run(self) -> None:
        """Works until cancelled; rows in progress come due again elsewhere."""
        async with asyncio.TaskGroup() as group:
            self._group = group
            await self._rounds.run()

    async def _visit(self, shard: Shard) -> float:
        # Expired leases need no free slot: they do not queue behind handlers that wait for a slow agent.
        busy = sum(not member.startswith(LEASE_ROWS) for _, member in self._running)
        room = max(0, MOST_AT_ONCE - busy)
        try:
            hold = LEASE_ROWS if self._holds_leases(shard) else ""
            claimed = await self.due.claim(shard, room, self.visibility_ms, hold)
        except StoreUnavailable:
            self._held_until_s[shard] = None
            raise
        if self._held_until_s.get(shard, 0.0) is None:
            # The store is back: the owners have the time of one lease from now on.
            now_s = asyncio.get_running_loop().time()
            self._held_until_s[shard] = now_s + self.lease_ms / 1000
        taken = 0
        for row in claimed.rows:
            taken += not row.member.startswith(LEASE_ROWS)
            self._start(shard, row, claimed.now_ms)
        if claimed.next_ms is None:
            return math.inf
        pause_s = (claimed.next_ms - claimed.now_ms) / 1000
        return pause_s if pause_s > 0 else self._pause_behind(hold, room, taken)

    def _pause_behind(self, hold: str, room: int, taken: int) -> float:
        """The pause, in seconds, when a due row was not claimed: no free slot for it, or it is skipped."""
        if taken >= room:
            return 0.0 if room else _CROWDED_PAUSE_S
        return _HELD_PAUSE_S if hold else _FULL_PAUSE_S

    def _holds_leases(self, shard: Shard) -> bool:
        until_s = self._held_until_s.get(shard, 0.0)
        return until_s is None or asyncio.get_running_loop().time() < until_s

    def _start(self, shard: Shard, row: DueRow, now_ms: int) -> None:
        key = (shard, row.member)
        if self._group is None or key in self._running:
            return
        self._running.add(key)
        self._group.create_task(self._act(shard, row, now_ms), name=f"due {row.member}")

    async def _act(self, shard: Shard, row: DueRow, now_ms: int) -> None:
        try:
            outcome = await self._handle(shard, row, now_ms)
        finally:
            self._running.discard((shard, row.member))
        self.count(row.kind, outcome)

    async def _handle(self, shard: Shard, row: DueRow, now_ms: int) -> str:
        handler = self.handlers.get(row.kind)
        if handler is None:
            # Another version may have a handler: the row stays for an instance of that version.
            self.log.error("due.unknown", row=row.member)
            return "unknown"
        try:
            async with asyncio.timeout(self.visibility_ms / 1000):
                await handler(shard, row, now_ms)
        except TimeoutError:
            self.log.warning("due.cut", row=row.member, after_ms=self.visibility_ms)
            return "cut"
        except PasserelleError as error:
            self.log.warning(
                "due.failed", row=row.member, code=error.stable_code, reason=str(error)
            )
            return "failed"
        except Exception:
            self.log.exception("due.failed", row=row.member)
            return "failed"
        return "done"
