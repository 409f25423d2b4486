"""Files on a loopback socket, as an agent publishes them under a URL."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from aiohttp import web

from tests.support.loopback_server import LoopbackServer


@dataclass(frozen=True, slots=True)
class File:
    """The response to a path."""

    content: bytes = b""
    media_type: str = "application/octet-stream"
    status: int = 200
    location: str | None = None


@dataclass
class FileServer(LoopbackServer):
    """Serves ``files`` by path; other paths are 404. ``asked`` counts requests by path."""

    files: dict[str, File] = field(default_factory=dict[str, File])
    asked: dict[str, int] = field(default_factory=lambda: defaultdict[str, int](int))

    def list_routes(self) -> list[web.RouteDef]:
        """The routes."""
        return [web.get("/{tail:.*}", self._answer)]

    async def _answer(self, request: web.Request) -> web.Response:
        self.asked[request.path] += 1
        file = self.files.get(request.path, File(status=404))
        headers = {"Location": file.location} if file.location else {}
        return web.Response(
            body=file.content, content_type=file.media_type, status=file.status, headers=headers
        )
