"""The processes of the demo: start, wait, kill, stop. No process outlives the demo.

Each process writes its output to its own file. Where the kernel supports it (parent-death signal), a process
ends when the process that started it ends, for whatever reason.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol, TypeAlias, cast

import httpx
import orjson

from passerelle.core.wire.json import JsonObject
from passerelle.demo.checks import CheckFailed, wait_for
from passerelle.store.engine_process import GuardMode, choose_guard, die_with_parent

START_WITHIN_S: Final = 60.0
STOP_WITHIN_S: Final = 10.0
SETTING: Final = "PASSERELLE_"
_KILLED_WITHIN_S: Final = 5.0
_TAIL_LINES: Final = 5


class ProcessHandle(Protocol):
    """The operations on a process; ``subprocess.Popen`` implements them."""

    pid: int

    @property
    def returncode(self) -> int | None: ...

    def poll(self) -> int | None: ...

    def wait(self, timeout: float | None = None) -> int: ...

    def send_signal(self, sig: int) -> None: ...

    def kill(self) -> None: ...


@dataclass(slots=True)
class Child:
    """One process. ``stdout_file`` has its standard output, ``stderr_file`` its standard error."""

    name: str
    process: ProcessHandle
    stdout_file: Path
    stderr_file: Path

    def kill(self) -> None:
        """Sends SIGKILL; returns when the process is gone."""
        self.process.kill()
        self.process.wait(_KILLED_WITHIN_S)

    async def stop(self, within_s: float = STOP_WITHIN_S) -> int | None:
        """Sends SIGTERM. Returns the exit status, or None if it took longer than ``within_s`` and was killed."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            await wait_for(f"{self.name} ends", self.has_ended, within_s)
        except CheckFailed:
            self.kill()
            return None
        return self.process.returncode

    def has_ended(self) -> bool:
        """Returns whether the process has ended."""
        return self.process.poll() is not None

    async def read_line(self, start: str) -> str:
        """Waits for the first whole line of standard output that begins with ``start``; returns it.

        Raises:
            CheckFailed: the process ended, or printed no such line in time.
        """
        words = f"{self.name} says that it is ready"
        await wait_for(words, lambda: self._find_line(start) or self.has_ended(), START_WITHIN_S)
        found = self._find_line(start)
        if found is None:
            raise self.explain("ended")
        return found

    def _find_line(self, start: str) -> str | None:
        lines = self.stdout_file.read_text(encoding="utf-8").splitlines(keepends=True)
        whole = (line.strip() for line in lines if line.endswith("\n"))
        return next((line for line in whole if line.startswith(start)), None)

    def explain(self, what: str) -> CheckFailed:
        """Returns an error with the last lines of the process's standard error."""
        text = self.stderr_file.read_text(encoding="utf-8", errors="replace")
        tail = " | ".join(text.splitlines()[-_TAIL_LINES:]) or "it wrote nothing"
        return CheckFailed(f"{self.name} {what}: {tail}")


def start(
    name: str, arguments: Sequence[str], folder: Path, environ: Mapping[str, str] | None = None
) -> Child:
    """Starts ``python -m <arguments>`` with the current interpreter; see ``launch``."""
    return launch(name, (sys.executable, "-m", *arguments), folder, environ)


def launch(
    name: str, command: Sequence[str], folder: Path, environ: Mapping[str, str] | None = None
) -> Child:
    """Starts a command. Its output files are ``<folder>/<name>.out`` and ``.log``.

    The process does not inherit settings of the product from this environment; ``environ`` has its own.
    """
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(SETTING)}
    stdout_file, stderr_file = folder / f"{name}.out", folder / f"{name}.log"
    with stdout_file.open("wb") as out, stderr_file.open("ab") as log:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env={**inherited, **(environ or {})},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=log,
            # Ctrl-C goes to this process only, which then ends the others in order
            start_new_session=True,
            preexec_fn=_arm(),  # noqa: PLW1509  two system calls and nothing else
        )
    return Child(name, process, stdout_file, stderr_file)


