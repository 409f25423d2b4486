"""Callers: each has its own connection and checks every answer.

A caller uses a single future, so the cost of an answer is its parsing and the write of the next request.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus

from bench.http_connection import HttpConnection
from bench.steps import SHOWN, CallerProgress, PreparedRequest


class UnexpectedAnswer(Exception):
    """An answer was missing or not as expected."""


class _Requester(HttpConnection):
    """An outbound connection; ``ended`` is done when it has sent all requests, or after its first wrong answer."""

    def __init__(self) -> None:
        super().__init__(asks=True)
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def on_closed(self, error: Exception | None) -> None:
        self._fail(f"the connection ended before its answer ({error or 'closed'})")

    def _finish(self) -> None:
        if not self.ended.done():
            self.ended.set_result(None)

    def _fail(self, why: str) -> None:
        if not self.ended.done():
            self.ended.set_exception(UnexpectedAnswer(why))


@dataclass(frozen=True, slots=True)
class RequestSchedule:
    """State shared by callers: passes through the requests, each with the next key.

    No pass begins after the deadline. An answer after more than ``within_s`` counts as wrong. ``took`` contains the
    answer times in seconds.
    """

    requests: Sequence[PreparedRequest]
    keys: Iterator[str]
    deadline: float
    within_s: float
    took: list[float] = field(default_factory=list[float])

    def are_over(self, progress: CallerProgress) -> bool:
        """Whether a caller with this progress is done."""
        return progress.at == 0 and time.perf_counter() >= self.deadline


class LoadCaller(_Requester):
    """Sends a request after each answer, until the schedule is over or the other side closes the connection."""

    def __init__(self, turns: RequestSchedule, progress: CallerProgress) -> None:
        super().__init__()
        self._turns = turns
        self._progress = progress
        self._began = 0.0

    def ask(self) -> None:
        """Sends the next request."""
        self._began = time.perf_counter()
        turns, progress = self._turns, self._progress
        self.write(turns.requests[progress.at].write(next(turns.keys), progress))

    def take(self, body: bytes) -> None:
        turns, progress = self._turns, self._progress
        took = time.perf_counter() - self._began
        request = turns.requests[progress.at]
        if fault := request.find_fault(self.status, body):
            self._fail(fault)
            return
        if took > turns.within_s:
            self._fail(f"the answer took more than {turns.within_s:g} s")
            return
        turns.took.append(took)
        if request.step.teaches:
            progress.learn(body)
        progress.at = (progress.at + 1) % len(turns.requests)
        if self.stays_open and not turns.are_over(progress):
            self.ask()
        else:
            self._finish()


class StreamSubscriber(_Requester):
    """Is done once its stream contains the expected bytes; leaves the stream open."""

    def __init__(self, expected: str) -> None:
        super().__init__()
        self._expected = expected.encode()

    def on_body(self, body: bytes) -> None:
        super().on_body(body)
        if self.status == HTTPStatus.OK and self._expected in self._body:
            self._finish()

    def take(self, body: bytes) -> None:
        end = body[-SHOWN:].decode(errors="replace")
        self._fail(f"{self.status}: a stream ended without {self._expected.decode()}, with {end!r}")
