"""A webhook receiver on a loopback socket: it keeps every request, and its answers are configurable."""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from dataclasses import dataclass, field
from typing import Any, cast

import orjson
from aiohttp import web
from multidict import CIMultiDict

from tests.support.loopback_server import LoopbackServer
from tests.support.waiting import wait_until

WITHIN_S = 10.0


@dataclass(frozen=True, slots=True)
class ReceivedRequest:
    """One request, and the status of its answer."""

    path: str
    headers: CIMultiDict[str]
    raw: bytes
    status: int

    @property
    def body(self) -> dict[str, Any]:
        """The body as JSON."""
        return cast("dict[str, Any]", orjson.loads(self.raw))

    @property
    def event_id(self) -> str:
        """The id by which receivers detect repeats."""
        return self.headers["X-Passerelle-Delivery"].rpartition("/")[2]

    @property
    def taken(self) -> bool:
        """Whether the receiver confirmed it."""
        return 200 <= self.status < 300


@dataclass
class WebhookReceiver(LoopbackServer):
    """A receiver for any path. Answers are used per path: statuses in order, then 200."""

    notices: list[ReceivedRequest] = field(default_factory=list[ReceivedRequest])
    headers: dict[str, str] = field(default_factory=dict[str, str])
    """Headers of unsuccessful answers."""
    held: set[str] = field(default_factory=set[str])
    """Paths whose requests wait until they are released."""
    said: dict[str, deque[str]] = field(
        default_factory=lambda: defaultdict[str, "deque[str]"](deque)
    )
    """Per path, the bodies of the next answers; empty after that."""
    waiting: int = 0
    url: str = ""
    _answers: dict[str, deque[int]] = field(
        default_factory=lambda: defaultdict[str, "deque[int]"](deque)
    )
    _released: asyncio.Event = field(default_factory=asyncio.Event)

    def list_routes(self) -> list[web.RouteDef]:
        """The routes."""
        return [web.post("/{tail:.*}", self._answer)]

    async def __aexit__(self, *exc_info: object) -> None:
        self.release()
        await super().__aexit__(*exc_info)

    def answer(self, path: str, *statuses: int) -> None:
        """Sets the answers to the next requests for a path."""
        self._answers[path].extend(statuses)

    def release(self) -> None:
        """Releases every waiting request."""
        self.held.clear()
        self._released.set()

    def at(self, path: str) -> list[ReceivedRequest]:
        """The requests to a path, in order."""
        return [notice for notice in self.notices if notice.path == path]

    def taken(self, path: str) -> list[ReceivedRequest]:
        """The requests to a path that were confirmed."""
        return [notice for notice in self.at(path) if notice.taken]

    async def until(self, path: str, count: int, description: str = "") -> list[ReceivedRequest]:
        """Waits until a path has confirmed ``count`` requests."""
        await wait_until(
            lambda: len(self.taken(path)) >= count,
            WITHIN_S,
            description or f"{path} has {count} notices",
        )
        return self.taken(path)

    async def _answer(self, request: web.Request) -> web.Response:
        raw = await request.read()
        if request.path in self.held:
            self.waiting += 1
            await self._released.wait()
            self.waiting -= 1
        answers = self._answers[request.path]
        status = answers.popleft() if answers else 200
        self.notices.append(
            ReceivedRequest(request.path, CIMultiDict(request.headers), raw, status)
        )
        said = self.said[request.path]
        text = said.popleft() if said else ""
        headers = self.headers if status >= 300 else {}
        return web.Response(status=status, headers=headers, text=text)
