"""One life of the engine process: command line, spawn, readiness, end, and the guard that ends it with its gateway.

Restarts are not decided here, and of the data directory's lock only the inherited descriptor is known.

No engine outlives its gateway. Linux: the child asks for SIGTERM on its parent's death between fork and exec, and exits
at once if the parent has changed already. The signal follows the *thread* that forked, hence the main thread.
Elsewhere, and where the loop runs in another thread, a watcher process holds the read end of a pipe whose only write
end is here; end of file means that the gateway is gone, and the watcher sends SIGTERM.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import re
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from passerelle.core.errors import EngineFailed
from passerelle.core.frozen import frozen
from passerelle.core.wire.display import explain_error
from passerelle.store.data_directory import FOR_OTHERS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from passerelle.store.engine_binary import EngineBinary

Durability: TypeAlias = Literal["everysec", "always"]

READY_WITHIN_S: Final = 120.0
LOG_NAME: Final = "engine.log"
_PING_EVERY_S: Final = 0.002
_PING_SLOWEST_S: Final = 0.05
_LOG_TAIL_LINES: Final = 8
_DAMAGED: Final = re.compile(r"Bad file format|check-aof|Unexpected end of file", re.IGNORECASE)
_LOG_TAIL_BYTES: Final = 4096


@frozen
class EngineSettings:
    """Settings of the embedded engine. ``maxmemory_bytes`` 0 sets no limit; ``guard`` None chooses by platform."""

    data_dir: Path
    engine_path: Path | None = None
    durability: Durability = "everysec"
    maxmemory_bytes: int = 0
    guard: GuardMode | None = None
    extra_options: tuple[str, ...] = ()


@dataclass(slots=True)
class EngineProcess:
    """A started engine; ``ended`` is set, in the loop that spawned it, once the process has been reaped."""

    process: subprocess.Popen[bytes]
    watcher: PipeWatcher | None = None
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def pid(self) -> int:
        """The process id."""
        return self.process.pid

    def close_watcher(self) -> None:
        """Ends the watcher process, if this life has one."""
        if self.watcher is not None:
            self.watcher.close()
            self.watcher = None

    async def stop(self, within_s: float) -> None:
        """SIGTERM (the engine flushes and syncs), wait, then kill: a kill loses no acknowledged write."""
        if not self.ended.is_set():
            self.process.terminate()
            try:
                async with asyncio.timeout(within_s):
                    await self.ended.wait()
            except TimeoutError:
                self.process.kill()
                await self.ended.wait()
        self.close_watcher()


def build_command(binary: EngineBinary, settings: EngineSettings, socket_path: Path) -> list[str]:
    """The whole command line: no TCP port, no RDB saves, nothing evicted."""
    options: dict[str, str] = {
        "port": "0",
        "unixsocket": str(socket_path),
        "unixsocketperm": "700",
        "dir": str(settings.data_dir),
        "appendonly": "yes",
        "appendfsync": settings.durability,
        "save": "",
        "maxmemory": str(settings.maxmemory_bytes),
        "maxmemory-policy": "noeviction",
        "daemonize": "no",
        "logfile": str(settings.data_dir / LOG_NAME),
        "auto-aof-rewrite-min-size": "64mb",
        "stream-node-max-bytes": "1200",
        # A record is one value of a few kilobytes with two short ones: in a listpack it takes 250 bytes less.
        "hash-max-listpack-value": "4096",
    }
    command = [str(binary.path)]
    for name, value in options.items():
        command += [f"--{name}", value]
    return [*command, *settings.extra_options]


def spawn(
    command: Sequence[str], lock_descriptor: int, guard: GuardMode | None = None
) -> EngineProcess:
    """Starts the engine from the calling thread, in a session of its own, with the lock passed on.

    Raises:
        EngineFailed: the process cannot be started.
    """
    mode = guard or choose_guard()
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=(lock_descriptor,),
            # If a copy of the folder loses its mode, the files of the engine must still not be readable for others.
            umask=FOR_OTHERS,
            start_new_session=True,
            # Python ignores SIGXFSZ, and so must the engine: a file-size limit is then a write that
            # fails, like on a full disk, and not the end of the process.
            restore_signals=False,
            # Nothing but two system calls runs in the child, so other threads' locks do not matter.
            preexec_fn=die_with_parent() if mode is GuardMode.SIGNAL else None,  # noqa: PLW1509
        )
    except (OSError, subprocess.SubprocessError) as error:
        message = f"the engine {command[0]} cannot be started: {explain_error(error)}"
        raise EngineFailed(message) from error
    running = EngineProcess(process)
    try:
        running.watcher = watch_by_pipe(process.pid) if mode is GuardMode.PIPE else None
        _reap(running)
    except (OSError, RuntimeError) as error:
        # A limit of processes also counts threads, and RuntimeError is what Python raises for one too many.
        process.kill()
        process.wait()
        running.close_watcher()
        message = f"the engine cannot be watched: {explain_error(error)}"
        raise EngineFailed(message) from error
    return running


def _find_hint(log_tail: str) -> str:
    """A hint for an engine that does not start, by the tail of its log."""
    if _DAMAGED.search(log_tail):
        return (
            "its append-only file is damaged: restore a backup, or keep a copy of the data directory and "
            "let the engine's tool cut the file after the last whole command (valkey-check-aof --fix)"
        )
    return f"its log says why, {LOG_NAME} in the data directory"


async def wait_ready(running: EngineProcess, socket_path: Path, data_dir: Path) -> None:
    """Returns once the engine answers PING with PONG; ``LOADING`` means that it replays its file.

    Raises:
        EngineFailed: the process ended (with its last log lines), or took longer than 120 s.
    """
    pause_s = _PING_EVERY_S
    deadline = asyncio.get_running_loop().time() + READY_WITHIN_S
    while True:
        if running.ended.is_set():
            tail = read_log_tail(data_dir)
            raise EngineFailed(f"the engine ended at start: {tail}", hint=_find_hint(tail))
        if await _answers_ping(socket_path):
            return
        if asyncio.get_running_loop().time() >= deadline:
            message = (
                f"the engine was not ready within {READY_WITHIN_S:.0f} s: {read_log_tail(data_dir)}"
            )
            raise EngineFailed(message)
        try:
            async with asyncio.timeout(pause_s):
                await running.ended.wait()
        except TimeoutError:
            pause_s = min(pause_s * 2, _PING_SLOWEST_S)


def read_log_tail(data_dir: Path) -> str:
    """The last lines of the engine's log, in one line."""
    try:
        text = (data_dir / LOG_NAME).read_bytes()[-_LOG_TAIL_BYTES:].decode(errors="replace")
    except OSError:
        return "no log"
    return " | ".join(line.strip() for line in text.splitlines()[-_LOG_TAIL_LINES:]) or "empty log"


