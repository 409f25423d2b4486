"""A command in a pseudo-terminal: its output, and keyboard input."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import termios
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

SEQUENCE: Final = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@contextmanager
def open_terminal(
    command: list[str], folder: Path
) -> Generator[tuple[subprocess.Popen[bytes], int]]:
    """Starts a command in a terminal of 40 lines and 140 columns; yields the terminal's other end."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 140, 0, 0))
    environ = {"PATH": os.environ["PATH"], "HOME": str(folder), "TERM": "xterm-256color"}
    watch = subprocess.Popen(command, cwd=folder, env=environ, stdin=theirs, stdout=theirs)
    os.close(theirs)
    os.set_blocking(ours, False)
    try:
        yield watch, ours
    finally:
        watch.kill()
        watch.wait()
        os.close(ours)


def read_screen(terminal: int, so_far: list[str]) -> str:
    """All output so far, without cursor control sequences."""
    with suppress(OSError):  # nothing yet, or nothing more
        so_far.append(os.read(terminal, 65_536).decode("utf-8", "replace"))
    return SEQUENCE.sub("", "".join(so_far))
