"""The layers of settings: flags override the environment, the environment overrides the file.

This module knows where each value comes from, but not the models: ``source`` reads a whole configuration from it, and
``local_gateway`` the few values for commands that only query a gateway.

An unknown variable that starts with ``PASSERELLE_`` gives a notice, not a fault, because the environment belongs to
other programs too.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, cast

import yaml

from passerelle.core.errors import ConfigInvalid
from passerelle.core.frozen import frozen
from passerelle.core.wire.near import find_near
from passerelle.gateway.settings.file import KeyPath, SettingsFile, read_settings_file, show_path
from passerelle.gateway.settings.schema import SchemaPlace
from passerelle.gateway.settings.variables import (
    CONFIG_VARIABLE,
    FILE_NAME,
    NO_SETTINGS,
    PREFIX,
)

if TYPE_CHECKING:
    from collections.abc import Mapping


@frozen
class SettingFault:
    """One fault. ``where`` is a file with line, a variable or a flag; ``key`` is dotted."""

    where: str
    key: str
    reason: str

    def __str__(self) -> str:
        return f"{self.where}: {self.key}: {self.reason}"


@frozen
class Sources:
    """Where to look. ``flags`` are command-line settings by their dotted names; None is not given."""

    environ: Mapping[str, str]
    folder: Path
    config: Path | None = None
    flags: Mapping[str, str | int | Path | None] | None = None
    agents: tuple[Mapping[str, str], ...] = ()
    """Agents started together with the gateway, each as its section. An agent in the file with the same name wins."""


def read_layers(sources: Sources) -> Layers:
    """Reads the sources without validation.

    Raises:
        ConfigInvalid: the file is not YAML, or a variable with a list is not.
    """
    config = find_config(sources)
    return Layers(
        SettingsFile("defaults") if config is None else read_settings_file(config),
        Environment(sources.environ),
        {name: value for name, value in (sources.flags or {}).items() if value is not None},
        sources.agents,
        config,
        _find_default_data_dir(sources.environ),
    )


def find_config(sources: Sources) -> Path | None:
    """The file to read: the named one, else ``passerelle.yaml`` in the folder if it exists."""
    named = sources.config or sources.environ.get(CONFIG_VARIABLE)
    if named:
        return Path(named)
    found = sources.folder / FILE_NAME
    return found if found.is_file() else None


class Environment:
    """The variables that are settings. ``PASSERELLE_CHANNELS__ORIGINS`` is ``channels.origins``; lists are YAML."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.tree: dict[str, object] = {}
        self.names: dict[KeyPath, str] = {}
        notices: list[str] = []
        for variable, text in sorted(environ.items()):
            if not variable.startswith(PREFIX) or variable in NO_SETTINGS or not text:
                continue
            path = tuple(variable.removeprefix(PREFIX).lower().split("__"))
            shape = SchemaPlace.root().descend(path)
            if shape is None:
                known = tuple(f"{PREFIX}{name.upper()}" for name in SchemaPlace.root().names())
                notices.append(f"{variable} is an unknown setting{suggest_name(variable, known)}")
                continue
            self.names[path] = variable
            self._set(path, _parse_nested(variable, text) if shape.nested else text)
        self.notices = tuple(notices)

    def _set(self, path: tuple[str, ...], value: object) -> None:
        holder = self.tree
        for step in path[:-1]:
            below = holder.setdefault(step, {})
            if not isinstance(below, dict):
                above = self.names.get(path[:-1], "a variable above it")
                raise ConfigInvalid(
                    self.names[path], f"conflicts with {above}, which is not a mapping"
                )
            holder = cast("dict[str, object]", below)
        holder[path[-1]] = value


@frozen
class Layers:
    """The values of the sources. ``config`` is the file; ``data_dir`` is the default data directory."""

    file: SettingsFile
    environment: Environment
    flags: Mapping[str, str | int | Path]
    agents: tuple[Mapping[str, str], ...]
    config: Path | None
    data_dir: Path | None

    def merge(self) -> dict[str, object]:
        """The effective tree of values, not validated."""
        floor: dict[str, object] = {} if self.data_dir is None else {"data_dir": self.data_dir}
        merged = _merge(_merge(floor, self.file.tree), self.environment.tree)
        for name, value in self.flags.items():
            *sections, key = name.split(".")
            branch: dict[str, object] = {key: value}
            for section in reversed(sections):
                branch = {section: branch}
            merged = _merge(merged, branch)
        return self._add_agents(merged) if self.agents else merged

    def _add_agents(self, merged: dict[str, object]) -> dict[str, object]:
        listed: object = merged.get("agents") or []
        if not isinstance(listed, list):
            return merged
        named = cast("list[object]", listed)
        taken = {
            cast("dict[str, object]", one).get("name") for one in named if isinstance(one, dict)
        }
        return {**merged, "agents": [*named, *(a for a in self.agents if a["name"] not in taken)]}

    def explain(self, path: KeyPath, reason: str) -> SettingFault:
        """The fault with the source of the value at ``path``: the highest layer that has it, or a part of it."""
        return SettingFault(self._locate(path), show_path(path), reason)

    def _locate(self, path: KeyPath) -> str:
        for length in range(len(path), 0, -1):
            flag = ".".join(str(step) for step in path[:length])
            if flag in self.flags:
                return f"--{flag.replace('.', '-').replace('_', '-')}"
            if variable := self.environment.names.get(path[:length]):
                return variable
        return self.file.locate(path)


def _merge(below: Mapping[str, object], above: Mapping[str, object]) -> dict[str, object]:
    """Merges mappings; any other value is replaced."""
    merged = dict(below)
    for key, value in above.items():
        under = merged.get(key)
        if isinstance(under, dict) and isinstance(value, dict):
            merged[key] = _merge(cast("dict[str, object]", under), cast("dict[str, object]", value))
        else:
            merged[key] = value
    return merged


def suggest_name(name: str, known: tuple[str, ...]) -> str:
    """The suffix for an unknown name: the nearest known one, if there is one."""
    near = find_near(name, known)
    return f"; did you mean {near}?" if near else ""


def _parse_nested(variable: str, text: str) -> object:
    try:
        value: object = yaml.safe_load(text)
        json.dumps(value, default=str, skipkeys=True)  # refuses a list that contains itself
    except (yaml.YAMLError, ValueError, LookupError, AttributeError, RecursionError):
        # PyYAML raises all of them, such as ValueError for 2024-13-45.
        raise ConfigInvalid(variable, "is neither YAML nor JSON") from None
    return value


def _find_default_data_dir(environ: Mapping[str, str]) -> Path | None:
    state = environ.get("XDG_STATE_HOME", "")
    # The XDG specification requires relative paths to be ignored.
    return Path(state) / "passerelle" if Path(state).is_absolute() else None
