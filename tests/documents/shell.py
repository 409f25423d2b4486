"""One shell per page, as its reader has it: variables persist between blocks, and terminals stay open."""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self

from tests.documents.pages import PageFault, Step, matches

STEP_S: Final = 180.0
"""Time limit of one step, installations included."""
_STOP_S: Final = 20.0
_LOOK_S: Final = 0.05


@dataclass(slots=True)
class PageShell:
    """``folder`` is where commands run, ``notes`` keeps their output; ``environ`` is the complete environment."""

    folder: Path
    notes: Path
    environ: dict[str, str]
    step_s: float = STEP_S
    _shell: subprocess.Popen[bytes] = field(init=False)
    _ended: int = field(init=False)
    _told: int = field(init=False)
    _terminals: dict[str, int] = field(default_factory=dict[str, int])
    _count: int = 0

    def __enter__(self) -> Self:
        self._ended, reported = os.pipe()
        self._shell = subprocess.Popen(
            ["bash", "--noprofile", "--norc"],
            cwd=self.folder,
            env=self.environ,
            stdin=subprocess.PIPE,
            pass_fds=(reported,),
            start_new_session=True,
        )
        os.close(reported)
        self._told = reported
        return self

    def __exit__(self, *_: object) -> None:
        for name in [*self._terminals]:
            self._stop(name)
        assert self._shell.stdin is not None
        os.killpg(self._shell.pid, signal.SIGKILL)
        self._shell.wait()
        self._shell.stdin.close()
        os.close(self._ended)

    def run(self, step: Step) -> str:
        """Runs a step; returns its output.

        Raises:
            PageFault: a command failed, timed out, or its output differs from the page.
        """
        if step.file is not None:
            (self.folder / step.file).write_text(step.commands, "utf-8")
            return ""
        self._count += 1
        script, printed = self.notes / f"{self._count}.sh", self.notes / f"{self._count}.out"
        script.write_text(f"set -eo pipefail\n{step.commands}\n", "utf-8")
        if step.terminal is None:
            return self._run_here(step, script, printed)
        self._stop(step.terminal)
        pid = self.notes / f"{self._count}.pid"
        printed.touch()
        # A shell lets its background processes ignore Ctrl-C, which a terminal does not.
        run = f"exec env --default-signal=INT setsid bash {script} >{printed} 2>&1 </dev/null"
        # It must not keep the pipe open either: the end of the pipe signals a failed command of a later step.
        self._do(step, f"({run}) {self._told}>&- & echo $! >{pid}", printed)
        self._terminals[step.terminal] = int(pid.read_text("ascii"))
        return self._await(step, printed)

    def _run_here(self, step: Step, script: Path, printed: Path) -> str:
        # In this shell, so that variables persist; options of the block do not.
        self._do(step, f". {script} >{printed} 2>&1 </dev/null; set +eo pipefail", printed)
        text = printed.read_text("utf-8", "replace")
        if step.shown is not None and not matches(step.shown, text):
            raise PageFault(f"{step.where}: shown is\n{step.shown}\nand printed was\n{text}")
        return text

    def _do(self, step: Step, line: str, printed: Path) -> None:
        """One line in the shell; a pipe signals its end, and a failed command ends the shell."""
        assert self._shell.stdin is not None
        self._shell.stdin.write(f"{line}; echo done >&{self._told}\n".encode())
        self._shell.stdin.flush()
        ready, _, _ = select.select([self._ended], [], [], self.step_s)
        said = os.read(self._ended, 64) if ready else b""
        if said:
            return
        what = "a command failed" if ready else f"is not done after {self.step_s:g} s"
        text = printed.read_text("utf-8", "replace") if printed.exists() else ""
        raise PageFault(f"{step.where}: {what}:\n{step.commands}{text}")

    def _await(self, step: Step, printed: Path) -> str:
        assert step.until is not None
        assert step.terminal is not None
        deadline = time.monotonic() + self.step_s
        while time.monotonic() < deadline:
            text = printed.read_text("utf-8", "replace")
            if re.search(step.until, text, re.MULTILINE):
                return text
            if not _lives(self._terminals[step.terminal]):
                break
            time.sleep(_LOOK_S)
        text = printed.read_text("utf-8", "replace")
        raise PageFault(f"{step.where}: it never printed {step.until}:\n{step.commands}{text}")

    def _stop(self, name: str) -> None:
        """Ctrl-C in that terminal."""
        process = self._terminals.pop(name, None)
        if process is None:
            return
        for number in (signal.SIGINT, signal.SIGKILL):
            if not _lives(process):
                return
            os.killpg(process, number)
            deadline = time.monotonic() + _STOP_S
            while _lives(process) and time.monotonic() < deadline:
                time.sleep(_LOOK_S)


def _lives(process: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        state = Path(f"/proc/{process}/stat").read_text("ascii", "replace")
    except OSError:
        return False
    return state.rpartition(")")[2].split()[0] != "Z"
