"""Cheap processes: forked from one that has imported everything a gateway needs.

Four fifths of a gateway's start are imports. Where tests start gateways by the dozen, or kill one dozens of times in
a row, the processes are forked from here. Each is a separate process with its own arguments, folder, environment and
files, and dies like any other. Run as ``python -m tests.support.fork_server FOLDER``: a line of JSON in, a process id
out; the exit status of each is in a file of ``FOLDER`` named by its id.

What Python reads before the first line of a program (``PYTHONPATH`` and the like) is that of the fork server: a test
that needs a different value starts a process.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Generator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Final, cast

from passerelle.core.wire.json import JsonObject
from passerelle.demo.processes import SETTING, Child, Starter, start
from passerelle.store.engine_process import die_with_parent

_ROOT: Final = Path(__file__).parents[2]
_READY: Final = b"ready\n"
_EVERY_S: Final = 0.002
_LIMITS: Final = (resource.RLIMIT_NOFILE, resource.RLIMIT_FSIZE, resource.RLIMIT_AS)
"""Limits that a test lowers for its processes: a started process inherits them."""
_MODULES: Final = ("passerelle.gateway.server", "passerelle.gateway.app")


class ForkedProcess:
    """A process that the fork server has forked; its exit status is in ``ended``."""

    def __init__(self, pid: int, ended: Path, server: subprocess.Popen[bytes]) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._ended = ended
        self._server = server

    def poll(self) -> int | None:
        """Its exit status once it is gone, negative for a signal, like that of ``Popen``."""
        if self.returncode is None:
            try:
                self.returncode = int(self._ended.read_text("ascii"))
            except FileNotFoundError:
                # All processes end with the fork server, and no exit status is written.
                if self._server.poll() is not None:
                    self.returncode = -signal.SIGTERM
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Waits until it is gone.

        Raises:
            subprocess.TimeoutExpired: it is still running.
        """
        deadline = time.monotonic() + (timeout or float("inf"))
        while self.poll() is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired("gateway", timeout or 0)
            time.sleep(_EVERY_S)
        return self.returncode or 0

    def send_signal(self, sig: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, sig)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


@dataclass(slots=True)
class ForkServer:
    """The process that forks; ``start`` replaces that of ``demo.processes``."""

    process: subprocess.Popen[bytes]
    folder: Path
    """The folder with the exit statuses."""

    def start(
        self,
        name: str,
        arguments: Sequence[str],
        folder: Path,
        environ: Mapping[str, str] | None = None,
    ) -> Child:
        """A process of ``python -m <arguments>``; environment and limits as ``demo.processes.start`` sets them."""
        said, complained = folder / f"{name}.out", folder / f"{name}.log"
        said.write_bytes(b"")
        wanted: JsonObject = {
            "argv": list(arguments),
            "folder": str(folder),
            "environ": {**_inherit(), **(environ or {})},
            "said": str(said),
            "complained": str(complained),
            "limits": [[one, *resource.getrlimit(one)] for one in _LIMITS],
        }
        into, out = self.process.stdin, self.process.stdout
        assert into is not None
        assert out is not None
        into.write(json.dumps(wanted).encode() + b"\n")
        into.flush()
        pid = int(out.readline())
        return Child(
            name, ForkedProcess(pid, self.folder / str(pid), self.process), said, complained
        )

    def list_processes(self) -> list[int]:
        """The forked processes that have not ended."""
        task = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        return [int(one) for one in task.read_text("ascii").split()]


@asynccontextmanager
async def run_fork_server() -> AsyncGenerator[ForkServer]:
    """A fork server that has imported everything; all forked processes end with it."""
    with _open() as fork_server:
        await asyncio.to_thread(_await, fork_server)
        yield fork_server


@contextmanager
def share_fork_server() -> Generator[ForkServer]:
    """The same, shared by all gateways started in this process meanwhile."""
    with _open() as fork_server:
        _await(fork_server)
        SHARED.append(fork_server)
        try:
            yield fork_server
        finally:
            SHARED.remove(fork_server)


SHARED: Final[list[ForkServer]] = []
"""At most one: that of the run."""


def find_starter(environ: Mapping[str, str] | None) -> Starter:
    """How a gateway is started: by the shared fork server, if any, unless its Python needs other startup settings."""
    if not SHARED or any(name.startswith("PYTHON") for name in environ or {}):
        return start
    return SHARED[0].start


@contextmanager
def _open() -> Generator[ForkServer]:
    with tempfile.TemporaryDirectory(prefix="nursery-") as folder:
        process = subprocess.Popen(
            (sys.executable, "-m", "tests.support.fork_server", folder),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=_ROOT,
            env=_inherit(),
            start_new_session=True,
        )
        try:
            yield ForkServer(process, Path(folder))
        finally:
            process.kill()
            process.wait()
            for end in (process.stdin, process.stdout):
                if end is not None:
                    end.close()


def _await(fork_server: ForkServer) -> None:
    assert fork_server.process.stdout is not None
    assert fork_server.process.stdout.readline() == _READY


def _inherit() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(SETTING)}


def _serve(folder: Path) -> None:
    for module in _MODULES:
        import_module(module)

    def write_down(_signal: int, _frame: object) -> None:
        for pid, status in _collect_ended():
            draft = folder / f"{pid}.draft"
            draft.write_text(str(status), "ascii")
            draft.replace(folder / str(pid))

    signal.signal(signal.SIGCHLD, write_down)
    sys.stdout.buffer.write(_READY)
    sys.stdout.flush()
    for line in sys.stdin.buffer:
        arm = die_with_parent()
        # Process ids are reused: the file of the previous process is removed before this one can end.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
        pid = os.fork()
        if pid == 0:
            arm()
            _live(cast("dict[str, object]", json.loads(line)))
        (folder / str(pid)).unlink(missing_ok=True)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
        sys.stdout.buffer.write(b"%d\n" % pid)
        sys.stdout.flush()


def _collect_ended() -> list[tuple[int, int]]:
    """Ids and exit statuses of those that have ended since the last call."""
    found: list[tuple[int, int]] = []
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return found
        if pid == 0:
            return found
        found.append((pid, os.waitstatus_to_exitcode(status)))


def _live(wanted: dict[str, object]) -> None:
    """Becomes the requested process; never returns."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
    os.setsid()
    os.chdir(str(wanted["folder"]))
    for limit, soft, hard in cast("list[tuple[int, int, int]]", wanted["limits"]):
        resource.setrlimit(limit, (soft, hard))
    os.environ.clear()
    os.environ.update(cast("dict[str, str]", wanted["environ"]))
    ends = (
        os.open(os.devnull, os.O_RDONLY),
        os.open(str(wanted["said"]), os.O_WRONLY | os.O_CREAT | os.O_TRUNC),
        os.open(str(wanted["complained"]), os.O_WRONLY | os.O_CREAT | os.O_APPEND),
    )
    for number, end in enumerate(ends):
        os.dup2(end, number)
    sys.argv = cast("list[str]", wanted["argv"])
    status = 1
    try:
        import_module("passerelle.cli.main").main()
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    finally:
        sys.stdout.flush()
        os._exit(status)


if __name__ == "__main__":
    _serve(Path(sys.argv[1]))
