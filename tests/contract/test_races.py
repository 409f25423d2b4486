"""Concurrent writers: one winner per version, one gap-free order per session."""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path

import pytest

from passerelle.core.batch import ABSENT, Appended, Batch, Conflict, IdempotencyRow, Stamp
from passerelle.core.events import EncodedEvent
from passerelle.core.ports.log import Entry
from passerelle.store import batcher
from passerelle.store.batcher import QUEUE_LIMIT
from passerelle.store.store import Store, StoreSettings
from tests.support.batches import EPOCH, TaskPlace, event, make_place, operation
from tests.support.engine import Server
from tests.support.tcp_proxy import fault_proxy
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio

WRITERS = 50
WORKERS = 8
EACH = 40


@pytest.mark.requirement("I2")
async def test_of_fifty_writers_at_one_version_one_wins(store: Store) -> None:
    at = make_place()
    first = Batch(at.session, "op_first", 0, EPOCH, entities=(at.write(),), events=(event(),))
    await store.log.append(first)
    rivals = [
        Batch(
            at.session,
            operation(),
            0,
            EPOCH,
            entities=(at.write(Stamp(1, "op_first"), (f"{number}".encode(),)),),
            events=(event(),),
        )
        for number in range(WRITERS)
    ]
    results = await asyncio.gather(*(store.log.append(rival) for rival in rivals))
    winners = [
        rival for rival, result in zip(rivals, results, strict=True) if isinstance(result, Appended)
    ]
    (winner,) = winners
    losers = [result for result in results if not isinstance(result, Appended)]
    assert losers == [Conflict(at.task, Stamp(2, winner.op))] * (WRITERS - 1)
    (task,) = await store.log.load([at.task_ref])
    assert task.snapshot == winner.entities[0].snapshot[0]
    assert [entry.event_id for entry in await store.log.read_page(at.stream, 1)] == [
        winner.events[0].event_id
    ]


@pytest.mark.requirement("ENV-4", "I3")
async def test_eight_workers_leave_one_gap_free_sequence_and_chain(
    store: Store, server: Server, tmp_path: Path
) -> None:
    at = make_place()

    async def work(through: Store, worker: int) -> list[tuple[int, str]]:
        written: list[tuple[int, str]] = []
        for number in range(EACH):
            fact = event(f"ev_{worker}_{number}")
            row = IdempotencyRow(fact.event_id, "d", b"", 60_000)
            result = await through.log.append(
                Batch(at.session, operation(), 0, EPOCH, events=(fact,), idem=row)
            )
            assert isinstance(result, Appended)
            written.append((result.last, fact.event_id))
        return written

    settings = StoreSettings(server.url, tmp_path / "blobs")
    async with await Store.open(settings) as other:
        lists = await asyncio.gather(
            *(work(store if worker % 2 else other, worker) for worker in range(WORKERS))
        )
    promised = sorted(pair for pairs in lists for pair in pairs)
    stored = await read_all(store, at)
    assert [(entry.sequence, entry.event_id) for entry in stored] == promised
    assert [entry.sequence for entry in stored] == list(range(1, WORKERS * EACH + 1))
    for pairs in lists:
        assert pairs == sorted(pairs)
    chain = hashlib.sha1(EPOCH.encode(), usedforsecurity=False).hexdigest()[:8]
    for entry in stored:
        assert entry.previous == chain
        joined = f"{chain}{entry.event_id}".encode()
        chain = hashlib.sha1(joined, usedforsecurity=False).hexdigest()[:8]
    head = await store.log.read_head(at.stream)
    assert head is not None
    assert (head.sequence, head.chain) == (WORKERS * EACH, chain)


@pytest.mark.requirement("I2")
async def test_writers_that_reload_all_get_through_and_each_counts_once(store: Store) -> None:
    at = make_place()

    async def count_up(times: int) -> None:
        done = 0
        while done < times:
            (task,) = await store.log.load([at.task_ref])
            total = int(task.snapshot or b"0") + 1
            batch = Batch(
                at.session,
                operation(),
                0,
                EPOCH,
                entities=(at.write(task.stamp, (f"{total}".encode(),)),),
                events=(event(),),
            )
            done += isinstance(await store.log.append(batch), Appended)

    await asyncio.gather(*(count_up(10) for _ in range(WORKERS)))
    (task,) = await store.log.load([at.task_ref])
    assert int(task.snapshot) == task.stamp.version == 10 * WORKERS
    assert task.stamp != ABSENT


async def test_unencodable_argument_fails_its_own_caller_only(store: Store) -> None:
    good = [make_place() for _ in range(20)]
    bad = make_place(good[0].shard)
    broken = EncodedEvent("ev_\ud800", "task.progress", b'"x":1}')

    async def write(at: TaskPlace, fact: EncodedEvent) -> object:
        return await store.log.append(
            Batch(at.session, operation(), 0, EPOCH, entities=(at.write(),), events=(fact,))
        )

    results = await asyncio.gather(
        *(write(at, event()) for at in good[:10]),
        write(bad, broken),
        *(write(at, event()) for at in good[10:]),
        return_exceptions=True,
    )
    failed = results.pop(10)
    assert isinstance(failed, UnicodeEncodeError)
    assert all(isinstance(result, Appended) and result.last == 1 for result in results)


async def read_all(store: Store, at: TaskPlace) -> list[Entry]:
    entries: list[Entry] = []
    while page := await store.log.read_page(at.stream, len(entries)):
        entries += page
    return entries


async def test_callers_beyond_the_bound_wait_and_all_are_served(
    engine_server: Server, tmp_path: Path
) -> None:
    async with (
        fault_proxy(engine_server.url.removeprefix("unix://")) as proxy,
        await Store.open(StoreSettings(proxy.url, tmp_path)) as store,
    ):
        at = make_place()
        proxy.open.clear()
        calls = [
            asyncio.create_task(store.log.append(first_of(make_place(at.shard))))
            for _ in range(QUEUE_LIMIT + 200)
        ]
        queue = store.nodes.node(at.shard).writes.waiting
        await wait_until(lambda: proxy.held > 0 and queue() > 0, 15, "calls are waiting")
        assert queue() <= QUEUE_LIMIT
        proxy.open.set()
        assert all(isinstance(result, Appended) for result in await asyncio.gather(*calls))


async def test_cancelled_callers_keep_no_place_in_the_queue(
    engine_server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batcher, "QUEUE_LIMIT", 4)
    async with (
        fault_proxy(engine_server.url.removeprefix("unix://")) as proxy,
        await Store.open(StoreSettings(proxy.url, tmp_path)) as store,
    ):
        at = make_place()
        proxy.open.clear()
        first = asyncio.create_task(store.log.append(first_of(at)))
        await wait_until(lambda: proxy.held > 0, 15, "a call is on its way")
        calls = [
            asyncio.create_task(store.log.append(first_of(make_place(at.shard)))) for _ in range(40)
        ]
        await asyncio.sleep(0)
        leave, stay = calls[10:30], [first, *calls[:10], *calls[30:]]
        for call in leave:
            call.cancel()
        gone = await asyncio.gather(*leave, return_exceptions=True)
        assert all(isinstance(one, asyncio.CancelledError) for one in gone)
        proxy.open.set()
        assert all(isinstance(result, Appended) for result in await asyncio.gather(*stay))
        assert isinstance(await store.log.append(first_of(make_place(at.shard))), Appended)


def first_of(at: TaskPlace) -> Batch:
    return Batch(at.session, operation(), 0, EPOCH, entities=(at.write(),), events=(event(),))
