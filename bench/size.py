"""The cost of an append when the store holds many tasks, and the bytes per task."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from bench.engines import AppendCost, StoreBench, do_all, drive, open_bench
from bench.rows import Bound, MeasurementError, Row, Spread
from bench.usage import read_used_bytes
from bench.workload import BEGAN_MS, BenchTask, make_subjects, mint
from passerelle.core.batch import Incarnation
from passerelle.core.chunks import in_chunks
from passerelle.core.ids import ALL_SHARDS, Shard
from passerelle.core.ports.leases import Lease, LeaseRequest
from passerelle.core.ports.projections import IndexRow
from passerelle.store.archive.archiver import MOST_AT_ONCE

FEW: Final = 1_000
CALLERS: Final = 16
ROUND_S: Final = 1.0
STRIDE: Final = 7_919
"""A prime that divides no number of tasks: a walk over all of them in an order that defeats caches."""
_KILOBYTE: Final = 1_000
_LEASE_MS: Final = 600_000


@dataclass(frozen=True, slots=True)
class TaskLayout:
    """Number of tasks per session, and the bound of their bytes."""

    name: str
    tasks: int
    tasks_per_session: int
    live: Bound
    archived: Bound


SHAPES: Final = (
    TaskLayout("ten tasks per session", 20_000, 10, Bound("at most", 6.5), Bound("at most", 0.256)),
    TaskLayout("one task per session", 20_000, 1, Bound("at most", 8.5), Bound("at most", 0.256)),
)


async def measure_size(many: int, rounds: int) -> AsyncGenerator[Row]:
    """Rows of the section; ``many`` tasks are compared with a thousand."""
    for row in await _compare_counts(many, rounds):
        yield row
    for shape in SHAPES:
        for row in await _weigh(shape):
            yield row


async def _compare_counts(many: int, rounds: int) -> list[Row]:
    async with open_bench() as small, open_bench() as large:
        append_small, append_large = await _fill(small, FEW), await _fill(large, many)
        await drive(small, CALLERS, 0.3, append_small)
        await drive(large, CALLERS, 0.3, append_large)
        pairs: list[tuple[AppendCost, AppendCost]] = [
            (
                await drive(small, CALLERS, ROUND_S, append_small),
                await drive(large, CALLERS, ROUND_S, append_large),
            )
            for _ in range(rounds)
        ]
    name = f"append at {many // 1000} k tasks"
    engine = [late.engine_us / early.engine_us for early, late in pairs]
    rate = [early.rate / late.rate for early, late in pairs]
    return [
        Row(f"{name} ÷ at 1 k: engine CPU", Spread.of(engine), "ratio", Bound("at most", 1.15)),
        Row(f"{name} ÷ at 1 k: time, {CALLERS} callers", Spread.of(rate), "ratio"),
        Row(f"{name}: engine CPU", Spread.of([late.engine_us for _, late in pairs]), "µs"),
        Row(
            "append at 1 k tasks: engine CPU", Spread.of([one.engine_us for one, _ in pairs]), "µs"
        ),
    ]


async def _fill(bench: StoreBench, tasks: int) -> Callable[[int], Awaitable[None]]:
    """Creates the tasks; returns a call that updates the next of them.

    Callers walk over disjoint parts, so no two write one task at once.
    """
    subjects = make_subjects(tasks)

    async def update(subject: BenchTask) -> None:
        await bench.append(subject, subject.update(bench.epoch(subject), due=True))

    await do_all(subjects, update)
    part = tasks // CALLERS
    walks = [
        itertools.cycle([subjects[caller * part + place * STRIDE % part] for place in range(part)])
        for caller in range(CALLERS)
    ]

    async def update_next(caller: int) -> None:
        await update(next(walks[caller]))

    return update_next


async def _weigh(shape: TaskLayout) -> list[Row]:
    async with open_bench() as bench:
        driver = await _take_leases(bench)
        subjects = make_subjects(shape.tasks, shape.tasks_per_session)
        empty = await read_used_bytes(bench.endpoint)
        await _begin(bench, subjects, shape, driver)
        live = await read_used_bytes(bench.endpoint)
        await _end(bench, subjects, driver)
        ended = await read_used_bytes(bench.endpoint)

    def row(what: str, used: int, bound: Bound) -> Row:
        weight = (used - empty) / shape.tasks / _KILOBYTE
        return Row(f"{shape.name}: {what}", Spread.of([weight]), "kB", bound)

    return [
        row("a live task of 8 events", live, shape.live),
        row("a task that has left for the archive", ended, shape.archived),
    ]


async def _begin(
    bench: StoreBench, subjects: list[BenchTask], shape: TaskLayout, driver: Incarnation
) -> None:
    owner = mint("pr", Shard(0))
    for number, subject in enumerate(subjects):
        first = number % shape.tasks_per_session == 0
        batch = subject.accept(bench.epoch(subject), driver, first_of_session=first)
        await bench.append(subject, batch)
        await bench.store.projections.index_now(IndexRow(owner, "echo", subject.task, BEGAN_MS))


async def _end(bench: StoreBench, subjects: list[BenchTask], driver: Incarnation) -> None:
    by_shard = defaultdict[Shard, set[str]](set)
    for subject in subjects:
        await bench.append(subject, subject.end(bench.epoch(subject), driver))
        by_shard[subject.shard].add(subject.session)
    for shard, sessions in by_shard.items():
        names = [*sessions]
        for part in in_chunks(names, MOST_AT_ONCE):
            if (await bench.store.archiver.archive(shard, part)).stay:
                raise MeasurementError(f"sessions of shard {shard.tag} did not leave")


async def _take_leases(bench: StoreBench) -> Incarnation:
    driver = Incarnation("bench", 1)
    for shard in ALL_SHARDS:
        request = LeaseRequest(shard, driver, opens=True, wants_duty=False)
        lease = await bench.store.leases.extend(request, _LEASE_MS)
        if not isinstance(lease, Lease):
            raise MeasurementError("a lease could not be had")
    return driver
