"""The requirement ledger: rows of ``tests/requirements.toml`` against the marks that tests carry.

A row is *closed* with a test and no reason, *begun* with both, *open* with a reason alone. A row with neither is a
fault, and so is a mark that names no row, so ledger and tests cannot drift apart. Marks are read from the source, so
no test is run or even imported. A mark counts where pytest collects its carrier: a ``test_`` function or a ``Test``
class, the module by ``pytestmark``, or a name that one of these refers to. Any other mark is a fault. So is a row
about event classes if no file with its mark names one of them.
"""

import ast
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
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
    """The state of a row."""

    CLOSED = "closed"
    BEGUN = "begun"
    OPEN = "open"


@dataclass(frozen=True, slots=True)
class LedgerRow:
    """One requirement; ``missing`` states in product terms what keeps it from being closed."""

    id: str
    source: str
    sentence: str
    missing: str | None = None


@dataclass(frozen=True, slots=True)
class Mark:
    """One id that a test names; ``where`` is ``path:line``, ``text`` the source of the file that carries it."""

    id: str
    where: str
    text: str = field(default="", repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class LedgerReport:
    """``states`` contains every row; ``faults`` are sentences, empty when the ledger is consistent."""

    states: Mapping[str, State]
    faults: tuple[str, ...]

    def count(self, state: State) -> int:
        return sum(found is state for found in self.states.values())

    @property
    def summary(self) -> str:
        closed, begun, still_open = (self.count(s) for s in State)
        return f"ledger: {closed} closed, {begun} begun, {still_open} open"


def load(path: Path = LEDGER) -> tuple[LedgerRow, ...]:
    """Reads the rows in file order.

    Raises:
        LedgerFault: a row lacks a field, has an unknown or an empty one, or repeats an id.
    """
    document = tomllib.loads(path.read_text(encoding="utf-8"))
    rows: dict[str, LedgerRow] = {}
    for entry in cast("list[dict[str, object]]", document.pop("row", [])):
        row = _parse(entry)
        if row.id in rows:
            raise LedgerFault(f"{row.id}: is listed twice")
        rows[row.id] = row
    if document:
        raise LedgerFault(f"unknown tables: {', '.join(document)}")
    return tuple(rows.values())


def _parse(entry: Mapping[str, object]) -> LedgerRow:
    name = entry.get("id", "a row without id")
    if wrong := (_REQUIRED - entry.keys()) | (entry.keys() - _ALLOWED):
        raise LedgerFault(f"{name}: lacks or does not know {', '.join(sorted(wrong))}")
    fields = {
        key: value for key, value in entry.items() if isinstance(value, str) and value.strip()
    }
    if len(fields) != len(entry):
        raise LedgerFault(f"{name}: every field is a text that says something")
    return LedgerRow(fields["id"], fields["source"], fields["sentence"], fields.get("missing"))


def collect(tests: Path = TESTS) -> tuple[Mark, ...]:
    """Every mark in every ``test_*.py`` below ``tests``, in path order.

    Raises:
        LedgerFault: a mark has no ids, or an id that is not a literal and so cannot be read here.
    """
    ours = (path for path in tests.rglob("test_*.py") if ".venv" not in path.parts)
    return tuple(mark for path in sorted(ours) for mark in _read(path, tests.parent))


def _read(path: Path, root: Path) -> Iterator[Mark]:
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text, str(path))
    carried = {id(node) for carrier in _list_carriers(tree) for node in ast.walk(carrier)}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not _is_mark(node.func):
            continue
        where = f"{path.relative_to(root)}:{node.lineno}"
        if not node.args or node.keywords:
            raise LedgerFault(f"{where}: a requirement mark takes one id or more")
        if id(node) not in carried:
            raise LedgerFault(f"{where}: a mark that no collected test carries")
        for argument in node.args:
            match argument:
                case ast.Constant(value=str() as name):
                    yield Mark(name, where, text)
                case _:
                    raise LedgerFault(f"{where}: the ids of a mark are literal texts")


def _list_carriers(tree: ast.Module) -> list[ast.expr]:
    """Expressions whose marks reach a collected test: decorators, ``pytestmark``, and module names that these use."""
    found = [*_list_decorators(tree.body)]
    assigned: dict[str, ast.expr] = {}
    for node in tree.body:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                assigned[name] = value
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                assigned[name] = value
            case _:
                pass
    # A class created by a call, such as a state machine's, is collected by its name.
    found += [value for name, value in assigned.items() if name.startswith("Test")]
    if "pytestmark" in assigned and any(_list_collected(tree.body)):
        found.append(assigned["pytestmark"])
    seen: set[str] = set()
    for expression in found:
        for used in ast.walk(expression):
            if isinstance(used, ast.Name) and used.id in assigned and used.id not in seen:
                seen.add(used.id)
                found.append(assigned[used.id])
    return found


def _list_decorators(body: Sequence[ast.stmt]) -> Iterator[ast.expr]:
    for node in _list_collected(body):
        yield from node.decorator_list
        if isinstance(node, ast.ClassDef):
            yield from _list_decorators(node.body)
            yield from (
                one.value
                for one in node.body
                if isinstance(one, ast.Assign)
                and any(isinstance(to, ast.Name) and to.id == "pytestmark" for to in one.targets)
            )


def _list_collected(
    body: Sequence[ast.stmt],
) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef]:
    for node in body:
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                if name.startswith("test_"):
                    yield node
            case ast.ClassDef(name=name):
                if name.startswith("Test"):
                    yield node
            case _:
                pass


def _is_mark(function: ast.expr) -> bool:
    """``requirement(…)`` or ``pytest.mark.requirement(…)``, and nothing else of that name."""
    match function:
        case ast.Name(id="requirement"):
            return True
        case ast.Attribute(attr="requirement", value=ast.Attribute(attr="mark")):
            return True
        case _:
            return False


def judge(rows: tuple[LedgerRow, ...], marks: tuple[Mark, ...]) -> LedgerReport:
    """Compares rows with marks in both directions."""
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
    faults += (fault for row in rows if (fault := _find_unread(row, marks)))
    return LedgerReport(states, tuple(faults))


def _find_unread(row: LedgerRow, marks: tuple[Mark, ...]) -> str | None:
    """Why the tests of a row about an event class are not about it: none names one of its classes."""
    found = re.match(r"`[a-z_.]+`(?: / `[a-z_.]+`)*(?= —|\.$)", row.sentence)
    types = [one.strip("`") for one in found[0].split(" / ")] if found else []
    if not types or not all("." in one for one in types):
        return None
    names = [name for one in types for name in (one, *_name_class(one))]
    carriers = [mark for mark in marks if mark.id == row.id and mark.text]
    if not carriers or any(name in mark.text for mark in carriers for name in names):
        return None
    return f"{row.id}: no test of it names {' or '.join(types)}"


def _name_class(event_type: str) -> tuple[str, str]:
    """The forms in which code names an event class: its payload and its member of the enum."""
    words = re.split(r"[._]", event_type)
    return "".join(word.title() for word in words), "_".join(words).upper()
