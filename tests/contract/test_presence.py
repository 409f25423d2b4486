"""Presence: the last state of each device, for a while, shown to the principal's devices on every instance."""

from __future__ import annotations

import pytest

from passerelle.core.ids import Shard
from passerelle.core.ports.channels import ChannelUpdate, Presence, PresenceChanged
from passerelle.core.vocabulary import PresenceState
from passerelle.store import keys
from passerelle.store.channels import PRESENCE_KEEP_MS, RedisPresences
from passerelle.store.connection import pack
from passerelle.store.store import Store
from tests.support.batches import make_place, mint
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("PRS-9")]


def make_owner() -> tuple[Shard, str]:
    shard = make_place().shard
    return shard, mint("pr", shard)


def word(shard: Shard, device: str = "phone", state: PresenceState = "active") -> Presence:
    return Presence(mint("ch", shard), device, None, state, ("inbox",))


async def there(store: Store, owner: str) -> list[Presence]:
    return [one.presence for one in await store.presences.list_present(owner)]


async def test_last_presence_of_each_device_is_kept_with_its_expiry(store: Store) -> None:
    shard, owner = make_owner()
    assert await there(store, owner) == []
    phone, desk = word(shard, "phone"), word(shard, "desk", "idle")
    assert await store.presences.announce(owner, 1, phone)
    assert await store.presences.announce(owner, 1, desk)
    away = Presence(phone.channel_id, "phone", None, "away")
    assert await store.presences.announce(owner, 1, away)
    present = await store.presences.list_present(owner)
    assert sorted((one.presence for one in present), key=lambda one: one.device) == [desk, away]
    assert all(PRESENCE_KEEP_MS - 5_000 < one.left_ms <= PRESENCE_KEEP_MS for one in present)
    assert await there(store, make_owner()[1]) == []


async def test_presence_expires_while_another_is_renewed(store: Store) -> None:
    shard, owner = make_owner()
    quick, slow = RedisPresences(store.nodes, 150), RedisPresences(store.nodes, 60_000)
    gone, stays = word(shard, "gone"), word(shard, "stays")
    await quick.announce(owner, 1, gone)
    await slow.announce(owner, 1, stays)
    assert len(await there(store, owner)) == 2

    async def look() -> bool:
        return await there(store, owner) == [stays]

    await wait_until(look, 15, "the word has run out")
    name = keys.presence(shard, owner)
    assert len(await read(store, shard, "HKEYS", name)) == 2
    await slow.announce(owner, 1, stays)
    assert len(await read(store, shard, "HKEYS", name)) == 1  # expired entries do not accumulate


async def read(store: Store, shard: Shard, *command: str) -> list[bytes]:
    [reply] = await store.nodes.read(shard, pack(*command))
    assert isinstance(reply, list)
    return [one for one in reply if isinstance(one, bytes)]


async def test_older_connection_of_a_channel_changes_and_removes_nothing(
    store: Store,
) -> None:
    shard, owner = make_owner()
    now = word(shard)
    await store.presences.announce(owner, 2, now)
    assert not await store.presences.announce(
        owner, 1, Presence(now.channel_id, "phone", None, "away")
    )
    await store.presences.withdraw(owner, now.channel_id, 1)
    assert await there(store, owner) == [now]
    await store.presences.withdraw(owner, now.channel_id, 2)
    assert await there(store, owner) == []


async def test_presence_is_announced_when_it_changes_and_not_when_repeated(
    store: Store,
) -> None:
    shard, owner = make_owner()
    received: list[ChannelUpdate] = []
    await store.channels.listen(owner, received.append)
    said = word(shard)
    await store.presences.announce(owner, 1, said)
    await store.presences.announce(owner, 1, said)
    await store.presences.announce(owner, 1, Presence(said.channel_id, "phone", None, "idle"))
    await store.presences.withdraw(owner, said.channel_id, 1)
    await store.presences.withdraw(owner, said.channel_id, 1)
    await store.channels.record_hello(owner, mint("ch", shard), b"x", None)
    await wait_until(
        lambda: received and not isinstance(received[-1], PresenceChanged), 15, "the hello"
    )
    assert received[:-1] == [PresenceChanged()] * 3
    await store.channels.ignore(owner)
