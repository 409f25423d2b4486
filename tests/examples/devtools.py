"""An unmodified browser: Chromium opens a page, and is queried over its debugging port."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

import httpx
import orjson
from websockets.sync.client import ClientConnection, connect

from tests.support.browser import FLAGS, find_browser
from tests.support.waiting import block_until

WITHIN_S: Final = 40.0


@dataclass(slots=True)
class OpenPage:
    """One page of one browser."""

    link: ClientConnection
    orders: int = 0

    def evaluate(self, expression: str) -> object:
        """The awaited value of an expression in the page."""
        self.orders += 1
        params = {"expression": expression, "returnByValue": True, "awaitPromise": True}
        order = {"id": self.orders, "method": "Runtime.evaluate", "params": params}
        self.link.send(orjson.dumps(order).decode())
        while (said := orjson.loads(self.link.recv(WITHIN_S))).get("id") != self.orders:
            continue
        assert "exceptionDetails" not in said["result"], said
        return said["result"]["result"].get("value")

    def await_text(self, words: str) -> None:
        """Returns once the page shows the text."""
        block_until(
            lambda: words in str(self.evaluate("document.body?.innerText")),
            WITHIN_S,
            f"the page shows {words}",
        )

    def await_no_text(self, words: str) -> None:
        """Returns once the page no longer shows the text."""
        block_until(
            lambda: words not in str(self.evaluate("document.body?.innerText")),
            WITHIN_S,
            f"the page no longer shows {words}",
        )


@contextlib.contextmanager
def open_page(url: str, folder: Path) -> Generator[OpenPage]:
    """A page in a separate browser, which is killed at the end."""
    profile = folder / "profile"
    process = subprocess.Popen(
        [find_browser(), *FLAGS, "--remote-debugging-port=0", f"--user-data-dir={profile}", url],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        reported = profile / "DevToolsActivePort"
        block_until(
            lambda: reported.exists() and reported.read_text("ascii"), WITHIN_S, "Chromium listens"
        )
        port = reported.read_text("ascii").splitlines()[0]
        with connect(_find_page(port, url), max_size=None) as link:
            yield OpenPage(link)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _find_page(port: str, url: str) -> str:
    def look() -> str | None:
        answer = httpx.get(f"http://127.0.0.1:{port}/json/list", trust_env=False)
        pages = cast("list[dict[str, Any]]", answer.json())
        return next(
            (page["webSocketDebuggerUrl"] for page in pages if page["url"].startswith(url)), None
        )

    found = block_until(look, WITHIN_S, f"{url} is open")
    assert found is not None
    return found
