"""The leak check sees what a test would leave behind."""

import socket
import subprocess
import sys
import threading
from pathlib import Path

from tests.support.leaks import look


def test_open_sockets_and_files_are_seen_until_closed(tmp_path: Path) -> None:
    before = look()
    with socket.socket(), (tmp_path / "file").open("w"):
        left = look() - before
        assert any(name.startswith("socket:") for name in left)
        assert any("file as descriptor" in name for name in left)
    assert look() == before


def test_threads_are_seen_until_they_end() -> None:
    before = look()
    ended = threading.Event()
    thread = threading.Thread(target=ended.wait, name="left")
    thread.start()
    try:
        assert look() - before == {"thread left"}
    finally:
        ended.set()
        thread.join()
    assert look() == before


def test_child_processes_are_seen_until_reaped() -> None:
    before = look()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        assert f"process {child.pid}" in look() - before
    assert look() == before
