"""Loads a whole configuration from its layers, or reports everything that is wrong with it.

Every fault names the source of the value (``passerelle.yaml:12``, ``PASSERELLE_PORT``, ``--port``), the key and what
is wrong; an unknown key also gets the nearest known name.

It also generates the JSON Schema of the file, for editors and for looking up known names.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Final, cast

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from passerelle.core.errors import ConfigInvalid
from passerelle.core.frozen import frozen
from passerelle.core.wire.json import JsonObject
from passerelle.core.wire.wire_faults import describe_fault
from passerelle.gateway.settings.layers import (
    SettingFault,
    Sources,
    read_layers,
    suggest_name,
)
from passerelle.gateway.settings.model import Settings, find_contradictions, find_notices
from passerelle.gateway.settings.schema import SchemaPlace, find_misplaced_switches
from passerelle.gateway.settings.section import NAME_RULE

TITLE = "Passerelle configuration"


def render_schema() -> str:
    """The text of ``gateway/settings.schema.json``."""
    document: JsonObject = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **cast("JsonObject", Settings.model_json_schema()),
        "title": TITLE,
    }
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


_FORMS: Final[Mapping[str | int, str]] = {
    "name": NAME_RULE,
    "key_hash": "sha256: and 64 hex digits, as passerelle key prints them",
    "old_key_hash": "sha256: and 64 hex digits, as passerelle key prints them",
    "bearer_env": "the name of an environment variable",
    "address": "host:port",
    "card_path": "a path that begins with /, without ? and #",
}
"""Patterns in words, by the last step of their path."""
_WITH_HOME: Final = ("data_dir", "blobs", "engine_path", "secret_key_file")
"""Top-level settings that may start with ``~``."""
_NO_HOME: Final = "the home directory does not exist; set HOME, or give an absolute path"
_SWITCH: Final = "should be a number; YAML reads a bare yes, no, on or off as true or false"


@frozen
class LoadResult:
    """The loaded settings, or faults; notices in both cases."""

    settings: Settings | None
    faults: tuple[SettingFault, ...]
    notices: tuple[str, ...]
    config: Path | None


def load_settings(sources: Sources) -> tuple[Settings, tuple[str, ...]]:
    """The settings, and notices for the user who starts the gateway.

    Raises:
        ConfigInvalid: the first fault, and the number of further ones.
    """
    loaded = read_settings(sources)
    if loaded.settings is None or loaded.faults:
        first, more = loaded.faults[0], len(loaded.faults) - 1
        rest = f" (and {more} more; passerelle check shows all)" if more else ""
        raise ConfigInvalid(first.where, f"{first.key}: {first.reason}{rest}")
    return loaded.settings, loaded.notices


def read_settings(sources: Sources) -> LoadResult:
    """Reads all sources and reports all faults.

    Raises:
        ConfigInvalid: the file is not YAML.
    """
    layers = read_layers(sources)
    notices = layers.environment.notices
    merged = layers.merge()
    faults = tuple(layers.explain(path, _SWITCH) for path in find_misplaced_switches(merged))
    try:
        settings = Settings.model_validate(merged)
    except ValidationError as error:
        faults += tuple(
            layers.explain(detail["loc"], _describe(detail))
            for detail in error.errors(include_url=False, include_input=False)
        )
        return LoadResult(None, faults, notices, layers.config)
    faults += tuple(
        layers.explain(path, reason)
        for path, reason in find_contradictions(settings, sources.environ)
    )
    found = (layers.explain(path, reason) for path, reason in find_notices(settings))
    notices = (*notices, *(f"{one.where}: {one.key}: {one.reason}" for one in found))
    expanded: dict[str, Path] = {}
    for name in _WITH_HOME:
        path: object = getattr(settings, name)
        if isinstance(path, Path):
            try:
                expanded[name] = path.expanduser()
            except RuntimeError:
                faults += (layers.explain((name,), f"{path}: {_NO_HOME}"),)
    return LoadResult(settings.model_copy(update=expanded), faults, notices, layers.config)


def _describe(detail: ErrorDetails) -> str:
    path = detail["loc"]
    match detail["type"]:
        case "extra_forbidden":
            shape = SchemaPlace.root().descend(path[:-1])
            names = shape.names() if shape else ()
            return f"is an unknown setting{suggest_name(str(path[-1]), names)}"
        case "missing":
            return "is required"
        case "tuple_type":
            return "should be a list"
        case "path_type":
            return "should be a path"
        case "string_pattern_mismatch" if path[-1] in _FORMS:
            return f"should be {_FORMS[path[-1]]}"
        case "model_type" | "dict_type" | "mapping_type":
            return "should be a mapping of settings"
        case _:
            return describe_fault(detail)
