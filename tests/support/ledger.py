"""The requirement ledger: rows of ``tests/requirements.toml`` against the marks that tests carry.

A row is *closed* with a test and no reason, *begun* with both, *open* with a reason alone. A row with
neither is a fault, and so is a mark that names no row: the ledger cannot drift from the tests in either
direction. Marks are read from the source, so no test is run or even imported.
"""

import ast
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum, unique
from pathlib import Path
from typing import cast

import pytest

TESTS = Path(__file__).resolve().parent.parent
LEDGER = TESTS / "requirements.toml"
INVARIANTS = "architecture invariants"

requirement = pytest.mark.requirement

_REQUIRED = {"id", "source", "sentence"}
_ALLOWED = _REQUIRED | {"missing"}


class LedgerFault(Exception):
    """The ledger file cannot be read as rows."""


@unique
class State(StrEnum):
    """Where a row stands."""

    CLOSED = "closed"
    BEGUN = "begun"
    OPEN = "open"


@dataclass(frozen=True, slots=True)
class Row:
    """One requirement; ``missing`` says in product terms what keeps it from being closed."""

    id: str
    source: str
    sentence: str
    missing: str | None = None


@dataclass(frozen=True, slots=True)
class Mark:
    """One id that a test names; ``where`` is ``path:line``."""

    id: str
    where: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """``states`` has every row that stands; ``faults`` are sentences, empty when the ledger is sound."""

    states: Mapping[str, State]
    faults: tuple[str, ...]

    def count(self, state: State) -> int:
        return sum(found is state for found in self.states.values())

    @property
    def summary(self) -> str:
        closed, begun, still_open = (self.count(s) for s in State)
        return f"ledger: {closed} closed, {begun} begun, {still_open} open"


def load(path: Path = LEDGER) -> tuple[Row, ...]:
    """Reads the rows in file order.

    Raises:
        LedgerFault: a row lacks a field, has an unknown or an empty one, or repeats an id.
    """
    document = tomllib.loads(path.read_text(encoding="utf-8"))
    rows: dict[str, Row] = {}
    for entry in cast(list[dict[str, object]], document.pop("row", [])):
        row = _parse(entry)
        if row.id in rows:
            raise LedgerFault(f"{row.id}: stands twice")
        rows[row.id] = row
    if document:
        raise LedgerFault(f"unknown tables: {', '.join(document)}")
    return tuple(rows.values())


def _parse(entry: Mapping[str, object]) -> Row:
    name = entry.get("id", "a row without id")
    if wrong := (_REQUIRED - entry.keys()) | (entry.keys() - _ALLOWED):
        raise LedgerFault(f"{name}: lacks or does not know {', '.join(sorted(wrong))}")
    fields = {
        key: value for key, value in entry.items() if isinstance(value, str) and value.strip()
    }
    if len(fields) != len(entry):
        raise LedgerFault(f"{name}: every field is a text that says something")
    return Row(fields["id"], fields["source"], fields["sentence"], fields.get("missing"))


def collect(tests: Path = TESTS) -> tuple[Mark, ...]:
    """Every mark in every ``test_*.py`` below ``tests``, in path order.

    Raises:
        LedgerFault: a mark has no ids, or an id that is not a literal and so cannot be read here.
    """
    ours = (path for path in tests.rglob("test_*.py") if ".venv" not in path.parts)
    return tuple(mark for path in sorted(ours) for mark in _read(path, tests.parent))


def _read(path: Path, root: Path) -> Iterator[Mark]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), str(path))):
        if not isinstance(node, ast.Call) or not _is_mark(node.func):
            continue
        where = f"{path.relative_to(root)}:{node.lineno}"
        if not node.args or node.keywords:
            raise LedgerFault(f"{where}: a requirement mark takes one id or more")
        for argument in node.args:
            match argument:
                case ast.Constant(value=str() as name):
                    yield Mark(name, where)
                case _:
                    raise LedgerFault(f"{where}: the ids of a mark are literal texts")


def _is_mark(function: ast.expr) -> bool:
    """``requirement(…)`` or ``pytest.mark.requirement(…)``, and nothing else of that name."""
    match function:
        case ast.Name(id="requirement"):
            return True
        case ast.Attribute(attr="requirement", value=ast.Attribute(attr="mark")):
            return True
        case _:
            return False


def judge(rows: tuple[Row, ...], marks: tuple[Mark, ...]) -> Verdict:
    """Holds rows against marks, both ways."""
    known = {row.id for row in rows}
    tested = {mark.id for mark in marks}
    faults = [f"{m.where}: {m.id} is no row of the ledger" for m in marks if m.id not in known]
    states: dict[str, State] = {}
    for row in rows:
        match row.id in tested, row.missing is not None:
            case True, False:
                states[row.id] = State.CLOSED
            case True, True:
                states[row.id] = State.BEGUN
            case False, True:
                states[row.id] = State.OPEN
            case _:
                faults.append(f"{row.id}: neither a test nor a reason why it is missing")
    return Verdict(states, tuple(faults))