Starter: TypeAlias = Callable[[str, Sequence[str], Path, Mapping[str, str] | None], Child]
"""Starts a process from name, arguments, folder and environment."""


@dataclass(slots=True)
class PeerProcess:
    """A running sample agent."""

    name: str
    child: Child
    url: str

    async def read_stats(self) -> JsonObject:
        """Returns its statistics: ``{"received": {message id: times}, "cancelled": [task id]}``."""
        async with httpx.AsyncClient(trust_env=False) as http:
            return cast("JsonObject", (await http.get(f"{self.url}/stats")).json())


async def start_peer(name: str, folder: Path) -> PeerProcess:
    """Starts a sample agent on a free port."""
    child = start(name, (f"passerelle.demo.peers.{name}", "--port", "0"), folder)
    try:
        line = cast("JsonObject", orjson.loads(await child.read_line("{")))
    except BaseException:
        child.kill()
        raise
    return PeerProcess(name, child, str(line["url"]))


@contextlib.asynccontextmanager
async def run_peers(names: Sequence[str], folder: Path) -> AsyncGenerator[dict[str, PeerProcess]]:
    """Starts sample agents concurrently and stops them together."""
    started = await asyncio.gather(
        *(start_peer(name, folder) for name in names), return_exceptions=True
    )
    peers = [peer for peer in started if isinstance(peer, PeerProcess)]
    try:
        for outcome in started:
            if isinstance(outcome, BaseException):
                raise outcome
        yield {peer.name: peer for peer in peers}
    finally:
        await asyncio.gather(*(peer.child.stop() for peer in peers))


class GatewayProcess:
    """``passerelle serve`` over one data directory, which can be started several times.

    The first start takes a free port; later starts reuse it, so that clients find the gateway again.
    """

    def __init__(
        self,
        folder: Path,
        config: Path | None = None,
        *,
        port: int = 0,
        environ: Mapping[str, str] | None = None,
        begin: Starter = start,
    ) -> None:
        self.folder = folder
        self.data_dir = folder / "data"
        self.port = port
        self.child: Child | None = None
        self._config = config
        self._environ = environ
        self._begin = begin

    @property
    def url(self) -> str:
        """The URL that it listens on."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def token(self) -> str:
        """The owner token that it created."""
        return (self.data_dir / "owner-token").read_text(encoding="ascii").strip()

    @property
    def authorization(self) -> dict[str, str]:
        """The owner's Authorization header."""
        return {"Authorization": f"Bearer {self.token}"}

    async def start(self) -> None:
        """Starts the gateway; returns once it is ready.

        Raises:
            CheckFailed: it ended, or was not ready in time.
        """
        flags = ["--data-dir", str(self.data_dir), "--port", str(self.port)]
        if self._config is not None:
            flags += ["--config", str(self._config)]
        child = self._begin("gateway", ("passerelle", "serve", *flags), self.folder, self._environ)
        self.child = child
        self.port = read_port(await child.read_line("passerelle "))
        async with httpx.AsyncClient(timeout=1, trust_env=False) as http:
            await wait_for(f"{self.url} is ready", lambda: self._is_ready(http))

    def kill(self) -> None:
        """Kills it, as ``kill -9`` does."""
        if self.child is not None:
            self.child.kill()

    async def stop(self) -> int | None:
        """Sends SIGTERM. Returns the exit status, or None if it took too long."""
        return None if self.child is None else await self.child.stop()

    async def _is_ready(self, http: httpx.AsyncClient) -> bool:
        if self.child is not None and self.child.has_ended():
            raise self.child.explain("ended")
        try:
            return (await http.get(f"{self.url}/readyz")).is_success
        except httpx.HTTPError:
            return False


def read_port(announcement: str) -> int:
    """Returns the port in ``passerelle <version> at http://127.0.0.1:<port>``."""
    return int(announcement.rpartition(":")[2])


def _arm() -> Callable[[], None] | None:
    return die_with_parent() if choose_guard() is GuardMode.SIGNAL else None
