"""The load: a process of its own, so that its CPU time is nobody else's.

Reads one order per line from standard input, answers each with one line, and ends with its input. An order
is bounded by its seconds, or by the streams that it opens; nothing is retried, and an answer that is not
what was expected ends the order with an error: a broken run is not a fast one.
"""

from __future__ import annotations

import asyncio
import itertools
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from typing import Final, Literal, TypeVar, assert_never

import orjson
import uvloop

from bench.callers import Caller, Failed, Follower, Subscriber, Turns
from bench.line import Line

ANSWER_S: Final = 30.0
_MARK: Final = b"########"
"""Stands for a number of eight digits, so that all requests of an order are of one length."""
_numbers: Final = itertools.count(1)
_Opened = TypeVar("_Opened", bound=Line)


@dataclass(frozen=True, slots=True)
class Order:
    """``unary`` sends from ``callers`` for ``seconds``; ``stream`` opens one stream per caller and reads it out.

    Each caller of ``unary`` sends once at least. ``hold`` subscribes every caller to one of the tasks that ``text``
    names, and keeps the streams open until the next order; ``release`` is one that does nothing else. Each answer,
    each stream as a whole, or the first line of a held one has to contain ``expected``.
    """

    kind: Literal["unary", "stream", "hold", "release"]
    url: str
    headers: dict[str, str]
    text: str
    callers: int
    expected: str
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """``count`` answers, or artifact frames of streams, in ``seconds`` from the first to the last."""

    count: int = 0
    seconds: float = 0.0
    median_ms: float = 0.0
    p99_ms: float = 0.0
    error: str | None = None


async def carry_out(order: Order) -> Outcome:
    """One order that ends by itself, over connections of its own.

    Raises:
        ExceptionGroup: of Failed or OSError, from the callers that met it.
        TimeoutError: the last answer is missing ``ANSWER_S`` after the order's seconds.
    """
    async with asyncio.timeout(order.seconds + ANSWER_S):
        return await (_send(order) if order.kind == "unary" else _follow(order))


async def _send(order: Order) -> Outcome:
    expected = order.expected.encode()
    started = time.perf_counter()
    turns = Turns(_make_requests(order, "SendMessage"), started + order.seconds, ANSWER_S)

    async def call() -> None:
        while True:
            caller = await _open(order, lambda: Caller(turns, expected))
            try:
                caller.ask()
                await caller.ended
            finally:
                caller.close()
            if time.perf_counter() >= turns.deadline:
                return

    async with asyncio.TaskGroup() as group:
        for _ in range(order.callers):
            group.create_task(call())
    took = sorted(turns.took)
    return Outcome(
        len(took),
        time.perf_counter() - started,
        1000 * took[len(took) // 2],
        1000 * took[len(took) * 99 // 100],
    )


async def _follow(order: Order) -> Outcome:
    requests = _make_requests(order, "SendStreamingMessage")
    expected = order.expected.encode()
    arrived: list[float] = []

    async def follow() -> None:
        follower = await _open(order, lambda: Follower(expected, arrived))
        try:
            follower.write(next(requests))
            await follower.ended
        finally:
            follower.close()

    async with asyncio.TaskGroup() as group:
        for _ in range(order.callers):
            group.create_task(follow())
    return Outcome(len(arrived), arrived[-1] - arrived[0] if arrived else 0.0)


async def hold(order: Order, stack: AsyncExitStack) -> Outcome:
    """Opens streams, one after the other, that stay open until ``stack`` is closed.

    Raises:
        Failed, OSError, TimeoutError: a stream does not begin as expected.
    """
    expected = order.expected.encode()
    tasks = itertools.cycle(order.text.split())
    for _ in range(order.callers):
        request = {
            "jsonrpc": "2.0",
            "id": 1,
            "method": "SubscribeToTask",
            "params": {"id": next(tasks)},
        }
        async with asyncio.timeout(ANSWER_S):
            subscriber = await _open(order, lambda: Subscriber(expected, []))
            stack.callback(subscriber.close)
            subscriber.write(_write(order, orjson.dumps(request)))
            await subscriber.ended
    return Outcome(order.callers)


async def _open(order: Order, make: Callable[[], _Opened]) -> _Opened:
    host, _, port = _split(order.url)[0].rpartition(":")
    _, opened = await asyncio.get_running_loop().create_connection(make, host, int(port))
    return opened


def _make_requests(order: Order, method: str) -> Iterator[bytes]:
    """Requests that differ in nothing but their ids: written once, to keep the load light."""
    message = {
        "messageId": f"bench-{_MARK.decode()}",
        "role": "ROLE_USER",
        "parts": [{"text": order.text}],
    }
    request = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {"message": message}}
    before, after = _write(order, orjson.dumps(request)).split(_MARK)
    for number in _numbers:
        yield b"%b%08d%b" % (before, number, after)


def _write(order: Order, body: bytes) -> bytes:
    """A whole request, with no header that its answer does not depend on."""
    host, target = _split(order.url)
    headers = {
        "Host": host,
        "Content-Type": "application/json",
        "A2A-Version": "1.0",
        "Content-Length": str(len(body)),
        **order.headers,
    }
    lines = [f"POST {target} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def _split(url: str) -> tuple[str, str]:
    """What names host and port, and the target behind it."""
    host, _, target = url.removeprefix("http://").partition("/")
    return host, f"/{target}"


async def _serve() -> None:
    loop = asyncio.get_running_loop()
    async with AsyncExitStack() as held:
        while line := await loop.run_in_executor(None, sys.stdin.buffer.readline):
            outcome = await _obey(Order(**orjson.loads(line)), held)
            sys.stdout.buffer.write(orjson.dumps(asdict(outcome)) + b"\n")
            sys.stdout.buffer.flush()


async def _obey(order: Order, held: AsyncExitStack) -> Outcome:
    await held.aclose()
    try:
        match order.kind:
            case "unary" | "stream":
                return await carry_out(order)
            case "hold":
                return await hold(order, held)
            case "release":
                return Outcome()
            case _:
                assert_never(order.kind)
    except* (Failed, OSError) as group:
        first = group.exceptions[0]
        error = f"{type(first).__name__}: {first}"
    return Outcome(error=error)


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve())
