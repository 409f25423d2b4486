"""Appends per second with and without the batcher, and several events per append against one each.

"Without" is measured twice. A connection per caller: every caller sends its own calls, with the same encoding, script
and reply, so only batching differs. Plain redis-py, the client that one would use without a batcher: its own encoding
and pool, one call at a time per connection.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Final, cast

import hiredis
from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.connection import UnixDomainSocketConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from bench.engines import AppendCost, StoreBench, accept_result, drive, open_bench
from bench.rows import MeasurementError, Row, Spread
from bench.workload import BenchTask, make_subjects
from passerelle.core.batch import Batch
from passerelle.store.append import pack_append, read_append
from passerelle.store.connection import (
    RespValue,
    RespWire,
    connect,
    make_connection,
    read_reply,
)

CALLERS: Final = (1, 8, 64)
DETAILED: Final = 64
TOGETHER: Final = 8
COMMITTERS: Final = 16
WARM_S: Final = 0.2

AppendCall = Callable[[int], Awaitable[None]]
SendCall = Callable[[bytes], Awaitable[object]]


@dataclass(frozen=True, slots=True)
class AppendVariants:
    """The same appends in three variants, one round after the other."""

    batched: AppendCost
    alone: AppendCost
    plain: AppendCost


async def measure_appends(rounds: int, seconds: float) -> AsyncGenerator[Row]:
    """Rows of the section."""
    async with open_bench() as bench:
        for callers in CALLERS:
            found = await _compare_variants(bench, callers, rounds, seconds)
            for row in _rows_of_variants(callers, found):
                yield row
        for row in _rows_of_group_commit(await _compare_group_commit(bench, rounds, seconds)):
            yield row


async def _compare_variants(
    bench: StoreBench, callers: int, rounds: int, seconds: float
) -> list[AppendVariants]:
    subjects = make_subjects(callers)

    async def append(caller: int) -> None:
        subject = subjects[caller]
        await bench.append(subject, subject.update(bench.epoch(subject)))

    async with AsyncExitStack() as stack:
        wires = await stack.enter_async_context(_open_wires(bench, callers))
        plain = await stack.enter_async_context(_open_plain(bench, callers))

        async def append_alone(caller: int) -> None:
            await _append_by(bench, subjects[caller], lambda packed: _ask(wires[caller], packed))

        async def append_plain(caller: int) -> None:
            await _append_by(bench, subjects[caller], plain)

        ways = (append, append_alone, append_plain)
        for way in ways:
            await drive(bench, callers, WARM_S, way)
        return [
            AppendVariants(*[await drive(bench, callers, seconds, way) for way in ways])
            for _ in range(rounds)
        ]


async def _append_by(bench: StoreBench, subject: BenchTask, send: SendCall) -> None:
    batch: Batch = subject.update(bench.epoch(subject))
    packed = pack_append(batch)
    reply = cast("RespValue", await send(packed.call))
    accept_result(subject, read_append(reply, packed))


async def _ask(wire: RespWire, packed: bytes) -> RespValue:
    await wire.send_packed_command([packed], check_health=False)
    reply = await read_reply(wire)
    if isinstance(reply, RedisError):
        raise MeasurementError(f"an append was answered with {reply}")
    return reply


@asynccontextmanager
async def _open_wires(bench: StoreBench, count: int) -> AsyncGenerator[list[RespWire]]:
    wires = [make_connection(bench.endpoint) for _ in range(count)]
    try:
        for wire in wires:
            await connect(wire)
        yield wires
    finally:
        for wire in wires:
            await wire.disconnect()


@asynccontextmanager
async def _open_plain(bench: StoreBench, callers: int) -> AsyncGenerator[SendCall]:
    """Splits packed calls so that redis-py can encode them: about 5 µs that a direct use would not pay."""
    pool = BlockingConnectionPool(
        max_connections=callers,
        connection_class=UnixDomainSocketConnection,
        path=bench.endpoint.name,
        retry=Retry(NoBackoff(), 0),
    )
    client = Redis(connection_pool=pool)
    execute = cast(
        "Callable[..., Awaitable[object]]",
        client.execute_command,  # pyright: ignore[reportUnknownMemberType] - its replies have no type
    )

    async def send(packed: bytes) -> object:
        reader = hiredis.Reader()
        reader.feed(packed)
        return await execute(*cast("list[bytes]", reader.gets()))

    try:
        yield send
    finally:
        await client.aclose()
        await pool.aclose()


async def _compare_group_commit(
    bench: StoreBench, rounds: int, seconds: float
) -> list[tuple[AppendCost, AppendCost]]:
    subjects = make_subjects(COMMITTERS)

    def append(events: int) -> AppendCall:
        async def work(caller: int) -> None:
            subject = subjects[caller]
            await bench.append(subject, subject.update(bench.epoch(subject), events))

        return work

    return [
        (
            await drive(bench, COMMITTERS, seconds, append(TOGETHER)),
            await drive(bench, COMMITTERS, seconds, append(1)),
        )
        for _ in range(rounds)
    ]


def _rows_of_variants(callers: int, found: Sequence[AppendVariants]) -> list[Row]:
    def row(what: str, value: Callable[[AppendVariants], float], unit: str) -> Row:
        name = f"append, {callers} caller{'s' if callers > 1 else ''}"
        return Row(f"{name}: {what}", Spread.of([value(one) for one in found]), unit)

    rows = [
        row("batcher ÷ plain redis-py", lambda one: one.batched.rate / one.plain.rate, "ratio"),
        row("batcher ÷ a connection each", lambda one: one.batched.rate / one.alone.rate, "ratio"),
        row("with the batcher", lambda one: one.batched.rate, "1/s"),
        row("plain redis-py", lambda one: one.plain.rate, "1/s"),
        row("a connection each", lambda one: one.alone.rate, "1/s"),
    ]
    if callers != DETAILED:
        return rows
    return [
        *rows,
        row("client CPU, batcher", lambda one: one.batched.client_us, "µs"),
        row("client CPU, plain redis-py", lambda one: one.plain.client_us, "µs"),
        row("client CPU, a connection each", lambda one: one.alone.client_us, "µs"),
        row("engine CPU, batcher", lambda one: one.batched.engine_us, "µs"),
        row("engine CPU, plain redis-py", lambda one: one.plain.engine_us, "µs"),
        row("engine CPU, a connection each", lambda one: one.alone.engine_us, "µs"),
    ]


def _rows_of_group_commit(pairs: Sequence[tuple[AppendCost, AppendCost]]) -> list[Row]:
    def row(what: str, value: Callable[[AppendCost, AppendCost], float], unit: str) -> Row:
        return Row(what, Spread.of([value(*pair) for pair in pairs]), unit)

    name = f"{TOGETHER} events in one append"
    return [
        row(f"{name} ÷ one: events/s", lambda all_, one: TOGETHER * all_.rate / one.rate, "ratio"),
        row(
            f"{name} ÷ one: engine CPU per event",
            lambda all_, one: all_.engine_us / TOGETHER / one.engine_us,
            "ratio",
        ),
        row(f"{name}: engine CPU per event", lambda all_, _: all_.engine_us / TOGETHER, "µs"),
        row("one event in one append: engine CPU per event", lambda _, one: one.engine_us, "µs"),
    ]
