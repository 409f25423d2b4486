"""The page of the tutorial in a browser: it shows what an agent asks, and its button decides."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
import sys
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx
import orjson
import pytest
from websockets.asyncio.client import ClientConnection, connect

from passerelle.client.api import ApiClient
from passerelle.demo.processes import run_peers
from tests.e2e.test_guide import read_blocks
from tests.support.browser import FLAGS, ROOT, find_browser
from tests.support.ports import find_free_port
from tests.support.processes import run_gateway
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(180)]
PAGE: Final = ROOT / "docs" / "tutorials" / "browser-page.md"


@dataclass(slots=True)
class Tab:
    """A page in a browser, by the protocol of its developer tools."""

    link: ClientConnection
    numbers: itertools.count[int]

    async def evaluate(self, script: str) -> Any:  # noqa: ANN401 - JSON, as a test reads it
        """What a script comes to."""
        number = next(self.numbers)
        params = {"expression": script, "returnByValue": True}
        call = {"id": number, "method": "Runtime.evaluate", "params": params}
        await self.link.send(orjson.dumps(call).decode())
        async with asyncio.timeout(20):
            while True:
                answer = orjson.loads(await self.link.recv())
                if answer.get("id") == number:
                    return answer["result"]["result"].get("value")


@contextlib.asynccontextmanager
async def open_tab(url: str, folder: Path) -> AsyncGenerator[Tab]:
    """A browser with one page, which is killed at the end."""
    port = find_free_port()
    process = await asyncio.create_subprocess_exec(
        find_browser(),
        *FLAGS,
        f"--user-data-dir={folder / 'profile'}",
        f"--remote-debugging-port={port}",
        url,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
        start_new_session=True,
    )

    async def find_page() -> str | None:
        try:
            async with httpx.AsyncClient() as http:
                pages = (await http.get(f"http://127.0.0.1:{port}/json")).json()
        except httpx.TransportError:
            return None
        return next((one["webSocketDebuggerUrl"] for one in pages if one["url"] == url), None)

    try:
        address = await wait_until(find_page, 40, "the browser has the page")
        assert address is not None
        async with connect(address) as link:
            yield Tab(link, itertools.count(1))
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


@contextlib.asynccontextmanager
async def serve_page(folder: Path, gateway_url: str, token: str, port: int) -> AsyncGenerator[str]:
    """The files of the tutorial, served by its own program; addresses are those of this run."""
    for name, language in (("site.py", "python"), ("page.html", "html")):
        (text,) = read_blocks(PAGE, language)
        for shown, here in (
            ("http://127.0.0.1:8080", gateway_url),
            ("ws://127.0.0.1:8080", gateway_url.replace("http", "ws", 1)),
            ("127.0.0.1:8000", f"127.0.0.1:{port}"),
            ('("127.0.0.1", 8000)', f'("127.0.0.1", {port})'),
        ):
            text = text.replace(shown, here)
        (folder / name).write_text(text, "utf-8")
    (folder / "clients").symlink_to(ROOT / "clients")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "site.py"),
        cwd=folder,
        env={**os.environ, "PASSERELLE_TOKEN": token},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    assert process.stdout is not None
    try:
        assert (await asyncio.wait_for(process.stdout.readline(), 20)).startswith(b"serves ")
        yield f"http://127.0.0.1:{port}/page.html"
    finally:
        process.kill()
        await process.wait()


async def test_page_shows_what_an_agent_asks_and_its_button_decides(tmp_path: Path) -> None:
    port = find_free_port()
    origins = {"origins": [f"http://127.0.0.1:{port}"]}
    async with (
        run_peers(("payments",), tmp_path) as peers,
        run_gateway(tmp_path, {"payments": peers["payments"].url}, channels=origins) as gateway,
        serve_page(tmp_path, gateway.url, gateway.token, port) as url,
        ApiClient(gateway.url, token=gateway.token) as client,
        open_tab(url, tmp_path) as tab,
    ):

        async def is_live() -> bool:
            return bool(
                await tab.evaluate("document.querySelector('#state').textContent == 'live'")
            )

        await wait_until(is_live, 30, "the page follows the inbox")
        turn = await client.send("payments", "40 EUR to the baker")

        async def is_shown() -> bool:
            said = str(await tab.evaluate("document.querySelector('#list').innerText"))
            return "payments asks for permission" in said

        await wait_until(is_shown, 20, "the page shows the approval")
        await tab.evaluate(
            "[...document.querySelectorAll('button')].find((one) => one.textContent == 'Pay').click()"
        )
        assert (await client.wait_for_task(turn.task_id, timeout_s=30)).status == "completed"
        (closed,) = (await client.list_approvals(state="closed")).items
        assert closed.state == "allowed"

        async def is_empty() -> bool:
            return bool(await tab.evaluate("document.querySelectorAll('li').length == 0"))

        await wait_until(is_empty, 20, "the page takes the approval away")
