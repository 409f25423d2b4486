"""The load generator: a separate process, so that its CPU time is measured separately.

Reads one order per line from standard input, answers each with one line, and exits at the end of its input. An order
is bounded by its seconds. Nothing is retried, and an unexpected answer ends the order with an error: a failed run
must not count as a fast one.
"""

from __future__ import annotations

import asyncio
import itertools
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, Literal, Self, TypeAlias, TypeVar, assert_never, cast

import orjson
import uvloop

from bench.callers import LoadCaller, RequestSchedule, StreamSubscriber, UnexpectedAnswer
from bench.http_connection import HttpConnection
from bench.steps import CallerProgress, PreparedRequest, RequestStep, split_url

ANSWER_S: Final = 30.0
_Members: TypeAlias = "dict[str, Any]"
_Opened = TypeVar("_Opened", bound=HttpConnection)


@dataclass(frozen=True, slots=True)
class LoadOrder:
    """``send`` makes every caller execute ``steps`` once, and repeat them for ``seconds``.

    Each request uses the next of ``keys``, if any. ``known`` are the contexts and tasks that callers start with.
    ``hold`` opens a stream for each caller with the first step, and keeps it until the next order; ``release`` only
    closes streams.
    """

    kind: Literal["send", "hold", "release"]
    url: str = ""
    steps: Sequence[RequestStep] = ()
    callers: int = 1
    seconds: float = 0.0
    keys: Sequence[str] = ()
    known: Sequence[tuple[str, str]] = ()

    @classmethod
    def read(cls, line: bytes) -> Self:
        """Parses an order."""
        order = cls(**orjson.loads(line))
        return replace(
            order, steps=[RequestStep(**step) for step in cast("list[_Members]", order.steps)]
        )


@dataclass(frozen=True, slots=True)
class LoadRun:
    """``count`` answers, in ``seconds`` from the first to the last; ``found`` are the ids that the callers learned."""

    count: int = 0
    seconds: float = 0.0
    median_ms: float = 0.0
    p99_ms: float = 0.0
    found: Sequence[tuple[str, str]] = ()
    error: str | None = None


async def execute(order: LoadOrder) -> LoadRun:
    """Executes one order that ends by itself, over new connections.

    Raises:
        ExceptionGroup: of UnexpectedAnswer or OSError, from the callers that met it.
        TimeoutError: the last answer is missing ``ANSWER_S`` after the order's seconds.
    """
    started = time.perf_counter()
    requests = [PreparedRequest(order.url, step) for step in order.steps]
    keys = itertools.cycle(order.keys or ("",))
    turns = RequestSchedule(requests, keys, started + order.seconds, ANSWER_S)
    callers = _make_progress(order)
    async with asyncio.timeout(order.seconds + ANSWER_S), asyncio.TaskGroup() as group:
        for progress in callers:
            group.create_task(_call(order.url, turns, progress))
    took = sorted(turns.took)
    return LoadRun(
        len(took),
        time.perf_counter() - started,
        1000 * took[len(took) // 2],
        1000 * took[len(took) * 99 // 100],
        [(progress.context, progress.task) for progress in callers],
    )


async def _call(url: str, turns: RequestSchedule, progress: CallerProgress) -> None:
    """One caller, which opens the next connection when its other side closes one."""
    while True:
        caller = await _open(url, lambda: LoadCaller(turns, progress))
        try:
            caller.ask()
            await caller.ended
        finally:
            caller.close()
        if turns.are_over(progress):
            return


async def hold(order: LoadOrder, stack: AsyncExitStack) -> LoadRun:
    """Opens streams one after the other; they stay open until ``stack`` is closed.

    Raises:
        UnexpectedAnswer, OSError, TimeoutError: a stream does not begin as expected.
    """
    [step] = order.steps
    request, keys = PreparedRequest(order.url, step), itertools.cycle(order.keys or ("",))
    for progress in _make_progress(order):
        async with asyncio.timeout(ANSWER_S):
            subscriber = await _open(order.url, lambda: StreamSubscriber(step.expected))
            stack.callback(subscriber.close)
            subscriber.write(request.write(next(keys), progress))
            await subscriber.ended
    return LoadRun(order.callers)


def _make_progress(order: LoadOrder) -> list[CallerProgress]:
    known = itertools.cycle(order.known or (("", ""),))
    return [CallerProgress(*ids) for ids in itertools.islice(known, order.callers)]


async def _open(url: str, make: Callable[[], _Opened]) -> _Opened:
    host, _, port = split_url(url)[0].rpartition(":")
    _, opened = await asyncio.get_running_loop().create_connection(make, host, int(port))
    return opened


async def _serve() -> None:
    loop = asyncio.get_running_loop()
    async with AsyncExitStack() as held:
        while line := await loop.run_in_executor(None, sys.stdin.buffer.readline):
            outcome = await _obey(LoadOrder.read(line), held)
            sys.stdout.buffer.write(orjson.dumps(asdict(outcome)) + b"\n")
            sys.stdout.buffer.flush()


async def _obey(order: LoadOrder, held: AsyncExitStack) -> LoadRun:
    await held.aclose()
    try:
        match order.kind:
            case "send":
                return await execute(order)
            case "hold":
                return await hold(order, held)
            case "release":
                return LoadRun()
            case _:
                assert_never(order.kind)
    except* (UnexpectedAnswer, OSError) as group:
        first = group.exceptions[0]
        error = f"{type(first).__name__}: {first}"
    return LoadRun(error=error)


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve())
