"""Callbacks of runs: found by the run while it can still run, and removed afterwards."""

from __future__ import annotations

import pytest

from passerelle.store.peers import Callback
from passerelle.store.store import Store
from tests.support.batches import make_place, mint
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio


async def test_callback_is_found_by_its_run_alone(store: Store) -> None:
    at = make_place()
    run, other = mint("run", at.shard), mint("run", at.shard)
    kept = Callback(at.task, "ab" * 32, "cd" * 32)
    await store.callbacks.keep(run, kept, 60_000)
    assert await store.callbacks.find(run) == kept
    assert await store.callbacks.find(other) is None


async def test_callback_is_removed_with_the_end_of_its_run(store: Store) -> None:
    run = mint("run", make_place().shard)
    await store.callbacks.keep(run, Callback("task", "a", "b"), 1)

    async def gone() -> bool:
        return await store.callbacks.find(run) is None

    await wait_until(gone, 15, "it has expired")
