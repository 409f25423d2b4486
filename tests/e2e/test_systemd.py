"""Notifications of the process to systemd: ready, alive while its loop runs, and stopping."""

from __future__ import annotations

import socket
from collections.abc import Generator
from pathlib import Path

import httpx
import pytest

from tests.support.processes import run_gateway
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio


@pytest.fixture
def manager(tmp_path: Path) -> Generator[socket.socket]:
    """The notification socket of the service manager."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as found:
        found.bind(str(tmp_path / "notify"))
        found.setblocking(False)
        yield found


def read_words(manager: socket.socket) -> list[str]:
    """The notifications since the last read."""
    words: list[str] = []
    while True:
        try:
            words.append(manager.recv(4096).decode("ascii"))
        except BlockingIOError:
            return words


async def test_systemd_is_notified_of_readiness_liveness_and_stop(
    tmp_path: Path, manager: socket.socket
) -> None:
    environ = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "200000"}
    said: list[str] = []

    def has_said(word: str, times: int = 1) -> bool:
        said.extend(read_words(manager))
        return said.count(word) >= times

    async with run_gateway(tmp_path, {}, environ=environ) as gateway:
        await wait_until(lambda: has_said("READY=1"), 10, "it says that it is ready")
        async with httpx.AsyncClient(trust_env=False) as http:
            assert (await http.get(f"{gateway.url}/healthz")).is_success
        await wait_until(lambda: has_said("WATCHDOG=1", 3), 10, "it gives signs of life")
        assert "STOPPING=1" not in said
        assert await gateway.stop() == 0
    assert has_said("STOPPING=1")
    assert said.count("READY=1") == 1
