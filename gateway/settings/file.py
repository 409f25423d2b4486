"""Parses YAML with line numbers: the values of a configuration file, and the line of each of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeAlias, cast

import yaml

from passerelle.core.errors import ConfigInvalid

SIZE_LIMIT_BYTES: Final = 1_048_576
_NODE_LIMIT: Final = 50_000

_DEPTH_LIMIT: Final = 64
_SHOWN: Final = 60
_KINDS: Final = {
    "tag:yaml.org,2002:int": "number that can be used",
    "tag:yaml.org,2002:float": "number that can be used",
    "tag:yaml.org,2002:timestamp": "date",
}

KeyPath: TypeAlias = "tuple[str | int, ...]"


def show_path(path: KeyPath) -> str:
    """The dotted path in one printable line."""
    return ".".join(_show_step(str(step)) for step in path)


def _show_step(step: str) -> str:
    return step if step.isprintable() and len(step) <= _SHOWN else repr(step[:_SHOWN])


@dataclass(slots=True)
class SettingsFile:
    """A parsed file. ``lines`` has the line (from 1) of every key and list item by its path."""

    name: str
    tree: dict[str, object] = field(default_factory=dict[str, object])
    lines: dict[KeyPath, int] = field(default_factory=dict[KeyPath, int])

    def locate(self, path: KeyPath) -> str:
        """``file:line`` of the nearest ancestor of ``path`` in the file."""
        for length in range(len(path), 0, -1):
            if line := self.lines.get(path[:length]):
                return f"{self.name}:{line}"
        return self.name


def read_settings_file(path: Path) -> SettingsFile:
    """Reads a YAML mapping.

    Raises:
        ConfigInvalid: the file cannot be read, is not a YAML mapping, repeats a key, or is too large.
    """
    try:
        with path.open("rb") as file:
            # A pipe or a device has no size.
            content = file.read(SIZE_LIMIT_BYTES + 1)
        if len(content) > SIZE_LIMIT_BYTES:
            raise ConfigInvalid(str(path), f"is larger than {SIZE_LIMIT_BYTES} bytes")
        text = content.decode("utf-8")
    except OSError as error:
        raise ConfigInvalid(str(path), f"cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ConfigInvalid(str(path), f"is not UTF-8 at byte {error.start}") from None
    except ValueError as error:
        raise ConfigInvalid(str(path), f"cannot be read: {error}") from None
    return parse_settings(text, str(path))


def parse_settings(text: str, name: str) -> SettingsFile:
    """Parses a YAML mapping. Raises like ``read_settings_file``."""
    try:
        loader = yaml.SafeLoader(text)
        node = loader.get_single_node()
        if node is None or (isinstance(node, yaml.ScalarNode) and not node.value):
            return SettingsFile(name)
        if not isinstance(node, yaml.MappingNode):
            raise ConfigInvalid(f"{name}:1", "must be a mapping of settings")
        reader = _Reader(loader, SettingsFile(name))
        reader.file.tree = reader.read_mapping(node, ())
        return reader.file
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        reason = f"has the character U+{error.character:04X}, which YAML does not allow"
        raise ConfigInvalid(f"{name}:{line}", reason) from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = name if mark is None else f"{name}:{mark.line + 1}"
        raise ConfigInvalid(where, f"is not YAML: {error.problem or 'it does not parse'}") from None
    except RecursionError:
        raise ConfigInvalid(name, "is nested too deeply") from None


class _Reader:
    """Walks the nodes of one document. Aliases are expanded, and the expansion is counted."""

    def __init__(self, loader: yaml.SafeLoader, file: SettingsFile) -> None:
        self.file = file
        self._loader = loader
        self._nodes = 0

    def read_mapping(self, node: yaml.MappingNode, path: KeyPath) -> dict[str, object]:
        values: dict[str, object] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            key = str(key_node.value) if isinstance(key_node, yaml.ScalarNode) else "?"
            if key in values:
                raise ConfigInvalid(
                    f"{self.file.name}:{line}", f"{show_path((key,))} is given twice"
                )
            self.file.lines[(*path, key)] = line
            values[key] = self._read(value_node, (*path, key))
        return values

    def _read(self, node: yaml.Node, path: KeyPath) -> object:
        self._nodes += 1
        if self._nodes > _NODE_LIMIT:
            raise ConfigInvalid(self.file.name, f"has more than {_NODE_LIMIT} values")
        if len(path) > _DEPTH_LIMIT:
            where = f"{self.file.name}:{node.start_mark.line + 1}"
            raise ConfigInvalid(where, f"{show_path(path[:3])} is nested too deeply")
        match node:
            case yaml.MappingNode():
                return self.read_mapping(node, path)
            case yaml.SequenceNode():
                items: list[object] = []
                for index, item in enumerate(node.value):
                    self.file.lines[(*path, index)] = item.start_mark.line + 1
                    items.append(self._read(item, (*path, index)))
                return items
            case _:
                return self._read_scalar(node, path)

    def _read_scalar(self, node: yaml.Node, path: KeyPath) -> object:
        where = f"{self.file.name}:{node.start_mark.line + 1}"
        try:
            # The stub leaves the node untyped, which strict checking rejects.
            value: object = cast("Any", self._loader).construct_object(node, deep=True)
        except (ValueError, LookupError, AttributeError):
            # PyYAML constructs from a text that only looks like the type, such as 2024-13-45.
            kind = _KINDS.get(node.tag, "value of its tag")
            raise ConfigInvalid(
                where,
                f"{show_path(path)}: {node.value[:40]!r} is no {kind}; quote it if it is a text",
            ) from None
        if isinstance(value, str) and "\0" in value:
            raise ConfigInvalid(where, f"{show_path(path)}: has the character U+0000")
        return value
