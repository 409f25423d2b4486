"""When inboxes are trimmed, by which instance, and what happens after a failed sweep."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import cast

import pytest
import structlog

from passerelle.core.errors import StoreUnavailable
from passerelle.core.ids import Shard
from passerelle.delegation.duties.inbox_sweep import InboxSweep
from passerelle.store.inboxes import RedisInboxes
from tests.support.spelt_ids import compose_id
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio
NOW_MS = 1_800_000_000_000
SHARDS = frozenset({Shard(3), Shard(9)})


@dataclass
class Inboxes:
    """Owners, who all follow their lists, in every shard that is asked for; each call of ``trim`` is kept."""

    fails: list[Exception] = field(default_factory=list[Exception])
    trimmed: list[tuple[str, int, int]] = field(default_factory=list[tuple[str, int, int]])
    notes: list[tuple[str, int, int]] = field(default_factory=list[tuple[str, int, int]])

    async def list_owners(self, shards: Collection[Shard]) -> list[str]:
        if self.fails:
            raise self.fails.pop()
        return sorted(compose_id("pr", shard, NOW_MS, 7) for shard in shards)

    async def trim(self, owner: str, before_ms: int, now_ms: int) -> int:
        self.trimmed.append((owner, before_ms, now_ms))
        return 1

    async def list_followers(self, shards: Collection[Shard]) -> list[str]:
        return await self.list_owners(shards)

    async def trim_notes(self, owner: str, before_ms: int, now_ms: int) -> int:
        self.notes.append((owner, before_ms, now_ms))
        return 1


def make_sweep(inboxes: Inboxes, keep_ms: int | None = None) -> InboxSweep:
    return InboxSweep(
        cast("RedisInboxes", inboxes),
        lambda: SHARDS,
        # The clock of each shard is its own.
        lambda shard: NOW_MS + shard.number,
        structlog.get_logger(),
        keep_ms,
    )


async def test_each_inbox_is_judged_by_the_clock_of_its_shard() -> None:
    inboxes = Inboxes()
    assert await make_sweep(inboxes).sweep(1_000) == 2 * len(SHARDS)
    for trimmed in (inboxes.trimmed, inboxes.notes):
        assert [(before, now) for _, before, now in trimmed] == [
            (NOW_MS + number - 1_000, NOW_MS + number) for number in (3, 9)
        ]


@pytest.mark.parametrize("fault", [StoreUnavailable("refused", "no"), KeyError("of our own")])
async def test_a_look_that_fails_is_followed_by_another(fault: Exception) -> None:
    inboxes = Inboxes([fault])
    running = asyncio.create_task(make_sweep(inboxes, 1_000).run())
    await wait_until(lambda: inboxes.trimmed, 10, "a later look")
    assert not inboxes.fails
    running.cancel()


async def test_without_a_retention_no_inbox_is_trimmed() -> None:
    inboxes = Inboxes()
    async with asyncio.timeout(5):
        await make_sweep(inboxes).run()
    assert not inboxes.trimmed
