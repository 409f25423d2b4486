"""The relay's backlog delays a caller by at most one batch of store calls."""

from __future__ import annotations

import asyncio
from typing import Final

import pytest

from passerelle.core.ids import ALL_SHARDS, Shard
from passerelle.core.ports.log import StreamKind, StreamRef
from passerelle.store.batcher import BATCH_LIMIT
from passerelle.store.store import Store
from tests.integration.duties.conftest import Instances
from tests.integration.duties.story import OWNER, Story, make_writes
from tests.support import store_trips
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio

QUESTIONS: Final = 32
"""Approvals per shard, with two rows each that the relay has to read."""
MESSAGES: Final = 20


async def leave_backlog(store: Store) -> None:
    """Writes the backlog while no instance has the duties."""

    async def fill(shard: Shard) -> None:
        story = Story(make_writes(store), shard)
        await story.begin()
        for _ in range(QUESTIONS):
            await story.answer(await story.ask())

    await asyncio.gather(*map(fill, ALL_SHARDS))


async def test_caller_waits_for_at_most_one_batch_of_the_relays_backlog(
    instances: Instances, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    await leave_backlog(store)
    one = await instances.start("in_one", runs=False)
    trips = store_trips.watch(monkeypatch)

    def count_ahead() -> int:
        """Relay calls in flight."""
        return sum(1 for trip in trips.all if trip.errand[0] == "relay" and not trip.is_over)

    async def relay_all(shard: Shard) -> None:
        while await one.duties.relay.pass_on(shard) < 1.0:
            continue

    relaying = asyncio.gather(*map(relay_all, ALL_SHARDS))
    await wait_until(lambda: count_ahead() > 0, 10, "the relay is at work")
    ahead: list[int] = []
    for number in range(MESSAGES):
        ahead.append(count_ahead())
        story = Story(make_writes(one.store), Shard(number))
        await story.begin()
        ahead.append(count_ahead())
        await story.read()
    assert not relaying.done()
    await asyncio.wait_for(relaying, 60)
    inbox = await store.log.read_head(StreamRef(StreamKind.INBOX, OWNER.key))
    assert inbox is not None
    assert inbox.sequence == 5 * QUESTIONS * len(ALL_SHARDS)
    assert max(ahead) <= BATCH_LIMIT, ahead
