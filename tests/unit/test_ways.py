"""The walks through the code in CONTRIBUTING.md: each step names a file and a symbol in it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MOST_FILES = 4
_STEP = re.compile(r"^\d\. \[(?P<path>[^\]]+)\]\((?P=path)\) (?P<names>[^:\n]+):", re.MULTILINE)


def list_ways() -> dict[str, list[tuple[Path, list[str]]]]:
    """The steps of each way, by its title: a file, and the names to look for."""
    text = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    section = text.partition("## Walks through the code")[2].partition("\n## ")[0]
    ways: dict[str, list[tuple[Path, list[str]]]] = {}
    for title, body in re.findall(
        r"^\*\*(.+?)\*\*(.*?)(?=^\*\*|\Z)", section, re.MULTILINE | re.DOTALL
    ):
        ways[title] = [
            (ROOT / found["path"], re.findall(r"`([^`]+)`", found["names"]))
            for found in _STEP.finditer(body)
        ]
    return ways


WAYS = list_ways()


def test_there_are_four_walks() -> None:
    assert len(WAYS) == 4


@pytest.mark.parametrize("title", WAYS)
def test_each_step_of_a_walk_exists_and_there_are_few(title: str) -> None:
    steps = WAYS[title]
    assert 2 <= len(steps) <= MOST_FILES
    for path, names in steps:
        assert names
        text = path.read_text("utf-8")
        assert [name for name in names if not re.search(rf"\b{re.escape(name)}\b", text)] == []
