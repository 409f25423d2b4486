"""A web server of a test on a free loopback port, for as long as a block lasts."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, ClassVar, Final, Self, cast

from aiohttp import web

if TYPE_CHECKING:
    from collections.abc import Iterable

_TURNS: Final = 5


async def end_runner(runner: web.AppRunner) -> None:
    """Stops listening and ends every connection, those too that were accepted just now.

    The protocol of an accepted connection hears of it some turns of the loop later; aiohttp ends what it knows.
    """
    for site in list(runner.sites):
        await site.stop()
    for _ in range(_TURNS):
        await asyncio.sleep(0)
    await runner.cleanup()


class LoopbackServer:
    """What is served are the routes of the subclass; ``url`` is where, with ``PATH`` at its end."""

    PATH: ClassVar = ""
    url: str = ""
    _runner: web.AppRunner | None = None

    def list_routes(self) -> Iterable[web.RouteDef]:
        """What is served."""
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
