"""An HTTP hook that answers what a test says, and keeps what it was asked."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

from aiohttp import web

if TYPE_CHECKING:
    from passerelle.core.json import JsonObject


@dataclass
class HookServer:
    """``answer`` None is a fault of its own (500)."""

    answer: JsonObject | None = None
    asked: list[JsonObject] = field(default_factory=list["JsonObject"])
    url: str = ""
    _runner: web.AppRunner | None = None

    async def __aenter__(self) -> Self:
        app = web.Application()
        app.router.add_post("/hook", self._take)
        self._runner = web.AppRunner(app)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}/hook"
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def _take(self, request: web.Request) -> web.Response:
        self.asked.append(await request.json())
        if self.answer is None:
            return web.Response(status=500)
        return web.json_response(self.answer)
