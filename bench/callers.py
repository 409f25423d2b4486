"""Who asks: each over a connection of its own, checking what it is answered.

One future stands for all that a caller does, so what an answer costs is its parsing and the next request's writing.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Final

from bench.line import Line

CHUNK: Final = b'"artifactUpdate"'
SHOWN: Final = 300
"""Bytes of a wrong answer that are told."""


class Failed(Exception):
    """An answer was not what was expected, or did not come."""


class _Asking(Line):
    """A connection out; ``ended`` is done when it has nothing more to ask, or has met its first wrong answer."""

    def __init__(self, expected: bytes) -> None:
        super().__init__(asks=True)
        self._expected = expected
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def lose(self, error: Exception | None) -> None:
        self._fail(f"the connection ended before its answer ({error or 'closed'})")

    def _finish(self) -> None:
        if not self.ended.done():
            self.ended.set_result(None)

    def _fail(self, why: str) -> None:
        if not self.ended.done():
            self.ended.set_exception(Failed(why))


@dataclass(frozen=True, slots=True)
class Turns:
    """What callers share: requests, the moment after which none of them asks again, and the seconds answers took.

    An answer after more than ``within_s`` is a wrong one.
    """

    requests: Iterator[bytes]
    deadline: float
    within_s: float
    took: list[float] = field(default_factory=list[float])


class Caller(_Asking):
    """Asks, and with each answer asks again, until the deadline or until the other side keeps the line no longer."""

    def __init__(self, turns: Turns, expected: bytes) -> None:
        super().__init__(expected)
        self._turns = turns
        self._began = 0.0

    def ask(self) -> None:
        """Sends the next request."""
        self._began = time.perf_counter()
        self.write(next(self._turns.requests))

    def take(self, body: bytes) -> None:
        now = time.perf_counter()
        if self.status != HTTPStatus.OK or self._expected not in body:
            self._fail(f"{self.status}: {body[:SHOWN].decode(errors='replace')}")
            return
        if now - self._began > self._turns.within_s:
            self._fail(f"the answer took more than {self._turns.within_s:g} s")
            return
        self._turns.took.append(now - self._began)
        if now < self._turns.deadline and self.stays_open:
            self.ask()
        else:
            self._finish()


class Follower(_Asking):
    """Reads a stream to its end, and notes when each artifact chunk ``arrived``; one line has to be as expected."""

    def __init__(self, expected: bytes, arrived: list[float]) -> None:
        super().__init__(expected)
        self._arrived = arrived
        self._rest = b""
        self._is_complete = False

    def on_body(self, body: bytes) -> None:
        *lines, self._rest = (self._rest + body).split(b"\n")
        for line in lines:
            self._read(line)

    def take(self, body: bytes) -> None:  # noqa: ARG002  its lines have been read
        self._read(self._rest)
        if self._is_complete:
            self._finish()
        else:
            end = self._rest[:SHOWN].decode(errors="replace")
            self._fail(
                f"{self.status}: a stream ended without {self._expected.decode()}, with {end!r}"
            )

    def _read(self, line: bytes) -> None:
        if CHUNK in line:
            self._arrived.append(time.perf_counter())
        if self._expected in line and self.status == HTTPStatus.OK:
            self._is_complete = True


class Subscriber(Follower):
    """Has nothing more to ask once a line is as expected, and leaves its stream open."""

    def _read(self, line: bytes) -> None:
        super()._read(line)
        if self._is_complete:
            self._finish()
