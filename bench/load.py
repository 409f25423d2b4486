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
from collections.abc import Iterator
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from typing import Final, Literal, assert_never

import aiohttp
import orjson
import uvloop

ANSWER_S: Final = 30.0
STREAM_LINE_BYTES: Final = 1 << 20
CHUNK: Final = b'"artifactUpdate"'
_numbers: Final = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Order:
    """``unary`` sends from ``callers`` for ``seconds``; ``stream`` opens one stream per caller and reads it out.

    ``hold`` subscribes every caller to one of the tasks that ``text`` names, and keeps the streams open until the next
    order; ``release`` is one that does nothing else. Each answer, each stream as a whole, or the first line of a held
    one has to contain ``expected``.
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
    error: str | None = None


class Failed(Exception):
    """An answer was not what was expected."""


async def carry_out(order: Order) -> Outcome:
    """One order that ends by itself, over connections of its own.

    Raises:
        ExceptionGroup: of Failed, ClientError or TimeoutError, from the callers that met it.
    """
    timeout = aiohttp.ClientTimeout(total=ANSWER_S)
    connector = aiohttp.TCPConnector(limit=order.callers)
    headers = {"Content-Type": "application/json", "A2A-Version": "1.0", **order.headers}
    async with aiohttp.ClientSession(
        connector=connector, timeout=timeout, headers=headers, read_bufsize=STREAM_LINE_BYTES
    ) as http:
        return await (_send(http, order) if order.kind == "unary" else _follow(http, order))


async def _send(http: aiohttp.ClientSession, order: Order) -> Outcome:
    bodies = _make_bodies("SendMessage", order.text)
    expected = order.expected.encode()
    took: list[float] = []
    started = time.perf_counter()
    deadline = started + order.seconds

    async def call() -> None:
        while (began := time.perf_counter()) < deadline:
            async with http.post(order.url, data=next(bodies)) as response:
                answer = await response.read()
            if response.status != 200 or expected not in answer:
                raise Failed(f"{response.status}: {answer[:300].decode(errors='replace')}")
            took.append(time.perf_counter() - began)

    async with asyncio.TaskGroup() as group:
        for _ in range(order.callers):
            group.create_task(call())
    took.sort()
    return Outcome(len(took), time.perf_counter() - started, 1000 * took[len(took) // 2])


async def _follow(http: aiohttp.ClientSession, order: Order) -> Outcome:
    bodies = _make_bodies("SendStreamingMessage", order.text)
    expected = order.expected.encode()
    count, first, last = 0, float("inf"), 0.0

    async def read() -> None:
        nonlocal count, first, last
        complete = False
        async with http.post(order.url, data=next(bodies)) as response:
            async for line in response.content:
                if CHUNK in line:
                    last = time.perf_counter()
                    first = min(first, last)
                    count += 1
                complete = complete or expected in line
        if response.status != 200 or not complete:
            raise Failed(f"{response.status}: a stream ended without {order.expected}")

    async with asyncio.TaskGroup() as group:
        for _ in range(order.callers):
            group.create_task(read())
    return Outcome(count, last - first)


def _make_bodies(method: str, text: str) -> Iterator[bytes]:
    """Requests that differ in nothing but their ids: encoded once, to keep the load light."""
    mark = "00000000"
    message = {
        "messageId": f"bench-{mark}",
        "role": "ROLE_USER",
        "parts": [{"text": text}],
    }
    request = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {"message": message}}
    before, after = orjson.dumps(request).split(mark.encode())
    for number in _numbers:
        yield b"%s%08d%s" % (before, number, after)


async def hold(order: Order, stack: AsyncExitStack) -> Outcome:
    """Opens streams that stay open until ``stack`` is closed.

    Raises:
        Failed, ClientError: a stream does not begin as expected.
    """
    headers = {"Content-Type": "application/json", "A2A-Version": "1.0", **order.headers}
    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=ANSWER_S)
    http = await stack.enter_async_context(
        aiohttp.ClientSession(connector=connector, timeout=timeout, headers=headers)
    )
    tasks = itertools.cycle(order.text.split())
    for _ in range(order.callers):
        params = {"id": next(tasks)}
        request = {"jsonrpc": "2.0", "id": 1, "method": "SubscribeToTask", "params": params}
        response = await stack.enter_async_context(http.post(order.url, data=orjson.dumps(request)))
        line = b""
        while order.expected.encode() not in line:
            line = await response.content.readline()
            if not line:
                raise Failed(f"{response.status}: a stream ended before {order.expected}")
    return Outcome(order.callers)


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
    except* (Failed, aiohttp.ClientError, TimeoutError) as group:
        first = group.exceptions[0]
        error = f"{type(first).__name__}: {first}"
    return Outcome(error=error)


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve())
