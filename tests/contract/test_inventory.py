"""The inventory of a store: every key is counted once under its kind, and sessions by time of end."""

from __future__ import annotations

import pytest

from passerelle.core.batch import Batch, OpenChange
from passerelle.core.errors import StoreUnavailable
from passerelle.core.ids import ALL_SHARDS, Shard
from passerelle.store import keys
from passerelle.store.batcher import Batcher
from passerelle.store.connection import RespValue, pack
from passerelle.store.failures import Redirected
from passerelle.store.inventory import DAY_MS, OTHER, Inventory, KeyUsage, SessionAge
from passerelle.store.store import Store
from tests.support.batches import EPOCH, TaskPlace, event, make_place, operation
from tests.support.engine import Server, ask

pytestmark = pytest.mark.anyio

SPREAD = (Shard(0), Shard(17), Shard(17), Shard(42), Shard(63))


async def put_session(
    store: Store, shard: Shard, *, is_open: bool, at_ms: int, large: int = 0
) -> TaskPlace:
    at = make_place(shard)
    batch = Batch(
        at.session,
        operation(),
        0,
        EPOCH,
        (at.write(snapshot=(b"x" * (100 + large),)),),
        (event(),),
        open=(OpenChange(at.task_ref.id, 0),) if is_open else (),
        task_times=((at.task_ref.id, at_ms),),
    )
    await store.log.append(batch)
    return at


async def list_names(store: Store) -> dict[str, int]:
    """Every key and its size, read one by one."""
    sizes = dict[str, int]()
    for node in store.nodes.all:
        [names] = await node.reads.call(pack("KEYS", "*"))
        assert isinstance(names, list)
        for name in names:
            assert isinstance(name, bytes)
            [size] = await node.reads.call(pack("MEMORY", "USAGE", name))
            assert isinstance(size, int)
            sizes[name.decode()] = size
    return sizes


async def test_all_keys_of_all_primaries_are_counted_under_their_kinds(store: Store) -> None:
    for shard in SPREAD:
        await put_session(store, shard, is_open=False, at_ms=5)
    found = await store.inventory.measure()
    sizes = await list_names(store)
    for kind, prefixes in keys.KINDS.items():
        own = [size for name, size in sizes.items() if keys.read_parts(name)[0] in prefixes]
        assert (found.kinds[kind].keys, found.kinds[kind].bytes) == (len(own), sum(own)), kind
    assert found.kinds[OTHER].keys == 0
    assert found.total == KeyUsage(len(sizes), sum(sizes.values()))
    assert found.kinds["tasks"].keys == found.kinds["history"].keys == len(SPREAD)
    assert len(found.tasks_ms) == len(SPREAD)


async def test_session_is_as_old_as_its_last_status_unless_something_is_open(
    store: Store,
) -> None:
    long_ago = await put_session(store, Shard(3), is_open=False, at_ms=1_000)
    ongoing = await put_session(store, Shard(3), is_open=True, at_ms=2_000)
    large = await put_session(store, Shard(9), is_open=False, at_ms=3_000, large=20_000)
    ages = {one.session: one for one in (await store.inventory.measure()).sessions}
    assert {name: one.ended_ms for name, one in ages.items()} == {
        long_ago.session: 1_000,
        ongoing.session: None,
        large.session: 3_000,
    }
    assert ages[large.session].bytes > ages[long_ago.session].bytes + 20_000, "with its tasks"


async def test_foreign_keys_in_the_same_database_are_distinguished(
    store: Store, server: Server
) -> None:
    tags = [f"{{{ALL_SHARDS[7].tag}}}:zz:new", "somebody"]
    for name in tags:
        ask(server.url, "SET", name, "x", "EX", "60")
    found = await store.inventory.measure()
    assert found.kinds[OTHER].keys == len(tags)
    assert found.total.keys == sum(one.keys for one in found.kinds.values()) - len(tags)


async def test_key_of_a_moved_slot_is_left_out_and_a_refusal_is_reported(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    await put_session(store, Shard(3), is_open=False, at_ms=1_000)
    whole = (await store.inventory.measure()).total.keys
    answers: list[Redirected | StoreUnavailable] = [Redirected("MOVED 1 127.0.0.1:1")]

    def disturb(batcher: Batcher) -> None:
        call_each = batcher.call_each

        async def answer(
            packed: bytes, count: int
        ) -> list[RespValue | StoreUnavailable | Redirected]:
            said = await call_each(packed, count)
            return [*answers[:1], *said[1:]]

        monkeypatch.setattr(batcher, "call_each", answer)

    for node in store.nodes.all:
        disturb(node.reads)
    assert (await store.inventory.measure()).total.keys < whole
    answers[0] = StoreUnavailable("the user may not run MEMORY", "no")
    with pytest.raises(StoreUnavailable, match="may not run MEMORY"):
        await store.inventory.measure()


async def test_store_without_anything_has_no_age_and_does_not_grow(store: Store) -> None:
    found = await store.inventory.measure()
    assert (found.sessions, found.tasks_ms, found.find_growth(7)) == ([], [], 0)
    assert found.find_ended(0) == KeyUsage()


def test_growth_covers_the_requested_days_or_since_the_first_task() -> None:
    found = Inventory(now_ms=100 * DAY_MS)
    found.kinds["tasks"].add(10_000)
    found.tasks_ms = [DAY_MS, *(98 * DAY_MS + number for number in range(9))]
    assert found.find_growth(7) == round(10_000 / 10 * 9 / 7), "one of ten is older"
    found.tasks_ms = [98 * DAY_MS] * 10
    assert found.find_growth(7) == 5_000, "the store is two days old"
    found.tasks_ms = [100 * DAY_MS] * 10
    assert found.find_growth(7) == 240_000, "it is as if it were an hour old"


def test_ended_sessions_are_counted_with_their_share_of_unattributed_bytes() -> None:
    found = Inventory(now_ms=10 * DAY_MS)
    found.kinds["threads"].add(300)
    found.kinds["approvals"].add(100)
    found.sessions = [
        SessionAge("one", 1_000, DAY_MS),
        SessionAge("two", 2_000, 9 * DAY_MS + 1),
        SessionAge("three", 4_000, None),
        SessionAge("four", 8_000, 2 * DAY_MS),
    ]
    assert found.find_ended(DAY_MS) == KeyUsage(2, 9_000 + 200)
    assert found.find_ended(0) == KeyUsage(3, 11_000 + 300)
    assert found.find_ended(9 * DAY_MS) == KeyUsage()
