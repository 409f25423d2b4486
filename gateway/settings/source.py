"""Where settings come from: flags beat the environment, the environment beats the file.

Every fault says where the value came from (``passerelle.yaml:12``, ``PASSERELLE_PORT``, ``--port``), which key it is
and what is wrong with it; an unknown key also gets the nearest known name. A variable that begins with ``PASSERELLE_``
and is no setting is a notice and no fault, because the environment belongs to other programs too.

The JSON Schema of the file is drawn here, for editors and for finding the names that are known.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, cast

import yaml
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from passerelle.core.errors import ConfigInvalid
from passerelle.core.wire.json import JsonObject
from passerelle.core.wire.near import find_near
from passerelle.core.wire.wire_faults import describe_fault
from passerelle.gateway.settings.file import KeyPath, SettingsFile, read_settings_file
from passerelle.gateway.settings.model import Settings, find_contradictions, find_notices
from passerelle.gateway.settings.schema_place import SchemaPlace, find_misplaced_switches
from passerelle.gateway.settings.section import NAME_RULE

TITLE = "Passerelle configuration"


def render_schema() -> str:
    """The text of ``gateway/settings.schema.json``."""
    document: JsonObject = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **SchemaPlace.root().schema,
        "title": TITLE,
    }
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


FILE_NAME: Final = "passerelle.yaml"
PREFIX: Final = "PASSERELLE_"
CONFIG_VARIABLE: Final = "PASSERELLE_CONFIG"
URL_VARIABLE: Final = "PASSERELLE_URL"
TOKEN_VARIABLE: Final = "PASSERELLE_TOKEN"  # noqa: S105  a name, not a token
CONTEXT_VARIABLE: Final = "PASSERELLE_CONTEXT"
_NO_SETTINGS: Final = frozenset({CONFIG_VARIABLE, URL_VARIABLE, TOKEN_VARIABLE, CONTEXT_VARIABLE})
_FORMS: Final[Mapping[str | int, str]] = {
    "name": NAME_RULE,
    "key_hash": "sha256: and 64 hex digits, as passerelle key prints them",
    "old_key_hash": "sha256: and 64 hex digits, as passerelle key prints them",
    "bearer_env": "the name of an environment variable",
    "address": "host:port",
    "card_path": "a path that begins with /, without ? and #",
}
"""What a person can make of a pattern, by the last step of its path."""
_SWITCH: Final = "should be a number; YAML reads a bare yes, no, on or off as true or false"


@dataclass(frozen=True, slots=True)
class SettingFault:
    """One thing that is wrong. ``where`` is a file with line, a variable or a flag; ``key`` is dotted."""

    where: str
    key: str
    reason: str

    def __str__(self) -> str:
        return f"{self.where}: {self.key}: {self.reason}"


@dataclass(frozen=True, slots=True)
class LoadResult:
    """What the sources say: settings, or faults; notices either way."""

    settings: Settings | None
    faults: tuple[SettingFault, ...]
    notices: tuple[str, ...]
    config: Path | None


@dataclass(frozen=True, slots=True)
class Sources:
    """Where to look. ``flags`` are settings given on the command line by their dotted names; None is not given."""

    environ: Mapping[str, str]
    folder: Path
    config: Path | None = None
    flags: Mapping[str, str | int | Path | None] | None = None
    agents: tuple[Mapping[str, str], ...] = ()
    """Agents that were started beside the gateway, each as its section. One of the file goes before its namesake."""


def load_settings(sources: Sources) -> tuple[Settings, tuple[str, ...]]:
    """The settings, and notices for the person who starts the gateway.

    Raises:
        ConfigInvalid: the first fault, and how many more there are.
    """
    reading = read_settings(sources)
    if reading.settings is None or reading.faults:
        first, more = reading.faults[0], len(reading.faults) - 1
        rest = f" (and {more} more; passerelle check shows all)" if more else ""
        raise ConfigInvalid(first.where, f"{first.key}: {first.reason}{rest}")
    return reading.settings, reading.notices


def read_settings(sources: Sources) -> LoadResult:
    """Reads all sources and says everything that is wrong.

    Raises:
        ConfigInvalid: the file itself cannot be read as YAML.
    """
    config = find_config(sources)
    layers = _Layers(
        SettingsFile("defaults") if config is None else read_settings_file(config),
        _Environment(sources.environ),
        {name: value for name, value in (sources.flags or {}).items() if value is not None},
        sources.agents,
    )
    notices = layers.environment.notices
    merged = layers.merge(_default_data_dir(sources.environ))
    faults = tuple(layers.explain(path, _SWITCH) for path in find_misplaced_switches(merged))
    try:
        settings = Settings.model_validate(merged)
    except ValidationError as error:
        faults += tuple(
            layers.explain(detail["loc"], _describe(detail))
            for detail in error.errors(include_url=False, include_input=False)
        )
        return LoadResult(None, faults, notices, config)
    faults += tuple(
        layers.explain(path, reason)
        for path, reason in find_contradictions(settings, sources.environ)
    )
    found = (layers.explain(path, reason) for path, reason in find_notices(settings))
    notices = (*notices, *(f"{one.where}: {one.key}: {one.reason}" for one in found))
    resolved = settings.model_copy(
        update={
            "data_dir": settings.data_dir.expanduser(),
            "blobs": settings.blobs.expanduser()
            if isinstance(settings.blobs, Path)
            else settings.blobs,
            "engine_path": settings.engine_path and settings.engine_path.expanduser(),
            "secret_key_file": settings.secret_key_file and settings.secret_key_file.expanduser(),
        }
    )
    return LoadResult(resolved, faults, notices, config)


def find_config(sources: Sources) -> Path | None:
    """The file to read: the one that was named, else ``passerelle.yaml`` of the folder if it is there."""
    named = sources.config or sources.environ.get(CONFIG_VARIABLE)
    if named:
        return Path(named)
    found = sources.folder / FILE_NAME
    return found if found.is_file() else None


class _Environment:
    """The variables that are settings. ``PASSERELLE_CHANNELS__ORIGINS`` is ``channels.origins``; lists are YAML."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.tree: dict[str, object] = {}
        self.names: dict[KeyPath, str] = {}
        notices: list[str] = []
        for variable, text in sorted(environ.items()):
            if not variable.startswith(PREFIX) or variable in _NO_SETTINGS or not text:
                continue
            path = tuple(variable.removeprefix(PREFIX).lower().split("__"))
            shape = SchemaPlace.root().descend(path)
            if shape is None:
                known = tuple(f"{PREFIX}{name.upper()}" for name in SchemaPlace.root().names())
                notices.append(f"{variable} is an unknown setting{_suggest(variable, known)}")
                continue
            self.names[path] = variable
            self._set(path, _parse_nested(variable, text) if shape.nested else text)
        self.notices = tuple(notices)

    def _set(self, path: tuple[str, ...], value: object) -> None:
        holder = self.tree
        for step in path[:-1]:
            holder = cast("dict[str, object]", holder.setdefault(step, {}))
        holder[path[-1]] = value


