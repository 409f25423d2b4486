"""Files on a loopback socket, as an agent puts them somewhere and names their address."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Self, cast

from aiohttp import web


@dataclass(frozen=True, slots=True)
class File:
    """What a path answers with."""

    content: bytes = b""
    media_type: str = "application/octet-stream"
    status: int = 200
    location: str | None = None


@dataclass
class FileServer:
    """Serves ``files`` by path; everything else is not there. ``asked`` counts requests by path."""

    files: dict[str, File] = field(default_factory=dict[str, File])
    asked: dict[str, int] = field(default_factory=lambda: defaultdict[str, int](int))
    url: str = ""
    _runner: web.AppRunner | None = None

    async def __aenter__(self) -> Self:
        app = web.Application()
        app.router.add_get("/{tail:.*}", self._answer)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        port = cast("tuple[str, int]", self._runner.addresses[0])[1]
        self.url = f"http://127.0.0.1:{port}"
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        assert self._runner is not None
        await self._runner.cleanup()

    async def _answer(self, request: web.Request) -> web.Response:
        self.asked[request.path] += 1
        file = self.files.get(request.path, File(status=404))
        headers = {"Location": file.location} if file.location else {}
        return web.Response(
            body=file.content, content_type=file.media_type, status=file.status, headers=headers
        )
