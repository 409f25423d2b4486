"""An exported type name has one meaning in the product: one that is used twice is found, as is one that no longer is.

``shared-names.txt`` lists those that had several meanings before this was checked. It only becomes shorter.
"""

from __future__ import annotations

import ast
import sys
from collections import defaultdict
from pathlib import Path
from typing import Final

from tools.unused import ROOMS

ROOT = Path(__file__).resolve().parent.parent
LIST: Final = "tools/shared-names.txt"


def list_types(rooms: tuple[str, ...] = (*ROOMS, "clients/python")) -> dict[str, list[str]]:
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
    """One line for each name that has gained a meaning, and for each that stands in the list in vain."""
    shared = {name: places for name, places in list_types().items() if len(places) > 1}
    known = set((ROOT / LIST).read_text("utf-8").split())
    for name in sorted(shared.keys() - known):
        print(f"{name} is more than one type: {', '.join(shared[name])}")
    for name in sorted(known - shared.keys()):
        print(f"{LIST}: {name} has one meaning by now, and goes")
    return int(shared.keys() != known)


if __name__ == "__main__":
    sys.exit(main())
