"""``passerelle store forget``, ``hold`` and ``release``: what an owner has is deleted for good, or may not be."""

from __future__ import annotations

import getpass
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from passerelle.core.errors import InvalidInput
from passerelle.core.ids import read_shard
from passerelle.core.principal import Principal
from passerelle.gateway.store_setup import reach_store
from passerelle.store.archive.tombstones import LegalHold

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from passerelle.gateway.settings.model import Settings
    from passerelle.store.archive.forgetting import ForgettingPlan
    from passerelle.store.archive.tombstones import Tombstone
    from passerelle.store.store import Store

_KEY: Final = "pr_"
OUT_OF_REACH: Final = (
    "out of reach: backups, copies and exports of the store or its blobs, earlier versions of objects in a bucket, "
    "logs, and what agents, webhooks and devices were told"
)


_EMBEDDED: Final = "the append-only file of the embedded engine was written anew"
_EXTERNAL: Final = (
    "to be done at each server, replicas too: BGREWRITEAOF, and BGSAVE where it keeps an RDB file"
)


@dataclass(frozen=True, slots=True)
class OwnerName:
    """Whose things: the name of a client or person, or the owner key that records show."""

    name: str
    tenant: str = "default"

    @property
    def key(self) -> str:
        """The owner key.

        Raises:
            InvalidInput: ``owner`` or ``tenant`` is empty.
        """
        for field, text in (("owner", self.name), ("tenant", self.tenant)):
            if not text.strip():
                raise InvalidInput(field, "is empty")
        is_key = self.name.startswith(_KEY) and read_shard(self.name) is not None
        return self.name if is_key else Principal(self.name, self.tenant).key


@dataclass(frozen=True, slots=True)
class OwnerForgetting:
    """Forgets what one owner has, over an open store."""

    store: Store
    settings: Settings
    owner: OwnerName

    async def plan(self) -> ForgettingPlan:
        """What would go. Raises InvalidInput, StoreUnavailable."""
        return await self.store.forgetting.plan(self.owner.key, self.store.clock.now_ms())

    async def finish(self) -> list[str]:
        """Ends what somebody has begun who was killed. Raises StoreUnavailable."""
        done = await self.store.forgetting.finish(self.owner.key)
        return [self._describe(one) for one in done]

    async def forget(self) -> list[str]:
        """Forgets it.

        Raises:
            InvalidInput: something is open, or somebody holds the owner.
            StoreUnavailable: something does not answer; where it had begun, the next call or start goes on.
        """
        now_ms = self.store.clock.now_ms()
        done = await self.store.forgetting.forget(self.owner.key, getpass.getuser(), now_ms)
        return [self._describe(done)]

    def _describe(self, tombstone: Tombstone) -> str:
        return f"forgotten: {self.owner.name}, tombstone {tombstone.key.text}"


def describe_plan(owner: OwnerName, plan: ForgettingPlan) -> Iterator[str]:
    """What would go, for people."""
    counts = plan.counts
    if plan.obstacle is not None:
        yield f"cannot be forgotten: {owner.name} {plan.obstacle}"
    yield (
        f"of {owner.name}: {counts.sessions:,} sessions, {counts.archived:,} of them in the archive, "
        f"with {counts.tasks:,} tasks and {counts.approvals:,} approvals; {counts.bytes:,} bytes"
    )
    if plan.is_begun:
        yield f"somebody who forgot {owner.name} was killed: what was begun is ended first"
    for session in plan.kept:
        yield f"stays: {session}, which has devices, grants or rules: revoke them, and forget again"


async def run_forget(
    settings: Settings, owner: OwnerName, *, dry_run: bool, confirm: Callable[[Sequence[str]], bool]
) -> list[str]:
    """What was done, for people. ``confirm`` is asked with what would go.

    Raises:
        InvalidInput: something is open, or somebody holds the owner.
        EngineFailed, StoreUnavailable: the store cannot be opened or read.
    """
    async with reach_store(settings) as store:
        forgetting = OwnerForgetting(store, settings, owner)
        plan = await forgetting.plan()
        lines = [*describe_plan(owner, plan)]
        if dry_run:
            return lines
        finished = list[str]()
        if plan.is_begun:
            finished += await forgetting.finish()
            plan = await forgetting.plan()
        if plan.counts.sessions:
            if plan.obstacle is not None:
                raise InvalidInput("owner", f"{owner.name} {plan.obstacle}")
            if not confirm(lines):
                return [*finished, "nothing else is changed"]
            finished += await forgetting.forget()
        left = _EMBEDDED if settings.redis_url is None else _EXTERNAL
        return [*lines, *finished, *((left, OUT_OF_REACH) if finished else ())]


async def run_hold(settings: Settings, owner: OwnerName, reason: str) -> list[str]:
    """Has nothing of an owner be forgotten from here on.

    Raises:
        InvalidInput: ``reason`` is empty, or it is forgotten at this moment.
        EngineFailed, StoreUnavailable: the store cannot be opened or written.
    """
    if not reason.strip():
        raise InvalidInput("reason", "is empty")
    async with reach_store(settings) as store:
        hold = LegalHold(store.clock.now_ms(), getpass.getuser(), reason)
        if not await store.tombstones.hold(owner.key, hold):
            raise InvalidInput("owner", f"{owner.name} is being forgotten: it is too late")
        held = await store.tombstones.find_hold(owner.key)
    return [f"held: {owner.name}, {held.reason if held else reason}"]


async def run_release(settings: Settings, owner: OwnerName) -> list[str]:
    """Takes a hold back. Raises EngineFailed, StoreUnavailable: the store cannot be opened or written."""
    async with reach_store(settings) as store:
        held = await store.tombstones.find_hold(owner.key)
        await store.tombstones.release(owner.key)
    return [f"released: {owner.name}" if held else f"nobody holds {owner.name}"]
