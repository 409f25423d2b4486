"""Webhook receivers: woken by what they want, one delivery in flight, never a skipped event."""

from __future__ import annotations

from dataclasses import replace

import pytest

from passerelle.core.batch import Batch, Stamp
from passerelle.core.ports import DueRow
from passerelle.store.store import Store
from passerelle.store.targets import Target
from tests.support.batches import EPOCH, Place, event, make_place, operation

pytestmark = pytest.mark.anyio


async def append(store: Store, at: Place, facade: str | None = None) -> str:
    """One more event; the cursor behind it."""
    (task,) = await store.log.load([at.task_ref])
    await store.log.append(
        Batch(
            at.session,
            operation(),
            0,
            EPOCH,
            entities=(at.write(task.stamp),),
            events=(event(facade=facade),),
        )
    )
    head = await store.log.read_head(at.stream)
    assert head is not None
    return f"{head.epoch}.{head.sequence}.{head.chain}"


async def claim(store: Store, at: Place) -> list[DueRow]:
    return list((await store.due.claim(at.shard, 10, 60_000)).rows)


async def test_only_a_target_whose_filter_matches_is_woken(store: Store) -> None:
    at = make_place()
    start = await append(store, at)
    for name, chosen, state in (
        ("all", "*", "live"),
        ("mine", at.task, "live"),
        ("other", "task_other", "live"),
        ("dead", "*", "dead"),
    ):
        assert await store.targets.create(
            at.stream, name, Target("dead" if state == "dead" else "live", chosen, 0, start)
        )
    assert not await store.targets.create(at.stream, "all", Target("live", "*", 0, start))
    await append(store, at, at.task)
    assert sorted(row.member for row in await claim(store, at)) == ["target:all", "target:mine"]


async def test_delivery_up_to_the_head_drops_the_row(store: Store) -> None:
    at = make_place()
    start = await append(store, at)
    await store.targets.create(at.stream, "hook", Target("live", "*", 0, start))
    end = await append(store, at)
    (row,) = await claim(store, at)
    done = Target("live", "*", 0, end)
    assert await store.targets.settle(at.stream, "hook", row.token, done) == "ok"
    assert await store.targets.read(at.stream) == {"hook": done}
    assert (await store.due.claim(at.shard, 1, 1)).next_ms is None


async def test_append_during_a_delivery_leaves_the_row_due_now(store: Store) -> None:
    at = make_place()
    start = await append(store, at)
    await store.targets.create(at.stream, "hook", Target("live", "*", 0, start))
    middle = await append(store, at)
    (row,) = await claim(store, at)
    await append(store, at)
    outcome = Target("live", "*", 0, middle)
    assert await store.targets.settle(at.stream, "hook", row.token, outcome) == "ok"
    assert [again.member for again in await claim(store, at)] == ["target:hook"]


async def test_claim_that_outlived_its_time_settles_nothing(store: Store) -> None:
    at = make_place()
    start = await append(store, at)
    first = Target("live", "*", 0, start)
    await store.targets.create(at.stream, "hook", first)
    end = await append(store, at)
    (row,) = await claim(store, at)
    late = str(int(row.token) - 1)
    outcome = Target("live", "*", 0, end)
    assert await store.targets.settle(at.stream, "hook", late, outcome) == "unclaimed"
    assert await store.targets.read(at.stream) == {"hook": first}


async def test_failed_delivery_waits_and_then_a_dead_one_keeps_its_cursor(store: Store) -> None:
    at = make_place()
    start = await append(store, at)
    await store.targets.create(at.stream, "hook", Target("live", "*", 0, start))
    await append(store, at)
    (row,) = await claim(store, at)
    failed = Target("backoff", "*", 1, start)
    assert await store.targets.settle(at.stream, "hook", row.token, failed, 50_000) == "ok"
    waiting = await store.due.claim(at.shard, 10, 60_000)
    assert waiting.rows == ()
    assert waiting.next_ms is not None
    assert 40_000 < waiting.next_ms - waiting.now_ms <= 50_000
    token = str(waiting.next_ms)
    dead = replace(failed, state="dead", tries=2)
    assert await store.targets.settle(at.stream, "hook", token, dead) == "ok"
    assert await store.targets.read(at.stream) == {"hook": dead}
    await append(store, at)
    assert await claim(store, at) == []


async def test_cursor_of_a_target_never_goes_back(store: Store) -> None:
    at = make_place()
    start = await append(store, at)
    end = await append(store, at)
    await store.targets.create(at.stream, "hook", Target("live", "*", 0, end))
    await append(store, at)
    (row,) = await claim(store, at)
    behind = Target("live", "*", 0, start)
    assert await store.targets.settle(at.stream, "hook", row.token, behind) == "ok"
    assert (await store.targets.read(at.stream))["hook"].cursor == end


async def test_row_of_a_removed_target_goes_with_its_claim(store: Store) -> None:
    at = make_place()
    start = await append(store, at)
    await store.targets.create(at.stream, "hook", Target("live", "*", 0, start))
    await append(store, at)
    (row,) = await claim(store, at)
    await store.targets.remove(at.stream, "hook")
    outcome = Target("live", "*", 0, start)
    assert await store.targets.settle(at.stream, "hook", row.token, outcome) == "unclaimed"
    assert (await store.due.claim(at.shard, 1, 1)).next_ms is None
    assert Stamp(0, "") not in {loaded.stamp for loaded in await store.log.load([at.task_ref])}
