"""Parses YAML with line numbers: the values of a configuration file, and the line of each of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeAlias, cast

import yaml

from passerelle.core.errors import ConfigInvalid

SIZE_LIMIT_BYTES: Final = 1_048_576
_NODE_LIMIT: Final = 50_000

KeyPath: TypeAlias = "tuple[str | int, ...]"


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
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = name if mark is None else f"{name}:{mark.line + 1}"
        raise ConfigInvalid(where, f"is not YAML: {error.problem or 'it does not parse'}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        reason = " ".join(str(error).split())[:200]
        raise ConfigInvalid(name, f"is not YAML: {reason}") from None


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
                raise ConfigInvalid(f"{self.file.name}:{line}", f"{key} is given twice")
            self.file.lines[(*path, key)] = line
            values[key] = self._read(value_node, (*path, key))
        return values

    def _read(self, node: yaml.Node, path: KeyPath) -> object:
        self._nodes += 1
        if self._nodes > _NODE_LIMIT:
            raise ConfigInvalid(self.file.name, f"has more than {_NODE_LIMIT} values")
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
                # The stub leaves the node untyped, which strict checking rejects.
                value: object = cast("Any", self._loader).construct_object(node, deep=True)
                return value
