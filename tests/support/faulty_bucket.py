"""A proxy in front of an S3 server that injects faults."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

import httpx
from aiohttp import web

from tests.support.loopback_server import LoopbackServer

BucketFault: TypeAlias = Literal["500", "404", "slow", "cut", "other bytes", "lost answer"]
"""``cut``: the answer ends in the middle; ``lost answer``: the request is executed, and 500 is returned."""

_HOPS: Final = frozenset(
    ("connection", "transfer-encoding", "content-length", "content-encoding", "date", "server")
)


@dataclass
class FaultyBucket(LoopbackServer):
    """Forwards to ``server``; ``fault`` replaces the answers to requests of these ``methods``.

    ``faulted`` counts faulted requests by fault, ``passed`` counts forwarded requests by method.
    """

    server: str
    fault: BucketFault | None = None
    methods: Collection[str] = ("GET", "PUT", "POST", "HEAD", "DELETE")
    faulted: Counter[str] = field(default_factory=Counter[str])
    passed: Counter[str] = field(default_factory=Counter[str])
    _http: httpx.AsyncClient = field(default_factory=lambda: httpx.AsyncClient(trust_env=False))

    def list_routes(self) -> list[web.RouteDef]:
        """The routes."""
        return [web.route("*", "/{tail:.*}", self._answer)]

    async def __aexit__(self, *exc_info: object) -> None:
        await super().__aexit__(*exc_info)
        await self._http.aclose()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        body, fault = await request.read(), self.fault
        if fault is None or request.method not in self.methods:
            self.passed[request.method] += 1
            status, headers, content = await self._pass_on(request, body)
            return await _send(request, status, headers, content)
        self.faulted[fault] += 1
        match fault:
            case "500" | "404":
                return web.Response(status=int(fault))
            case "slow":
                await asyncio.Event().wait()  # until the client, or the test, closes
                raise AssertionError
            case "lost answer":
                await self._pass_on(request, body)
                return web.Response(status=500)
            case "other bytes":
                status, headers, content = await self._pass_on(request, body)
                return await _send(request, status, headers, bytes(255 - one for one in content))
            case "cut":
                status, headers, content = await self._pass_on(request, body)
                return await _send(request, status, headers, content, len(content) // 2)

    async def _pass_on(
        self, request: web.Request, body: bytes
    ) -> tuple[int, dict[str, str], bytes]:
        headers = {name: said for name, said in request.headers.items() if name != "Host"}
        answer = await self._http.request(
            request.method, f"{self.server}{request.raw_path}", headers=headers, content=body
        )
        kept = {name: said for name, said in answer.headers.items() if name not in _HOPS}
        if request.method == "HEAD":
            kept["Content-Length"] = answer.headers.get("content-length", "0")
        return answer.status_code, kept, answer.content


async def _send(
    request: web.Request,
    status: int,
    headers: dict[str, str],
    content: bytes,
    until: int | None = None,
) -> web.StreamResponse:
    """Sends the answer, or its first bytes and then closes the connection."""
    response = web.StreamResponse(status=status, headers=headers)
    if request.method != "HEAD":
        response.content_length = len(content)
    await response.prepare(request)
    await response.write(content[:until])
    if until is not None and request.transport is not None:
        request.transport.close()
        return response
    await response.write_eof()
    return response
