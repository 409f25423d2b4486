"""An exported type name has one meaning in product, bench and test support: one that is used twice is found."""

from __future__ import annotations

import ast
import sys
from collections import defaultdict
from pathlib import Path
from typing import Final

from tools.unused import ROOMS

ROOT = Path(__file__).resolve().parent.parent
SHARED: Final = {
    "Caller": "the origin of a call; a caller that a test drives",
    "ControlClient": "the client of the command line; a client that a test drives",
    "Event": "a fact with its place in a stream; the frame that carries it; what a client makes of that frame",
    "Gap": "a frame, and what a client makes of it",
    "Live": "a frame, and what a client makes of it",
    "Server": "the HTTP server of a gateway; a Redis server that a test starts",
    "Snapshot": "a frame, and what a client makes of it",
    "Turn": "a message to an agent as an operation; one message to a scripted agent of a test",
}
"""Names that several types have, each with what they have in common."""


def list_types(
    rooms: tuple[str, ...] = (*ROOMS, "clients/python", "bench", "tests/support"),
) -> dict[str, list[str]]:
    """Classes and type aliases of modules by their names, with where each is defined."""
    found: dict[str, list[str]] = defaultdict(list)
    for room in rooms:
        for path in sorted((ROOT / room).rglob("*.py")):
            for node in ast.parse(path.read_text("utf-8")).body:
                name = _read_name(node)
                if name and not name.startswith("_"):
                    found[name].append(f"{path.relative_to(ROOT)}:{node.lineno}")
    return found


def _read_name(node: ast.stmt) -> str:
    match node:
        case ast.ClassDef(name=name):
            return name
        case ast.AnnAssign(target=ast.Name(id=name), annotation=ast.Name(id="TypeAlias")):
            return name
        case _:
            return ""


def main() -> int:
    """One line for each name that has several meanings, and for each that is said to have them and does not."""
    several = {name: places for name, places in list_types().items() if len(places) > 1}
    for name in sorted(several.keys() - SHARED.keys()):
        print(f"{name} is more than one type: {', '.join(several[name])}")
    for name in sorted(SHARED.keys() - several.keys()):
        print(f"{name} has one meaning by now, and need not be named in tools/names.py")
    return int(several.keys() != SHARED.keys())


if __name__ == "__main__":
    sys.exit(main())
