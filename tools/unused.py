"""Names of the product that only its tests use: what nobody needs is taken out, and its tests with it.

A function, a method, a class or a constant counts as used where its name occurs a second time in the product, the bench
or the tools. What libraries call by name is not called by tests, so it is not found; nor is what a decorator registers.
Clients of others are theirs to use, so ``clients`` counts as the product and is not looked at.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parent.parent
ROOMS: Final = tuple(
    sorted(
        one.name
        for one in (ROOT / "src/passerelle").iterdir()
        if one.is_symlink() and one.name != "client"
    )
)
"""The packages, which are links there; the client is looked at by its own path."""
USERS: Final = ("bench", "tools", "clients/python")
KEPT: Final = {
    "PERMANENT": "which keys may live for ever is said beside the keys, and held by the suites of the store",
    "count_runs": "that names which are no ids are not kept shows nowhere else",
    "on_header": "the parser of HTTP calls it by this name, and so does a test of another parser",
    "find_held": "that every amount comes back to its holder shows nowhere else",
}
"""Names that tests alone use, each with the reason why it is in the product."""
_WORD: Final = re.compile(r"\w+")


@dataclass(frozen=True, slots=True)
class Name:
    """Where something is defined."""

    path: Path
    line: int
    name: str


def list_names(path: Path) -> Iterator[Name]:
    """The functions, methods and classes of a module that nothing registers, and its constants."""
    tree = ast.parse(path.read_text("utf-8"))
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                if not (node.name.startswith("__") or _is_registered(node)):
                    yield Name(path, node.lineno, node.name)
            case _:
                pass
    for node in tree.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield Name(path, node.lineno, node.target.id)


def _is_registered(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> bool:
    """Whether a decorator with arguments makes it known, as a verb or a validator."""
    named = (one.func for one in node.decorator_list if isinstance(one, ast.Call))
    return any(not (isinstance(one, ast.Name) and one.id == "dataclass") for one in named)


def count_words(rooms: tuple[str, ...]) -> Counter[str]:
    """How often each word occurs in the modules of these folders."""
    words: Counter[str] = Counter()
    for path in _list_modules(rooms):
        words.update(_WORD.findall(path.read_text("utf-8")))
    return words


def find_unused(rooms: tuple[str, ...] = ROOMS, users: tuple[str, ...] = USERS) -> list[Name]:
    """Names that occur once in the product, and in its tests."""
    used, tested = count_words(rooms) + count_words(users), count_words(("tests",))
    return [
        found
        for path in _list_modules(rooms)
        for found in list_names(path)
        if used[found.name] == 1 and tested[found.name]
    ]


def _list_modules(rooms: tuple[str, ...]) -> Iterator[Path]:
    for room in rooms:
        yield from sorted(filter(_is_ours, (ROOT / room).rglob("*.py")))


def _is_ours(path: Path) -> bool:
    """Not this file, nor one of an environment that a verb has made among the tests."""
    parts = path.relative_to(ROOT).parts
    return path != Path(__file__) and not any(part.startswith(".") for part in parts)


def main() -> int:
    """One line for each name that only tests use, and one for each reason that is none any more."""
    found = find_unused()
    names = {one.name for one in found}
    for one in found:
        if one.name not in KEPT:
            print(f"{one.path.relative_to(ROOT)}:{one.line}: only tests use {one.name}")
    for name in sorted(KEPT.keys() - names):
        print(f"tools/unused.py: {name} is used, or gone: its reason goes")
    return int(names != KEPT.keys())


if __name__ == "__main__":
    sys.exit(main())
