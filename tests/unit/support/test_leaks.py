"""The leak check sees what a test would leave behind."""

import socket
import subprocess
import sys
import threading
from pathlib import Path

from tests.support.leaks import take_snapshot


def test_open_sockets_and_files_are_seen_until_closed(tmp_path: Path) -> None:
    before = take_snapshot()
    with socket.socket(), (tmp_path / "file").open("w"):
        left = take_snapshot() - before
        assert any(name.startswith("socket:") for name in left)
        assert any("file as descriptor" in name for name in left)
    assert take_snapshot() == before


def test_threads_are_seen_until_they_end() -> None:
    before = take_snapshot()
    ended = threading.Event()
    thread = threading.Thread(target=ended.wait, name="left")
    thread.start()
    try:
        assert take_snapshot() - before == {"thread left"}
    finally:
        ended.set()
        thread.join()
    assert take_snapshot() == before


def test_child_processes_are_seen_until_reaped() -> None:
    before = take_snapshot()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        assert f"process {child.pid}" in take_snapshot() - before
    assert take_snapshot() == before