async def _answers_ping(socket_path: Path) -> bool:
    try:
        reader, writer = await asyncio.open_unix_connection(str(socket_path))
    except OSError:
        return False
    try:
        async with asyncio.timeout(1.0):
            writer.write(b"PING\r\n")
            return await reader.readline() == b"+PONG\r\n"
    except (OSError, TimeoutError):
        return False
    finally:
        writer.close()


def _reap(running: EngineProcess) -> None:
    loop = asyncio.get_running_loop()

    def wait() -> None:
        running.process.wait()
        if not loop.is_closed():
            loop.call_soon_threadsafe(running.ended.set)

    # A daemon: a loop that ends without stopping the engine must not hang on it.
    threading.Thread(target=wait, name="engine-exit", daemon=True).start()


_PR_SET_PDEATHSIG: Final = 1
_WATCH: Final = 'cat >/dev/null; kill -TERM "$1" 2>/dev/null'
_WATCHER_EXIT_S: Final = 2.0


class GuardMode(StrEnum):
    """How the engine is stopped when the gateway dies."""

    SIGNAL = "signal"
    PIPE = "pipe"


def choose_guard() -> GuardMode:
    """The signal if the kernel supports it and it would follow the right thread, else the pipe."""
    in_main_thread = threading.current_thread() is threading.main_thread()
    return (
        GuardMode.SIGNAL if sys.platform.startswith("linux") and in_main_thread else GuardMode.PIPE
    )


def die_with_parent() -> Callable[[], None]:
    """The function for the child between fork and exec. Loads the C library now: after a fork only calls are safe."""
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
        """Ends the watcher before its engine's process id can be reused."""
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
