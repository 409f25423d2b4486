"""No engine outlives its gateway, however the gateway ends.

Linux: the child asks for SIGTERM on its parent's death between fork and exec, and exits at once if the
parent has changed already. The signal follows the *thread* that forked, hence the main thread.
Elsewhere, and where the loop runs in another thread: a watcher process holds the read end of a pipe
whose only write end is here; end of file means that the gateway is gone, and it sends SIGTERM.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

_PR_SET_PDEATHSIG: Final = 1
_WATCH: Final = 'cat >/dev/null; kill -TERM "$1" 2>/dev/null'
_WATCHER_EXIT_S: Final = 2.0


class GuardMode(StrEnum):
    """How the engine learns of the gateway's death."""

    SIGNAL = "signal"
    PIPE = "pipe"


def choose_guard() -> GuardMode:
    """The signal where the kernel has it and it would follow the right thread, else the pipe."""
    in_main_thread = threading.current_thread() is threading.main_thread()
    return (
        GuardMode.SIGNAL if sys.platform.startswith("linux") and in_main_thread else GuardMode.PIPE
    )


def die_with_parent() -> Callable[[], None]:
    """What the child runs between fork and exec. Loads the C library now: after a fork only calls are safe."""
    parent = os.getpid()
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    sigterm = int(signal.SIGTERM)

    def arm() -> None:
        if prctl(_PR_SET_PDEATHSIG, sigterm, 0, 0, 0) != 0 or os.getppid() != parent:
            os._exit(1)

    return arm


@dataclass(slots=True)
class PipeWatcher:
    """The watcher process of one engine."""

    process: subprocess.Popen[bytes]
    write_end: int

    def close(self) -> None:
        """Ends the watcher before its engine's process id can name something else."""
        self.process.kill()
        self.process.wait(_WATCHER_EXIT_S)
        os.close(self.write_end)


def watch_by_pipe(engine_pid: int) -> PipeWatcher:
    """Starts a watcher in a session of its own, so that Ctrl-C does not reach it."""
    read_end, write_end = os.pipe()
    try:
        process = subprocess.Popen(
            ["/bin/sh", "-c", _WATCH, "passerelle-watch", str(engine_pid)],
            stdin=read_end,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    except BaseException:
        os.close(write_end)
        raise
    finally:
        os.close(read_end)
    return PipeWatcher(process, write_end)
