"""The embedded engine: a Valkey (or Redis) process owned by the gateway.

Start order: data directory, lock, stamp, socket directory, spawn, readiness, new stamp. A crashed engine
is restarted under the same lock; after five failures within a minute it is given up, with the tail of its log. The
socket is in a short temporary directory, because its path may have 104 (macOS) to 108 bytes.

Start it inside a running event loop, best in the main thread: there the engine is tied to the thread
that forked it; in another thread a watcher process does that.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import tempfile
from collections import deque
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from passerelle.core.back_off import find_pause
from passerelle.core.errors import EngineFailed, PasserelleError
from passerelle.core.wire.display import explain_error
from passerelle.protocol.concurrency import cancel_all
from passerelle.store.connection import read_url
from passerelle.store.data_directory import (
    DirectoryLock,
    close_to_others,
    lock_directory,
    make_data_directory,
    read_stamp,
    refuse_mismatch,
    stamp_start,
)
from passerelle.store.engine_binary import EngineBinary, find_engine
from passerelle.store.engine_process import (
    EngineProcess,
    EngineSettings,
    build_command,
    read_log_tail,
    spawn,
    wait_ready,
)
from passerelle.store.fullness import MemoryReport, read_memory_report
from passerelle.store.info import parse_info
from passerelle.store.topology import ask_once

if TYPE_CHECKING:
    from collections.abc import Callable

_BACKOFF_FIRST_S: Final = 0.1
_BACKOFF_LAST_S: Final = 5.0
_FAILURES_ALLOWED: Final = 5
_FAILURE_WINDOW_S: Final = 60.0
LEAST_STOP_S: Final = 2.0
_SOCKET_PREFIX: Final = "psr-"
_SOCKET_NAME: Final = "engine.sock"
_SOCKET_NOTE: Final = "socket"
_LONGEST_PLACE: Final = 75
"""Bytes that leave room for our own names within the 104 of a socket path on macOS."""


class EmbeddedEngine:
    """A running engine. ``socket_path`` stays the same over restarts; ``failed`` resolves when it is given up."""

    def __init__(
        self, settings: EngineSettings, binary: EngineBinary, lock: DirectoryLock, sockets: Path
    ) -> None:
        self.settings = settings
        self.binary = binary
        self.socket_path = sockets / _SOCKET_NAME
        self.failed: asyncio.Future[EngineFailed] = asyncio.get_running_loop().create_future()
        self.restarts = 0
        self._stopped = False
        self._lock = lock
        self._sockets = sockets
        self._process: EngineProcess | None = None
        self._supervisor: asyncio.Task[None] | None = None

    @classmethod
    async def start(
        cls, settings: EngineSettings, find: Callable[[Path | None], EngineBinary] = find_engine
    ) -> Self:
        """Starts the engine and returns once it answers.

        Raises:
            ConfigInvalid: the data directory cannot be created.
            DirectoryInUse: another gateway, or its engine, still uses the directory.
            EngineFailed: no engine, an engine older than the directory's, or one that does not start.
        """
        directory = make_data_directory(settings.data_dir)
        lock = await lock_directory(directory)
        try:
            stamp = read_stamp(directory)
            binary = find(settings.engine_path)
            refuse_mismatch(stamp, binary)
            close_to_others(_list_files(directory))
            sockets = _make_socket_directory(directory)
        except BaseException:
            lock.release()
            raise
        engine = cls(replace(settings, data_dir=directory), binary, lock, sockets)
        try:
            await engine._spawn_until_ready()
            stamp_start(directory, stamp, binary, secrets.token_hex(4))
        except BaseException:
            await engine.stop()
            raise
        engine._supervisor = asyncio.create_task(engine._supervise(), name="engine-supervisor")
        return engine

    @property
    def pid(self) -> int | None:
        """The process id, or None between two lives."""
        running = self._process
        return None if running is None or running.ended.is_set() else running.pid

    @property
    def url(self) -> str:
        """The URL for a store."""
        return f"unix://{self.socket_path}"

    async def set_memory_limit(self, limit_bytes: int) -> None:
        """Changes its memory limit, also for its restarts; 0: none.

        Raises:
            StoreUnavailable: it does not answer.
        """
        self.settings = replace(self.settings, maxmemory_bytes=limit_bytes)
        await ask_once(read_url(self.url), "CONFIG", "SET", "maxmemory", limit_bytes)

    async def read_memory(self) -> MemoryReport:
        """Its memory usage and limit.

        Raises:
            StoreUnavailable: it does not answer.
        """
        return read_memory_report(parse_info(await ask_once(read_url(self.url), "INFO", "memory")))

    async def stop(self, within_s: float = 10.0) -> None:
        """Stops the engine (within at least 2 s), removes the socket, releases the lock last."""
        if self._supervisor is not None:
            await cancel_all([self._supervisor])
            self._supervisor = None
        if self._stopped:
            return
        self._stopped = True
        try:
            if self._process is not None:
                await self._process.stop(max(within_s, LEAST_STOP_S))
        finally:
            shutil.rmtree(self._sockets, ignore_errors=True)
            self._lock.release()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.stop()

    async def _spawn_until_ready(self) -> None:
        self.socket_path.unlink(missing_ok=True)
        command = build_command(self.binary, self.settings, self.socket_path)
        running = spawn(command, self._lock.descriptor, self.settings.guard)
        self._process = running
        await wait_ready(running, self.socket_path, self.settings.data_dir)

    async def _supervise(self) -> None:
        failures: deque[float] = deque(maxlen=_FAILURES_ALLOWED)
        clock = asyncio.get_running_loop().time
        ended = 0
        while self._process is not None:
            began = clock()
            await self._process.ended.wait()
            self._process.close_watcher()
            if clock() - began > _FAILURE_WINDOW_S:
                ended = 0
            ended += 1
            failures.append(clock())
            if len(failures) == _FAILURES_ALLOWED and clock() - failures[0] < _FAILURE_WINDOW_S:
                self._give_up()
                return
            await asyncio.sleep(find_pause(_BACKOFF_FIRST_S, _BACKOFF_LAST_S, ended))
            await self._restart()

    async def _restart(self) -> None:
        try:
            await self._spawn_until_ready()
        except PasserelleError:
            # A failed start counts as one more failure: the supervisor loop sees its end.
            if self._process is not None:
                await self._process.stop(LEAST_STOP_S)
            return
        self.restarts += 1

    def _give_up(self) -> None:
        message = (
            f"the engine failed {_FAILURES_ALLOWED} times within {_FAILURE_WINDOW_S:.0f} s:"
            f" {read_log_tail(self.settings.data_dir)}"
        )
        if not self.failed.done():
            self.failed.set_result(EngineFailed(message))


def _list_files(data_dir: Path) -> list[Path]:
    """Files of the directory itself, and files that the engine has written so far."""
    found = (*data_dir.iterdir(), *data_dir.glob("appendonlydir/*"))
    return [file for file in found if file.is_file()]


def find_running(data_dir: Path) -> str | None:
    """The URL of the engine that runs in a data directory; None if there is none."""
    note = data_dir / _SOCKET_NOTE
    path = Path(note.read_text(encoding="utf-8")) if note.exists() else None
    return f"unix://{path}" if path is not None and path.is_socket() else None


def _make_socket_directory(data_dir: Path) -> Path:
    """Creates a new one; that of a killed owner is removed, because we hold its lock."""
    note = data_dir / _SOCKET_NOTE
    if note.exists():
        left = Path(note.read_text(encoding="utf-8")).parent
        if left.name.startswith(_SOCKET_PREFIX):
            shutil.rmtree(left, ignore_errors=True)
    try:
        made = _make_short_directory()
        note.touch(mode=0o600)
        note.write_text(str(made / _SOCKET_NAME), encoding="utf-8")
    except OSError as error:
        message = f"no socket directory can be made: {explain_error(error)}"
        raise EngineFailed(message) from error
    return made


def _make_short_directory() -> Path:
    """Under the first directory that exists, is writable, and keeps the socket's path short enough."""
    places = (os.environ.get("XDG_RUNTIME_DIR"), tempfile.gettempdir(), "/tmp")  # noqa: S108
    for place in places:
        if place is None or not os.access(place, os.W_OK):
            continue
        if len(os.fsencode(place)) <= _LONGEST_PLACE:
            return Path(tempfile.mkdtemp(prefix=_SOCKET_PREFIX, dir=place))
    return Path(tempfile.mkdtemp(prefix=_SOCKET_PREFIX))
