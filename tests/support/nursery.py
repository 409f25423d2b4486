"""Lives that cost little: processes forked from one that has imported everything a gateway needs.

Four fifths of what a gateway's start costs are imports. Where one is killed dozens of times in a row, its lives are
forked from here; each is a process of its own, with its own arguments, folder, environment and files, and dies like any
other. Run as ``python -m tests.support.nursery``: a line of JSON in, the id of a process out.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Final, cast

from passerelle.core.wire.json import JsonObject
from passerelle.demo.processes import SETTING, Child
from passerelle.store.engine_process import die_with_parent

_READY: Final = b"ready\n"
_EVERY_S: Final = 0.002
_MODULES: Final = ("passerelle.gateway.server", "passerelle.gateway.app")


class ForkedLife:
    """A process that somebody else has forked for us; how it ended is not known, only that it has."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """0 once it is gone."""
        if self.returncode is None:
            try:
                os.kill(self.pid, 0)
            except ProcessLookupError:
                self.returncode = 0
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Until it is gone.

        Raises:
            subprocess.TimeoutExpired: it is not.
        """
        deadline = time.monotonic() + (timeout or float("inf"))
        while self.poll() is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired("gateway", timeout or 0)
            time.sleep(_EVERY_S)
        return 0

    def send_signal(self, sig: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, sig)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


@dataclass(slots=True)
class Nursery:
    """The process that forks; ``start`` stands in for that of ``demo.processes``."""

    process: subprocess.Popen[bytes]

    def start(
        self,
        name: str,
        arguments: Sequence[str],
        folder: Path,
        environ: Mapping[str, str] | None = None,
    ) -> Child:
        """A life of ``python -m <arguments>``."""
        said, complained = folder / f"{name}.out", folder / f"{name}.log"
        said.write_bytes(b"")
        wanted: JsonObject = {
            "argv": list(arguments),
            "folder": str(folder),
            "environ": dict(environ or {}),
            "said": str(said),
            "complained": str(complained),
        }
        into, out = self.process.stdin, self.process.stdout
        assert into is not None
        assert out is not None
        into.write(json.dumps(wanted).encode() + b"\n")
        into.flush()
        return Child(name, ForkedLife(int(out.readline())), said, complained)


@asynccontextmanager
async def run_nursery() -> AsyncGenerator[Nursery]:
    """One that has imported everything; whoever it has forked ends with it."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(SETTING)}
    process = subprocess.Popen(
        (sys.executable, "-m", "tests.support.nursery"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=inherited,
        start_new_session=True,
    )
    try:
        assert process.stdout is not None
        assert await asyncio.to_thread(process.stdout.readline) == _READY
        yield Nursery(process)
    finally:
        process.kill()
        process.wait()
        for end in (process.stdin, process.stdout):
            if end is not None:
                end.close()


def _serve() -> None:
    for module in _MODULES:
        import_module(module)
    # Whoever has ended is gone at once: nobody here asks how.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    sys.stdout.buffer.write(_READY)
    sys.stdout.flush()
    for line in sys.stdin.buffer:
        arm = die_with_parent()
        pid = os.fork()
        if pid == 0:
            arm()
            _live(cast("dict[str, object]", json.loads(line)))
        sys.stdout.buffer.write(b"%d\n" % pid)
        sys.stdout.flush()


def _live(wanted: dict[str, object]) -> None:
    """Becomes what is wanted; never returns."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    os.chdir(str(wanted["folder"]))
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
    _serve()
