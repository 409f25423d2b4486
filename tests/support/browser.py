"""The JavaScript client in a real browser: a page that a test controls, like the scripted client in Node."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Final

from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.datastructures import Headers
from websockets.http11 import Request, Response

from tests.support.javascript import ScriptedClient
from tests.support.waiting import wait_until

ROOT: Final = Path(__file__).resolve().parents[2]
PAGE: Final = "/clients/js/test/browser/page.html"
_NAMES: Final = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_SERVED: Final = ("/clients/js/src/", "/clients/js/test/", "/tests/vectors/")
_TYPES: Final = {".html": "text/html", ".js": "text/javascript", ".json": "application/json"}
FLAGS: Final = (
    "--headless=new",
    "--no-sandbox",  # the browser runs as the user of the tests, and loads only local pages
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-extensions",
    "--disable-background-networking",
    "--disable-component-update",
    "--no-first-run",
    "--no-default-browser-check",
)
_WITHIN_S: Final = 40.0


def find_browser() -> str:
    """The system's browser. A missing browser is an error: a skipped test would prove nothing."""
    found = next((path for name in _NAMES if (path := shutil.which(name))), None)
    assert found is not None, "no Chromium: apt install chromium"
    return found


@dataclass(slots=True)
class BrowserPages:
    """A web server for the pages, and the pages that have connected to it."""

    folder: Path
    _server: Server
    _waiting: list[ScriptedClient]

    @property
    def origin(self) -> str:
        """The origin of the pages, which a gateway has to allow."""
        port: int = self._server.sockets[0].getsockname()[1]
        return f"http://127.0.0.1:{port}"

    @contextlib.asynccontextmanager
    async def open_page(self, query: str) -> AsyncGenerator[ScriptedClient]:
        """Opens a page in its own browser, which is killed at the end of the block."""
        scripted = ScriptedClient()
        self._waiting.append(scripted)
        process = await asyncio.create_subprocess_exec(
            find_browser(),
            *FLAGS,
            f"--user-data-dir={self.folder / 'profile'}",
            f"{self.origin}{PAGE}?{query}",
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            await self._await_entrance(scripted)
            yield scripted
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()

    async def reload(self, scripted: ScriptedClient) -> ScriptedClient:
        """Reloads the page: only what it has stored remains."""
        fresh = ScriptedClient()
        self._waiting.append(fresh)
        await scripted.do("reload")
        await self._await_entrance(fresh)
        return fresh

    async def _await_entrance(self, scripted: ScriptedClient) -> None:
        await wait_until(lambda: scripted not in self._waiting, _WITHIN_S, "the page dials in")


@contextlib.asynccontextmanager
async def open_browser_pages(folder: Path) -> AsyncGenerator[BrowserPages]:
    """Opens pages one after the other."""
    waiting: list[ScriptedClient] = []

    async def meet(control: ServerConnection) -> None:
        await waiting.pop().listen(control)

    async with serve(meet, "127.0.0.1", 0, process_request=_serve_file) as server:
        yield BrowserPages(folder, server, waiting)


def _serve_file(_: ServerConnection, request: Request) -> Response | None:
    path = request.path.partition("?")[0]
    if path == "/control":
        return None
    file = ROOT / path.lstrip("/")
    if not path.startswith(_SERVED) or ".." in path or not file.is_file():
        return Response(HTTPStatus.NOT_FOUND, "Not Found", Headers())
    headers = Headers({"Content-Type": _TYPES[file.suffix], "Cache-Control": "no-store"})
    body = file.read_bytes()
    headers["Content-Length"] = str(len(body))
    return Response(HTTPStatus.OK, "OK", headers, body)
