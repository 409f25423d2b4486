"""A web server on a free loopback port for the duration of a block."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, ClassVar, Final, Self, cast

from aiohttp import web

if TYPE_CHECKING:
    from collections.abc import Iterable

_TURNS: Final = 5


async def end_runner(runner: web.AppRunner) -> None:
    """Stops listening and ends every connection, including those accepted just now.

    The protocol of a new connection is created some iterations of the loop later; aiohttp ends only connections that
    it knows.
    """
    for site in list(runner.sites):
        await site.stop()
    for _ in range(_TURNS):
        await asyncio.sleep(0)
    await runner.cleanup()


class LoopbackServer:
    """Serves the routes of the subclass at ``url``, which ends in ``PATH``."""

    PATH: ClassVar = ""
    url: str = ""
    _runner: web.AppRunner | None = None

    def list_routes(self) -> Iterable[web.RouteDef]:
        """The routes."""
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        app = web.Application()
        app.add_routes(self.list_routes())
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        port = cast("tuple[str, int]", self._runner.addresses[0])[1]
        self.url = f"http://127.0.0.1:{port}{self.PATH}"
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        assert self._runner is not None
        await end_runner(self._runner)
