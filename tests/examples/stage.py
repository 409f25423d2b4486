"""Examples on free ports: folders are copied, and pages are run like in ``tests.documents``."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import sys
from collections.abc import Generator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, cast

import yaml

from tests.documents.pages import Step, read_steps
from tests.documents.shell import PageShell
from tests.support.client_package import write_client
from tests.support.ports import find_free_port
from tests.support.waiting import block_until

ROOT: Final = Path(__file__).resolve().parents[2]
EXAMPLES: Final = ROOT / "examples"
PAGE: Final = "README.md"
CONFIGURATION: Final = "passerelle.yaml"
WITHIN_S: Final = 30.0
_PORTS: Final = ("6379", "8000", "8080", "8081", "8082", "8090", "9000", "9001", "9100")
"""Ports in examples; each run replaces them."""
_LEFT_OUT: Final = shutil.ignore_patterns("state", "__pycache__", ".venv")
_PASSED_ON: Final = ("LANG", "COVERAGE_PROCESS_START")


@dataclass(slots=True)
class Example:
    """A copy of an example with its shell. ``ports`` are by the number on the page."""

    folder: Path
    notes: Path
    ports: dict[str, int]
    steps: list[Step]
    shell: PageShell
    played: int = 0

    def url(self, port: str) -> str:
        """The URL of the page's ``port`` in this run."""
        return f"http://127.0.0.1:{self.ports[port]}"

    def play(self, before: str | None = None) -> None:
        """Runs the remaining steps of the page, up to the one that contains ``before``."""
        while self.played < len(self.steps):
            step = self.steps[self.played]
            if before is not None and before in step.commands:
                return
            self.shell.run(step)
            self.played += 1
        assert before is None, f"no step has {before}"

    def take(self, words: str, instead: Mapping[str, str] | None = None) -> str:
        """Runs the one step that contains a text, with the reader's own ``instead``; returns its output."""
        step = self.find(words)
        for words_there, written in (instead or {}).items():
            assert words_there in step.commands, f"{step.where} has no {words_there}"
            commands = step.commands.replace(words_there, written)
            shown = step.shown and step.shown.replace(words_there, written)
            step = replace(step, commands=commands, shown=shown)
        return self.shell.run(step)

    def play_rest(self, page: str, words: str) -> None:
        """Runs the steps of a page after the one that contains a text."""
        steps = [step for step in self.steps if step.where.startswith(f"{page}/")]
        places = [place for place, step in enumerate(steps) if words in step.commands]
        for step in steps[places[0] + 1 :]:
            self.shell.run(step)

    def find(self, words: str) -> Step:
        """The one step that contains a text."""
        (step,) = (step for step in self.steps if words in step.commands)
        return step

    def run(self, commands: str) -> str:
        """Runs commands that are not on the page, in its shell; returns their output."""
        return self.shell.run(Step("the test", commands))

    def restart(self, terminal: str) -> None:
        """Stops and restarts the program in a terminal, as its reader would."""
        self.shell.run(self._find(terminal))

    def stop(self, terminal: str) -> None:
        """Ctrl-C in a terminal."""
        self.shell.run(Step("the test", "true", terminal=terminal, until=""))

    def said(self, terminal: str) -> str:
        """All output of a terminal so far, over all restarts."""
        # A block is found by its own file: the shell writes one for each that it runs.
        commands = self._find(terminal).commands
        scripts = sorted(self.notes.glob("*.sh"), key=lambda path: int(path.stem))
        outputs = [
            path.with_suffix(".out") for path in scripts if commands in path.read_text("utf-8")
        ]
        return "".join(path.read_text("utf-8", "replace") for path in outputs)

    def await_said(self, terminal: str, pattern: str) -> re.Match[str]:
        """The first match in the output of a terminal, once there is one."""
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
    """An example that has not started; all of its processes end with the block."""
    with open_together((name,), folder) as example:
        yield example


@contextlib.contextmanager
def open_together(
    names: tuple[str, ...], folder: Path, pages: tuple[str, ...] = ()
) -> Generator[Example]:
    """Several examples combined as their reader would: files in one folder, settings in one file.

    The steps are those of all their pages, and of ``pages``, paths from the top of the repository.
    """
    copy, home, notes = folder / "example", folder / "home", folder / "notes"
    ports = {port: find_free_port() for port in _PORTS}
    settings: dict[str, Any] = {}
    steps: list[Step] = []
    for name in names:
        shutil.copytree(EXAMPLES / name, copy, ignore=_LEFT_OUT, dirs_exist_ok=True)
        for path in copy.rglob("*"):
            if path.is_file():
                path.write_text(_replace_ports(path.read_text("utf-8"), ports), "utf-8")
        steps += read_steps(f"{name}/{PAGE}", (copy / PAGE).read_text("utf-8"))
        settings = _join(settings, yaml.safe_load((copy / CONFIGURATION).read_text("utf-8")))
    if len(names) > 1:
        (copy / CONFIGURATION).write_text(yaml.safe_dump(settings, sort_keys=False), "utf-8")
    for page in pages:
        text = _replace_ports((ROOT / page).read_text("utf-8"), ports)
        steps += read_steps(page, text.replace("```sh\n", "```bash\n"))
    write_client(copy)
    home.mkdir()
    notes.mkdir()
    environ = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    environ |= {
        "HOME": str(home),
        "PATH": f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin:/usr/sbin",
        "PASSERELLE_PORT": str(ports["8080"]),
        "CLIENT_JS": str(ROOT / "clients" / "js" / "src"),
        "COLUMNS": "100",
    }
    with PageShell(copy, notes, environ) as shell:
        yield Example(copy, notes, ports, steps, shell)


def _replace_ports(text: str, ports: dict[str, int]) -> str:
    return re.sub(rf"\b({'|'.join(_PORTS)})\b", lambda found: str(ports[found[1]]), text)


def _join(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """The settings of two files: lists are concatenated, sections merged by member, duplicates removed."""
    joined = dict(one)
    for name, value in other.items():
        known = one.get(name)
        if isinstance(known, list) and isinstance(value, list):
            joined[name] = [*cast("Any", known), *cast("Any", value)]
        elif isinstance(known, dict) and isinstance(value, dict):
            joined[name] = _join(cast("dict[str, Any]", known), cast("dict[str, Any]", value))
        else:
            assert known in (None, value), f"{name} is {known} and {value}"
            joined[name] = value
    return joined
