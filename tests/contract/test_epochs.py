"""Shard epochs: one loss causes one bump, and an epoch never decreases."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from passerelle.store.store import Store, StoreSettings
from tests.support.batches import make_place
from tests.support.engine import Server

pytestmark = pytest.mark.anyio


async def test_several_detectors_of_one_loss_make_one_bump(store: Store) -> None:
    shard = make_place().shard
    epochs = await asyncio.gather(*(store.log.bump_epoch(shard, 0) for _ in range(5)))
    assert len(set(epochs)) == 1
    assert await store.log.bump_epoch(shard, epochs[0]) > epochs[0]


async def test_epoch_is_at_least_the_servers_milliseconds(store: Store) -> None:
    shard = make_place().shard
    before = (await store.due.claim(shard, 1, 1)).now_ms
    assert await store.log.bump_epoch(shard, 0) >= before


async def test_another_process_reads_the_epochs_when_it_opens(
    store: Store, server: Server, tmp_path: Path
) -> None:
    at = make_place()
    epoch = await store.log.bump_epoch(at.shard, 0)
    async with await Store.open(StoreSettings(server.url, tmp_path)) as other:
        assert other.log.shard_epoch(at.shard) == epoch
        assert other.runtime_id == store.runtime_id
