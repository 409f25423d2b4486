"""The service manager is notified of the life of the process, by the variables that systemd sets."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest

from passerelle.gateway.systemd import find_service_manager


@pytest.mark.parametrize(
    ("environ", "address", "watchdog_s"),
    [
        ({}, None, None),
        ({"NOTIFY_SOCKET": ""}, None, None),
        ({"NOTIFY_SOCKET": "/run/systemd/notify"}, "/run/systemd/notify", None),
        ({"NOTIFY_SOCKET": "@abstract", "WATCHDOG_USEC": "30000000"}, "\0abstract", 30.0),
        ({"NOTIFY_SOCKET": "/run/n", "WATCHDOG_USEC": "0"}, "/run/n", None),
        ({"NOTIFY_SOCKET": "/run/n", "WATCHDOG_USEC": "soon"}, "/run/n", None),
    ],
)
def test_the_service_manager_is_read_from_the_environment(
    environ: dict[str, str], address: str | None, watchdog_s: float | None
) -> None:
    manager = find_service_manager(environ)
    assert (manager.address, manager.watchdog_s) == (address, watchdog_s)


def test_a_word_reaches_an_abstract_socket() -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind("")  # the kernel names it
        name = listening.getsockname().decode("ascii").replace("\0", "@", 1)
        find_service_manager({"NOTIFY_SOCKET": name}).notify("READY=1")
        listening.settimeout(5)
        assert listening.recv(64) == b"READY=1"


def test_a_failed_notification_is_ignored(tmp_path: Path) -> None:
    find_service_manager({"NOTIFY_SOCKET": str(tmp_path / "gone")}).notify("READY=1")
    find_service_manager({"NOTIFY_SOCKET": "/" + "x" * 200}).notify("READY=1")


def test_no_watchdog_notification_is_sent_unless_requested() -> None:
    asyncio.run(asyncio.wait_for(find_service_manager({}).keep_alive(), 5))
