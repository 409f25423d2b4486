"""Parses a page into steps that can be run.

The language of a fence determines whether a block is run; its options follow in the source:

- ``bash`` is run unchanged. With ``terminal=NAME`` it runs in a terminal of that name, until the page has another
block for the same terminal; ``until=TEXT`` is the output to wait for; - ``console`` has commands after ``$`` and
their output; an ellipsis matches anything; - ``sh`` is not run, for the reason in ``because=REASON``; - any other
language is no command. With ``file=NAME`` it is saved under that name.

``<!-- docs-test: after PAGE -->`` marks a page that continues another one, whose commands run first.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

FENCE: Final = re.compile(r"^```([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_NO_COMMANDS: Final = frozenset(
    {
        "",
        "toml",
        "text",
        "yaml",
        "json",
        "jsonc",
        "mermaid",
        "python",
        "js",
        "ts",
        "html",
        "nginx",
        "py",
        "sql",
    }
)
_AFTER: Final = re.compile(r"^<!-- docs-test: after (\S+) -->$", re.MULTILINE)
INSTALLED: Final = ".venv"
"""The folder in which pages install."""
_INSTALLING: Final = re.compile(
    rf"^(?:python3 -m venv {re.escape(INSTALLED)}|pip install .*)$\n?", re.MULTILINE
)
_PROMPT: Final = "$ "
ANYTHING: Final = "…"


class PageFault(Exception):
    """A page cannot be tested, or its output differs from what it shows."""


@dataclass(frozen=True, slots=True)
class Step:
    """Commands that are run together, or the content of a ``file``.

    ``shown`` is the expected output of the commands, None if the page shows none.
    """

    where: str
    commands: str
    shown: str | None = None
    terminal: str | None = None
    until: str | None = None
    file: str | None = None


def read_steps(name: str, text: str) -> list[Step]:
    """The steps of a page in order.

    Raises:
        PageFault: a block has an unknown language or option, or is left out without a reason.
    """
    steps: list[Step] = []
    for found in FENCE.finditer(text):
        where = f"{name}:{text.count(chr(10), 0, found.start()) + 1}"
        language, words = _read_info(where, found[1])
        match language:
            case "bash":
                _admit(where, words, {"terminal", "until"})
                if ("terminal" in words) != ("until" in words):
                    raise PageFault(f"{where}: `terminal` and `until` are given together")
                terminal, until = words.get("terminal"), words.get("until")
                steps.append(Step(where, found[2], None, terminal, until))
            case "console":
                _admit(where, words, set())
                steps += _read_console(where, found[2])
            case "sh":
                _admit(where, words, {"because"})
                if not words.get("because"):
                    raise PageFault(f"{where}: is not run, and does not say why (because=…)")
            case _ if language in _NO_COMMANDS:
                _admit(where, words, {"file"})
                if "file" in words:
                    steps.append(Step(where, found[2], file=words["file"]))
            case _:
                raise PageFault(f"{where}: {language} is no language of a block here")
    return steps


def read_page(root: Path, page: str) -> list[Step]:
    """The steps of a file below ``root``; raises PageFault."""
    return read_steps(page, (root / page).read_text("utf-8"))


def leave_out_installing(step: Step) -> Step:
    """The step when its installation already exists."""
    return replace(step, commands=_INSTALLING.sub("", step.commands))


def find_before(root: Path, page: str) -> str | None:
    """The page that a page continues, by its path below ``root``; None if it starts by itself.

    Raises:
        PageFault: several are named, the page does not exist, or it continues another one itself.
    """
    named = _AFTER.findall((root / page).read_text("utf-8"))
    if len(named) > 1:
        raise PageFault(f"{page}: goes on after more than one page")
    if not named:
        return None
    before = ((root / page).parent / named[0]).resolve().relative_to(root.resolve())
    if not (root / before).is_file():
        raise PageFault(f"{page}: there is no page {named[0]} to go on after")
    if _AFTER.search((root / before).read_text("utf-8")):
        raise PageFault(f"{page}: {named[0]} is no page to begin with")
    return str(before)


def matches(shown: str, printed: str) -> bool:
    """Whether the output matches, line by line; a line with only an ellipsis matches any lines."""
    pattern = "".join(_make_pattern(line) for line in shown.strip().splitlines())
    return re.fullmatch(pattern, f"{printed.strip()}\n") is not None


def _make_pattern(line: str) -> str:
    if line.strip() == ANYTHING:
        return r"(?:[^\n]*\n)*?"
    pieces = [re.escape(piece) for piece in line.rstrip().split(ANYTHING)]
    # The width of a column depends on its content.
    return re.sub(r"(\\ )+", "[ ]+", r"[^\n]*".join(pieces)) + r"[ ]*\n"


def _read_info(where: str, info: str) -> tuple[str, dict[str, str]]:
    language, *words = shlex.split(info) or [""]
    named = [word.partition("=") for word in words]
    if any(not value for _, _, value in named):
        raise PageFault(f"{where}: an option is name=value")
    return language, {name: value for name, _, value in named}


def _admit(where: str, words: dict[str, str], known: set[str]) -> None:
    if unknown := words.keys() - known:
        raise PageFault(f"{where}: {', '.join(sorted(unknown))} is no option of this language")


def _read_console(where: str, text: str) -> Iterator[Step]:
    """One step per command; a command without shown output may print anything."""
    blocks = re.split(r"^\$ ", text, flags=re.MULTILINE)
    if blocks[0].strip() or len(blocks) == 1:
        raise PageFault(f"{where}: a console block begins with `{_PROMPT}` and a command")
    for block in blocks[1:]:
        lines = block.splitlines()
        count = next(n for n, line in enumerate(lines, 1) if not line.endswith("\\"))
        shown = "\n".join(lines[count:])
        yield Step(where, "\n".join(lines[:count]), shown if shown.strip() else None)
