"""Mutes of a person: by agent, until a time of the store, and never without an end."""

from __future__ import annotations

import pytest

from passerelle.core.ids import Shard
from passerelle.store import keys
from passerelle.store.connection import pack
from passerelle.store.pushes import MOST
from passerelle.store.store import Store
from tests.support.batches import make_place, mint

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("CHN-6")]

HOUR_MS = 3_600_000


def make_owner() -> tuple[Shard, str]:
    shard = make_place().shard
    return shard, mint("pr", shard)


async def test_last_mute_of_an_agent_counts_and_applies_to_one_person(store: Store) -> None:
    _, owner = make_owner()
    await store.mutes.mute(owner, "echo", 8 * HOUR_MS)
    until_ms = await store.mutes.mute(owner, "echo", HOUR_MS)
    other_ms = await store.mutes.mute(owner, "other", 2 * HOUR_MS)
    assert await store.mutes.list_muted(owner) == {"echo": until_ms, "other": other_ms}
    assert await store.mutes.list_muted(make_owner()[1]) == {}
    await store.mutes.unmute(owner, "echo")
    await store.mutes.unmute(owner, "nobody")
    assert await store.mutes.list_muted(owner) == {"other": other_ms}


async def test_expired_mute_is_ineffective_and_removed(store: Store) -> None:
    shard, owner = make_owner()
    await store.mutes.mute(owner, "echo", HOUR_MS)
    await store.mutes.mute(owner, "other", HOUR_MS)
    name = keys.mutes(shard, owner)
    await store.nodes.write(shard, pack("ZADD", name, "XX", 1, "echo"))
    assert list(await store.mutes.list_muted(owner)) == ["other"]
    await store.mutes.unmute(owner, "nobody")
    assert await store.nodes.read(shard, pack("ZCARD", name)) == [1]


async def test_mutes_expire_with_the_last_and_are_limited(store: Store) -> None:
    shard, owner = make_owner()
    for number in range(MOST + 3):
        await store.mutes.mute(owner, f"agent-{number}", HOUR_MS + number * 1_000)
    muted = await store.mutes.list_muted(owner)
    assert list(muted) == [f"agent-{number}" for number in range(3, MOST + 3)]
    await store.mutes.mute(owner, "short", 1_000)
    [left] = await store.nodes.read(shard, pack("PTTL", keys.mutes(shard, owner)))
    assert isinstance(left, int)
    assert HOUR_MS < left <= HOUR_MS + MOST * 1_000 + 3_000
