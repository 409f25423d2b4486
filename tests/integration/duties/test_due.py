"""The due loop on a real engine: every row is handled once, and a slow or failing handler affects only its own row."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from passerelle.core.batch import Appended, DueChange, Incarnation
from passerelle.core.errors import StoreUnavailable
from passerelle.core.ids import ALL_SHARDS, Shard
from passerelle.core.ports.due import DueRow
from passerelle.core.ports.leases import LeaseRequest
from passerelle.delegation.duties.due import MOST_AT_ONCE, Handler
from passerelle.delegation.duties.factless_writes import FactlessWrites
from passerelle.runtime.common.clock import SystemIds
from passerelle.store.store import Store
from tests.integration.duties.conftest import Instance, Instances
from tests.support.engine import ask
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio

SHARD = Shard(3)


async def write_due(store: Store, shard: Shard, *members: str) -> None:
    """Writes rows that are due now."""
    factless_writes = FactlessWrites(store.log, SystemIds())
    due = tuple(DueChange(member, 1) for member in members)
    assert isinstance(await factless_writes.write(shard, due=due), Appended)


async def count_due(store: Store, shard: Shard) -> float:
    claimed = await store.due.claim(shard, 0, 1, skip_prefix="own:")
    return 0 if claimed.next_ms is None else claimed.next_ms


@pytest.mark.requirement("I9", "AP-3")
async def test_each_row_is_handled_once_by_two_instances_that_share_the_shards(
    instances: Instances, store: Store
) -> None:
    seen: Counter[str] = Counter()
    owners: dict[str, Instance] = {}

    def handler(name: str) -> Handler:
        async def act(shard: Shard, row: DueRow, now_ms: int) -> None:
            assert now_ms > 1_600_000_000_000
            if await owners[name].duties.factless_writes.drop_row(shard, row):
                seen[row.member] += 1

        return act

    for name in ("in_one", "in_two"):
        owners[name] = await instances.start(name, handlers={"ring": handler(name)})
    wanted = {f"ring:{shard.tag}:{number}" for shard in ALL_SHARDS for number in range(3)}
    for shard in ALL_SHARDS:
        await write_due(store, shard, *(m for m in wanted if m.startswith(f"ring:{shard.tag}:")))
        owners["in_one"].duties.wake(shard)
        owners["in_two"].duties.wake(shard)
    await wait_until(lambda: len(seen) == len(wanted), 10, "every row was acted on")
    assert seen == Counter(wanted)


async def test_row_written_without_a_wake_is_found_by_the_next_round(
    instances: Instances, store: Store
) -> None:
    rang = asyncio.Event()

    async def ring(_shard: Shard, _row: DueRow, _now_ms: int) -> None:
        rang.set()

    await instances.start("in_one", handlers={"ring": ring})
    await write_due(store, SHARD, "ring:x")
    async with asyncio.timeout(10):
        await rang.wait()


async def test_slow_handler_delays_no_other_row_and_is_cancelled_when_its_claim_ends(
    instances: Instances, store: Store
) -> None:
    done: list[str] = []
    outcomes: list[tuple[str, str]] = []

    async def ring(_shard: Shard, row: DueRow, _now_ms: int) -> None:
        if row.member == "ring:slow":
            await asyncio.Event().wait()
        done.append(row.member)

    one = await instances.start("in_one", handlers={"ring": ring}, runs=False)
    one.duties.due.visibility_ms = 300
    one.duties.due.count = lambda kind, outcome: outcomes.append((kind, outcome))
    await write_due(store, SHARD, "ring:slow", "ring:quick")
    async with one.duties:
        await wait_until(lambda: "ring:quick" in done, 15, "the quick one is done")
        await wait_until(lambda: ("ring", "cut") in outcomes, 15, "the slow one was cut")
    assert "ring:slow" not in done


async def test_expired_lease_is_handled_while_all_handler_slots_are_busy(
    instances: Instances, store: Store
) -> None:
    rung: list[str] = []
    taken: list[str] = []

    async def ring(_shard: Shard, row: DueRow, _now_ms: int) -> None:
        rung.append(row.member)
        await asyncio.Event().wait()

    async def take_over(_shard: Shard, row: DueRow, _now_ms: int) -> None:
        taken.append(row.entity)

    one = await instances.start("in_one", runs=False)
    one.duties.due.handlers = {"ring": ring, "own": take_over}
    for many in range(0, MOST_AT_ONCE + 300, 50):
        await write_due(store, SHARD, *(f"ring:{many + number}" for number in range(50)))
    async with one.duties:
        await wait_until(lambda: len(rung) == MOST_AT_ONCE, 15, "all handler slots are busy")
        dead = Incarnation("in_dead", 1)
        await store.leases.extend(LeaseRequest(SHARD, dead, opens=True, wants_duty=False), 1)
        await wait_until(lambda: "in_dead" in taken, 15, "the expired lease is handled")
        assert len(rung) == MOST_AT_ONCE


@pytest.mark.requirement("I9")
async def test_row_is_due_again_after_its_handler_failed(
    instances: Instances, store: Store
) -> None:
    tries: list[str] = []
    outcomes: list[tuple[str, str]] = []
    dropped = asyncio.Event()

    async def ring(shard: Shard, row: DueRow, _now_ms: int) -> None:
        tries.append(row.token)
        if len(tries) == 1:
            raise StoreUnavailable("test", "no")
        if len(tries) == 2:
            raise KeyError(row.member)
        assert await one.duties.factless_writes.drop_row(shard, row)
        dropped.set()

    one = await instances.start("in_one", handlers={"ring": ring}, runs=False)
    one.duties.due.visibility_ms = 100
    one.duties.due.count = lambda kind, outcome: outcomes.append((kind, outcome))
    await write_due(store, SHARD, "ring:x")
    async with one.duties:
        async with asyncio.timeout(15):
            await dropped.wait()
        await wait_until(lambda: len(outcomes) == 3, 15, "all three were counted")
    assert outcomes == [("ring", "failed"), ("ring", "failed"), ("ring", "done")]
    assert len(set(tries)) == 3


async def test_row_of_an_unknown_kind_is_kept(instances: Instances, store: Store) -> None:
    outcomes: list[tuple[str, str]] = []
    one = await instances.start("in_one", runs=False)
    one.duties.due.count = lambda kind, outcome: outcomes.append((kind, outcome))
    await write_due(store, SHARD, "future:x")
    async with one.duties:
        await wait_until(lambda: outcomes, 15, "the row was seen")
    assert outcomes == [("future", "unknown")]
    assert await count_due(store, SHARD)


async def test_claim_past_its_visibility_timeout_cannot_drop_the_row(store: Store) -> None:
    factless_writes = FactlessWrites(store.log, SystemIds())
    await write_due(store, SHARD, "ring:x")
    (first,) = (await store.due.claim(SHARD, 1, 1)).rows

    async def again() -> DueRow | None:
        rows = (await store.due.claim(SHARD, 1, 60_000)).rows
        return rows[0] if rows else None

    second = await wait_until(again, 15, "the row is due again")
    assert second is not None
    assert not await factless_writes.drop_row(SHARD, first)
    assert await factless_writes.drop_row(SHARD, second)
    assert not await factless_writes.drop_row(SHARD, second)
    assert not await count_due(store, SHARD)


async def test_settling_a_row_creates_no_session(store: Store, instances: Instances) -> None:
    factless_writes = FactlessWrites(store.log, SystemIds())
    await write_due(store, SHARD, "ring:x")
    (row,) = (await store.due.claim(SHARD, 1, 60_000)).rows
    again = (DueChange("ring:y", 5),)
    result = await factless_writes.write(SHARD, claim=row, due=again)
    assert isinstance(result, Appended)
    assert ask(instances.url, "KEYS", "*:s:*") == []


async def test_lease_rows_wait_one_lease_after_an_outage(
    instances: Instances, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    acted: list[str] = []

    async def act(_shard: Shard, row: DueRow, _now_ms: int) -> None:
        acted.append(row.member)

    one = await instances.start("in_one", lease_ms=1_000, runs=False)
    due = one.duties.due
    due.handlers = {"own": act, "ring": act}
    claim = one.store.due.claim
    failures = iter([StoreUnavailable("test", "no")])

    async def claim_once_down(
        shard: Shard, limit: int, visibility_ms: int, hold: str = ""
    ) -> object:
        if shard == SHARD and (failure := next(failures, None)):
            await write_due(store, SHARD, "own:in_dead", "ring:x")
            raise failure
        return await claim(shard, limit, visibility_ms, hold)

    monkeypatch.setattr(due, "due", type("Down", (), {"claim": staticmethod(claim_once_down)})())
    began = asyncio.get_running_loop().time()
    async with one.duties:
        await wait_until(lambda: len(acted) == 2, 10, "both were acted on")
    assert acted == ["ring:x", "own:in_dead"]
    assert asyncio.get_running_loop().time() - began >= 1.0
