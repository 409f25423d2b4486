"""An HTTP hook with a configurable answer that records its requests."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from aiohttp import web

from tests.support.loopback_server import LoopbackServer

if TYPE_CHECKING:
    from passerelle.core.wire.json import JsonObject


@dataclass
class HookServer(LoopbackServer):
    """With ``answer`` None it fails with status 500."""

    answer: JsonObject | None = None
    asked: list[JsonObject] = field(default_factory=list["JsonObject"])
    PATH: ClassVar = "/hook"

    def list_routes(self) -> list[web.RouteDef]:
        """The routes."""
        return [web.post("/hook", self._take)]

    async def _take(self, request: web.Request) -> web.Response:
        self.asked.append(await request.json())
        if self.answer is None:
            return web.Response(status=500)
        return web.json_response(self.answer)