@dataclass(frozen=True, slots=True)
class _Layers:
    file: SettingsFile
    environment: _Environment
    flags: Mapping[str, str | int | Path]
    agents: tuple[Mapping[str, str], ...] = ()

    def merge(self, data_dir: Path | None) -> dict[str, object]:
        floor: dict[str, object] = {} if data_dir is None else {"data_dir": data_dir}
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
        """Says where the value at ``path`` came from: the highest layer that has it, or a part of it."""
        return SettingFault(self._locate(path), ".".join(str(step) for step in path), reason)

    def _locate(self, path: KeyPath) -> str:
        for length in range(len(path), 0, -1):
            flag = ".".join(str(step) for step in path[:length])
            if flag in self.flags:
                return f"--{flag.replace('.', '-').replace('_', '-')}"
            if variable := self.environment.names.get(path[:length]):
                return variable
        return self.file.locate(path)


def _merge(below: Mapping[str, object], above: Mapping[str, object]) -> dict[str, object]:
    """Mappings merge, everything else is replaced."""
    merged = dict(below)
    for key, value in above.items():
        under = merged.get(key)
        if isinstance(under, dict) and isinstance(value, dict):
            merged[key] = _merge(cast("dict[str, object]", under), cast("dict[str, object]", value))
        else:
            merged[key] = value
    return merged


def _describe(detail: ErrorDetails) -> str:
    path = detail["loc"]
    match detail["type"]:
        case "extra_forbidden":
            shape = SchemaPlace.root().descend(path[:-1])
            names = shape.names() if shape else ()
            return f"is an unknown setting{_suggest(str(path[-1]), names)}"
        case "missing":
            return "is required"
        case "tuple_type":
            return "should be a list"
        case "string_pattern_mismatch" if path[-1] in _FORMS:
            return f"should be {_FORMS[path[-1]]}"
        case "model_type" | "dict_type" | "mapping_type":
            return "should be a mapping of settings"
        case _:
            return describe_fault(detail)


def _suggest(name: str, known: tuple[str, ...]) -> str:
    near = find_near(name, known)
    return f"; did you mean {near}?" if near else ""


def _parse_nested(variable: str, text: str) -> object:
    try:
        value: object = yaml.safe_load(text)
    except yaml.YAMLError:
        raise ConfigInvalid(variable, "is neither YAML nor JSON") from None
    return value


def _default_data_dir(environ: Mapping[str, str]) -> Path | None:
    state = environ.get("XDG_STATE_HOME", "")
    # The XDG rules say that a relative path is to be ignored.
    return Path(state) / "passerelle" if Path(state).is_absolute() else None
