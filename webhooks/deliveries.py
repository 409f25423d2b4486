"""Webhook deliveries: the handler of ``target`` due rows, and the tasks that process them outside the due loop.

A slow receiver delays only its own deliveries: the due loop does not wait for it, and each origin has its own slots.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from passerelle.core.errors import InvalidInput, PasserelleError
from passerelle.protocol.concurrency import cancel_all, keep_until_done
from passerelle.store.targets import Target
from passerelle.webhooks.job import HOLD_MS, DeliveryJob, JobOrigin

if TYPE_CHECKING:
    from collections.abc import Mapping

    from passerelle.core.ids import Shard
    from passerelle.core.ports.due import DueRow
    from passerelle.webhooks.addresses import Address
    from passerelle.webhooks.job import DeliveryDeps
    from passerelle.webhooks.kinds import Feed, TargetKind

ROW: Final = "target"
MOST_AT_ONCE: Final = 1_000
_MOST_ORIGINS: Final = 1_024
_STOP_S: Final = 0.5
_NOTHING: Final = Target("done", "*", "00000000.0.00000000")


@dataclass(slots=True)
class Deliveries:
    """Delivers for every kind of target in ``kinds``. ``on_due`` is the handler of their due rows."""

    deps: DeliveryDeps
    kinds: Mapping[str, TargetKind]
    _rows: dict[tuple[Shard, str], DueRow] = field(
        default_factory=dict["tuple[Shard, str]", "DueRow"]
    )
    _tasks: set[asyncio.Task[None]] = field(default_factory=set["asyncio.Task[None]"])
    _origins: OrderedDict[str, JobOrigin] = field(default_factory=OrderedDict["str", "JobOrigin"])

    async def on_due(self, shard: Shard, row: DueRow, _now_ms: int) -> None:
        """Starts work on a claimed row and returns at once: a receiver may take longer than the visibility time."""
        key = (shard, row.member)
        if key in self._rows:
            # It waits for a slot, and was claimed again in the meantime: only the newer claim is valid.
            self._rows[key] = row
        elif len(self._rows) < MOST_AT_ONCE:
            self._rows[key] = row
            keep_until_done(
                asyncio.create_task(self._work(shard, row.member), name=f"deliver {row.member}"),
                self._tasks,
            )

    async def stop(self) -> None:
        """Waits briefly for running deliveries; the rows of the others come due again, at any instance."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=_STOP_S)
        await cancel_all(self._tasks)
        await self.deps.sender.close()

    async def _work(self, shard: Shard, member: str) -> None:
        logger = self.deps.logger
        try:
            await self._deliver(shard, member)
        except PasserelleError as error:
            logger.warning("delivery.held", row=member, code=error.stable_code, reason=str(error))
        except Exception:
            logger.exception("delivery.failed", row=member)
        finally:
            del self._rows[shard, member]

    async def _deliver(self, shard: Shard, member: str) -> None:
        name = member.partition(":")[2]
        kind = self.kinds.get(name.partition(":")[0])
        if kind is None:
            # Another version may know this kind: the row stays for an instance of that version.
            self.deps.logger.error("delivery.unknown", row=member)
            return
        opened = await kind.open(name)
        if opened is None:
            await self.deps.drop(shard, self._rows[shard, member])
            return
        address, origin = self._find_origin(opened.feed)
        async with origin.places:
            claim = await self.deps.due.extend_claim(shard, self._rows[shard, member], HOLD_MS)
            target = await self.deps.targets.find(opened.stream, name)
            if claim.row is None:
                return
            job = DeliveryJob(self.deps, shard, opened.stream, name, claim.row.token, origin)
            if target is None or opened.feed is None:
                await job.close(target or _NOTHING, "done")
            elif target.state == "dead":
                await job.close(target, "dead")
            else:
                await job.run(opened.feed, address, target, confirmed=claim.confirmed)

    def _find_origin(self, feed: Feed | None) -> tuple[Address | None, JobOrigin]:
        """Returns the address and origin of a feed. A blocked address gets an origin of its own."""
        if feed is None:
            return None, JobOrigin()
        try:
            address = feed.address
        except InvalidInput:
            return None, JobOrigin()
        origin = self._origins.setdefault(address.origin, JobOrigin())
        self._origins.move_to_end(address.origin)
        while len(self._origins) > _MOST_ORIGINS:
            self._origins.popitem(last=False)
        return address, origin
