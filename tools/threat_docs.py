"""Draws the threat model from ``tools/threats.yaml``: threats at each edge, what is done, the tests that hold it."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import yaml

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT: Final = Path(__file__).resolve().parent.parent
TABLE: Final = Path(__file__).with_name("threats.yaml")
KINDS: Final = {
    "S": "spoofing",
    "T": "tampering",
    "R": "repudiation",
    "I": "disclosure",
    "D": "denial of service",
    "E": "elevation",
}
_INTRODUCTION: Final = """# Threat model

The threats at each edge of the gateway, the measures, and the tests that fail without them. Generated
from `tools/threats.yaml` by `make generate`. To report a vulnerability see [SECURITY.md](../SECURITY.md).

Kinds are those of STRIDE: spoofing, tampering, repudiation, disclosure, denial of service, elevation of privilege.
"""


@dataclass(frozen=True, slots=True)
class Threat:
    """One threat; ``left`` is the residual risk for the operator, None if none is known."""

    kind: str
    threat: str
    measure: str
    tests: tuple[str, ...]
    left: str | None


@dataclass(frozen=True, slots=True)
class Edge:
    """An interface of the gateway."""

    name: str
    about: str
    threats: tuple[Threat, ...]


def read_edges() -> tuple[Edge, ...]:
    """The table in order; a row that lacks something is a KeyError that names it."""
    rows = cast("list[dict[str, Any]]", yaml.safe_load(TABLE.read_text("utf-8")))
    return tuple(
        Edge(row["edge"], row["about"], tuple(_read(one) for one in row["threats"])) for row in rows
    )


def find_missing(edges: tuple[Edge, ...], root: Path = ROOT) -> list[str]:
    """The named tests that there are not."""
    named = sorted({test for edge in edges for one in edge.threats for test in one.tests})
    return [test for test in named if not _exists(root, test)]


def render_threats() -> str:
    """The whole text of ``docs/threat-model.md``."""
    return "\n".join([_INTRODUCTION, *(line for edge in read_edges() for line in _render(edge))])


def _read(row: dict[str, Any]) -> Threat:
    tests = cast("list[str]", row["tests"])
    return Threat(row["kind"], row["threat"], row["measure"], tuple(tests), row.get("left"))


def _exists(root: Path, test: str) -> bool:
    path, _, name = test.partition("::")
    if not (root / path).is_file():
        return False
    module = ast.parse((root / path).read_text("utf-8"))
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    return any(isinstance(one, functions) and one.name == name for one in module.body)


def _render(edge: Edge) -> Iterator[str]:
    yield from (f"## {edge.name}", "", edge.about, "")
    yield from ("| | threat | measure | tests | residual risk |", "|---|---|---|---|---|")
    for one in edge.threats:
        held = "<br>".join(_link(test) for test in one.tests)
        yield f"| {KINDS[one.kind]} | {one.threat} | {one.measure} | {held} | {one.left or ''} |"
    yield ""


def _link(test: str) -> str:
    path, _, name = test.partition("::")
    return f"[{name.removeprefix('test_').replace('_', ' ')}](../{path})"
