"""One example on free ports: its folder is copied, and its page is played as ``tests.documents`` plays pages."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import sys
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.documents.pages import Step, read_page
from tests.documents.shell import PageShell
from tests.support.ports import find_free_port
from tests.support.waiting import block_until

ROOT: Final = Path(__file__).resolve().parents[2]
EXAMPLES: Final = ROOT / "examples"
PAGE: Final = "README.md"
WITHIN_S: Final = 30.0
_PORTS: Final = ("6379", "8000", "8080", "8081", "8082", "8090", "9000", "9001", "9100")
"""Ports that stand in examples; each play has others."""
_PASSED_ON: Final = ("LANG", "COVERAGE_PROCESS_START")


@dataclass(slots=True)
class Example:
    """A copy of an example with its shell. ``ports`` are by the number that stands on the page."""

    folder: Path
    notes: Path
    ports: dict[str, int]
    steps: list[Step]
    shell: PageShell
    played: int = 0

    def url(self, port: str) -> str:
        """Where what the page has at ``port`` is."""
        return f"http://127.0.0.1:{self.ports[port]}"

    def play(self, before: str | None = None) -> None:
        """Runs the steps of the page that are left, up to the one that has the words ``before``."""
        while self.played < len(self.steps):
            step = self.steps[self.played]
            if before is not None and before in step.commands:
                return
            self.shell.run(step)
            self.played += 1
        assert before is None, f"no step has {before}"

    def run(self, commands: str) -> str:
        """Commands that the page does not have, in its shell; what they print."""
        return self.shell.run(Step("the test", commands))

    def restart(self, terminal: str) -> None:
        """Ends what runs in a terminal and runs it again, as its reader would."""
        self.shell.run(self._find(terminal))

    def stop(self, terminal: str) -> None:
        """Ctrl-C in a terminal."""
        self.shell.run(Step("the test", "true", terminal=terminal, until=""))

    def said(self, terminal: str) -> str:
        """What its terminal printed so far, in all of its lives."""
        # A block is found by its own file: the shell writes one for each that it runs.
        commands = self._find(terminal).commands
        scripts = sorted(self.notes.glob("*.sh"), key=lambda path: int(path.stem))
        outputs = [
            path.with_suffix(".out") for path in scripts if commands in path.read_text("utf-8")
        ]
        return "".join(path.read_text("utf-8", "replace") for path in outputs)

    def await_said(self, terminal: str, pattern: str) -> re.Match[str]:
        """The first match in what a terminal printed, once there is one."""
        found = block_until(
            lambda: re.search(pattern, self.said(terminal), re.MULTILINE),
            WITHIN_S,
            f"{terminal} prints {pattern}",
        )
        assert found is not None
        return found

    def _find(self, terminal: str) -> Step:
        return next(step for step in self.steps if step.terminal == terminal)


@contextlib.contextmanager
def open_example(name: str, folder: Path) -> Generator[Example]:
    """An example that has not begun yet; whatever it starts is gone at the end."""
    copy, home, notes = folder / "example", folder / "home", folder / "notes"
    shutil.copytree(EXAMPLES / name, copy, ignore=shutil.ignore_patterns("state", "__pycache__"))
    home.mkdir()
    notes.mkdir()
    ports = {port: find_free_port() for port in _PORTS}
    for path in copy.rglob("*"):
        if path.is_file():
            path.write_text(_replace_ports(path.read_text("utf-8"), ports), "utf-8")
    environ = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    environ |= {
        "HOME": str(home),
        "PATH": f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin:/usr/sbin",
        "PASSERELLE_PORT": str(ports["8080"]),
        "CLIENT_JS": str(ROOT / "clients" / "js" / "src"),
        "COLUMNS": "100",
    }
    with PageShell(copy, notes, environ) as shell:
        yield Example(copy, notes, ports, read_page(copy, PAGE), shell)


def _replace_ports(text: str, ports: dict[str, int]) -> str:
    return re.sub(rf"\b({'|'.join(_PORTS)})\b", lambda found: str(ports[found[1]]), text)
