"""Builds the package ``passerelle_client`` from the gateway's tree, for the wheel and for the source distribution.

In the tree the client is ``passerelle.client``; the code that it shares with the gateway is ``passerelle.protocol`` and
some modules of other packages. A wheel with these names would overwrite the gateway's. So the build copies every module
that the client imports, directly or not, to ``passerelle_client`` and renames its imports. No list is kept by hand.
"""

from __future__ import annotations

import ast
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

if TYPE_CHECKING:
    from collections.abc import Iterator

NAME: Final = "passerelle_client"
_TREE: Final = "passerelle"
_CLIENT: Final = "passerelle.client"
_WHOLE: Final = ("client", "protocol")
"""Packages that are shipped whole; of the others only the modules that are imported."""


class ClientPackage(BuildHookInterface[Any]):
    """Adds the package to the build. A source distribution contains it already, so it is taken from there."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Writes the package to a temporary folder, which ``finalize`` removes.

        Raises:
            ValueError: the install is editable, but the modules would import ``passerelle``.
        """
        if version == "editable":
            raise ValueError("passerelle-client is made when it is built: install it without -e")
        root = Path(self.root)
        package = root / NAME
        if not (root / "PKG-INFO").is_file():
            self._folder = tempfile.TemporaryDirectory(prefix="passerelle-client-")
            package = Path(self._folder.name) / NAME
            write_package(root.parent.parent / "src" / _TREE, package)
        build_data["force_include"][str(package)] = NAME

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Removes the files that ``initialize`` wrote."""
        del version, build_data, artifact_path
        if hasattr(self, "_folder"):
            self._folder.cleanup()


def write_package(tree: Path, target: Path) -> None:
    """Writes the package to ``target``. ``tree`` is the folder of the package ``passerelle``."""
    for name in sorted(find_modules(tree)):
        source = find_file(tree, name)
        written = target / source.relative_to(tree / "client" if is_of_client(name) else tree)
        written.parent.mkdir(parents=True, exist_ok=True)
        written.write_text(rename_imports(source.read_text("utf-8")), "utf-8")
    for data in (tree / "client").rglob("*"):
        if data.is_file() and data.suffix not in {".py", ".pyc"}:
            written = target / data.relative_to(tree / "client")
            written.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(data, written)


def find_modules(tree: Path) -> set[str]:
    """Returns the names of all modules that are shipped, and of their packages."""
    found: set[str] = set()
    waiting = [name for room in _WHOLE for name in list_modules(tree, room)]
    while waiting:
        name = waiting.pop()
        if name in found or name == _TREE:
            continue
        found.add(name)
        waiting.append(name.rpartition(".")[0])
        waiting += list_imports(tree, find_file(tree, name).read_text("utf-8"))
    return found


def list_modules(tree: Path, room: str) -> Iterator[str]:
    """Yields every module of a package."""
    for path in (tree / room).rglob("*.py"):
        parts = path.relative_to(tree).with_suffix("").parts
        yield ".".join((_TREE, *(parts[:-1] if parts[-1] == "__init__" else parts)))


def list_imports(tree: Path, text: str) -> Iterator[str]:
    """Yields the modules of the tree that a module imports, including those for type checking."""
    for node in find_imports(text):
        for alias in node.names:
            inner = f"{node.module}.{alias.name}"
            yield inner if find_file(tree, inner).is_file() else str(node.module)


def find_imports(text: str) -> Iterator[ast.ImportFrom]:
    """Yields the import statements that name the tree. The form ``import passerelle.x`` is never used."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and f"{node.module}.".startswith(f"{_TREE}."):
            yield node


def find_file(tree: Path, name: str) -> Path:
    """Returns the path of a module of the tree, whether or not the file exists."""
    path = tree.joinpath(*name.split(".")[1:])
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def is_of_client(name: str) -> bool:
    """Returns whether a module belongs to ``passerelle.client``, whose name is dropped from the path."""
    return f"{name}.".startswith(f"{_CLIENT}.")


def rename_imports(text: str) -> str:
    """Returns the module text with renamed imports; line numbers do not change."""
    lines = text.splitlines(keepends=True)
    for node in find_imports(text):
        old = _CLIENT if is_of_client(str(node.module)) else _TREE
        line = lines[node.lineno - 1]
        lines[node.lineno - 1] = line.replace(f"from {old}", f"from {NAME}", 1)
    return "".join(lines)
