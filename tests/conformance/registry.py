"""The requirements of the official kit, and the tests here that carry each of them.

Marks are read from the source, as those of the requirement ledger are: nothing is imported.
"""

from __future__ import annotations

import ast
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).resolve().parent
ROOT: Final = HERE.parents[1]
REQUIREMENTS: Final = HERE / "kit-requirements.toml"
UNTESTED: Final = HERE / "untested-by-kit.toml"


@dataclass(frozen=True, slots=True)
class Requirement:
    """A requirement that the kit registers; ``untested`` if the kit has no test of it."""

    id: str
    level: str
    section: str
    untested: bool = False
    vacuous: str | None = None


@dataclass(frozen=True, slots=True)
class Untested:
    """The coverage of a requirement that the kit does not test; ``missing`` is the remaining gap."""

    id: str
    tests: tuple[str, ...] = ()
    missing: str | None = None


def read_requirements() -> dict[str, Requirement]:
    """Every requirement by its id."""
    document = tomllib.loads(REQUIREMENTS.read_text(encoding="utf-8"))
    return {name: Requirement(name, **row) for name, row in document.items()}


def read_untested() -> dict[str, Untested]:
    """The rows of ``untested-by-kit.toml`` by id."""
    document = tomllib.loads(UNTESTED.read_text(encoding="utf-8"))
    rows = [
        Untested(row["id"], tuple(row.get("tests", ())), row.get("missing"))
        for row in document["requirement"]
    ]
    return {row.id: row for row in rows}


def collect_marks(tests: Path = ROOT / "tests") -> dict[str, set[str]]:
    """The tests that carry each id, as ``path::name``."""
    found: dict[str, set[str]] = defaultdict(set)
    for path in sorted(tests.rglob("test_*.py")):
        for name, ids in _read(path):
            for one in ids:
                found[one].add(f"{path.relative_to(ROOT)}::{name}")
    return dict(found)


def _read(path: Path) -> Iterator[tuple[str, list[str]]]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), str(path))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name, [one for call in node.decorator_list for one in _list_ids(call)]


def _list_ids(decorator: ast.expr) -> Iterator[str]:
    match decorator:
        case ast.Call(func=ast.Attribute(attr="kit", value=ast.Attribute(attr="mark")), args=args):
            for argument in args:
                match argument:
                    case ast.Constant(value=str() as name):
                        yield name
                    case _:
                        raise ValueError(f"{ast.unparse(decorator)}: ids are literal texts")
        case _:
            return
