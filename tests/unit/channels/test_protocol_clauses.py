"""Each numbered clause of the protocol page names tests, and these exist."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

TESTS: Final = Path(__file__).parents[2]
PAGE: Final = TESTS.parent / "docs/protocol/channels.md"
TABLE: Final[dict[str, Any]] = tomllib.loads(
    (TESTS / "protocol-clauses.toml").read_text(encoding="utf-8")
)


def list_rows() -> Iterator[tuple[int, Path, str]]:
    """Clause, file and test of every row."""
    for tier, folders in TABLE.items():
        for folder, files in folders.items():
            for name, clauses in files.items():
                for clause, tests in clauses.items():
                    for test in tests:
                        yield int(clause), TESTS / tier / folder / name, f"test_{test}"


def test_every_clause_has_a_test_and_clauses_are_numbered_without_a_hole() -> None:
    numbered = [int(one) for one in re.findall(r"^(\d+)\. ", PAGE.read_text("utf-8"), re.MULTILINE)]
    assert numbered == list(range(1, len(numbered) + 1))
    assert {clause for clause, _, _ in list_rows()} == set(numbered)


@pytest.mark.parametrize(
    ("path", "name"), sorted({(path, name) for _, path, name in list_rows()}), ids=str
)
def test_test_that_shows_a_clause_exists(path: Path, name: str) -> None:
    assert re.search(rf"^(async )?def {name}\(", path.read_text("utf-8"), re.MULTILINE)
