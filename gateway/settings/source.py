"""Loads a whole configuration from its layers, or reports everything that is wrong with it.

Every fault names the source of the value (``passerelle.yaml:12``, ``PASSERELLE_PORT``, ``--port``), the key and what
is wrong; an unknown key also gets the nearest known name.

It also generates the JSON Schema of the file, for editors and for looking up known names.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, cast

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from passerelle.core.errors import ConfigInvalid
from passerelle.core.frozen import frozen
from passerelle.core.wire.json import JsonObject
from passerelle.core.wire.wire_faults import describe_fault
from passerelle.gateway.settings.file import KeyPath
from passerelle.gateway.settings.layers import (
    SettingFault,
    Sources,
    read_layers,
    suggest_name,
)
from passerelle.gateway.settings.model import Settings, find_contradictions, find_notices
from passerelle.gateway.settings.schema import SchemaPlace, find_misread
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


_VARIABLE: Final = "the name of an environment variable"
_KEY_HASH: Final = "sha256: and 64 hex digits, as passerelle key prints them"
_ORIGIN: Final = "http:// or https://, then a host, *.host or *, then nothing or a port"
_TIME: Final = "a time of day, such as 22:00"
_FORMS: Final[Mapping[str, str]] = {
    "agent": "* or the name of an agent",
    "allow": _ORIGIN,
    "api_key.name": "1 to 100 letters, digits, _, ., ~ and -",
    "begin": _TIME,
    "bearer_env": _VARIABLE,
    "blobs": "a folder, or s3://bucket/prefix",
    "address": "host:port",
    "call": "module:function",
    "card_path": "a path that begins with /, without ? and #",
    "certificate_header": "the name of a header",
    "currency": "three capital letters, such as EUR",
    "default_agent": NAME_RULE,
    "end": _TIME,
    "env": _VARIABLE,
    "fallback": NAME_RULE,
    "key_hash": _KEY_HASH,
    "name": NAME_RULE,
    "old_key_hash": _KEY_HASH,
    "push_contact": "mailto: and an address, or an https:// URL",
    "redis_url": "redis://, rediss://, unix:// or redis+sentinel:// and an address, or a list of them",
    "serves": "* or the name of an agent",
    "tenants": "1 to 63 letters, digits, ., _, ~ and -, with a letter or digit first",
    "user": "1 to 200 characters without a colon",
}
"""Patterns and choices of types in words, by the last name in their path, or the last two."""
_WITH_HOME: Final = ("data_dir", "blobs", "engine_path", "secret_key_file")
"""Top-level settings that may start with ``~``."""
_NO_HOME: Final = "the home directory does not exist; set HOME, or give an absolute path"


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
    faults = tuple(layers.explain(path, reason) for path, reason in find_misread(merged))
    try:
        settings = Settings.model_validate(merged)
    except ValidationError as error:
        details = error.errors(include_url=False, include_input=False)
        misread = {fault.key for fault in faults}
        found = (layers.explain(*one) for one in _describe_all(details, merged).items())
        faults += tuple(one for one in found if one.key not in misread)
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


def _describe_all(
    details: Sequence[ErrorDetails], merged: Mapping[str, object]
) -> dict[KeyPath, str]:
    """One reason for each place: a value of no type of a choice is one fault, not one for each type."""
    found: dict[KeyPath, str] = {}
    holders = {detail["loc"][:length] for detail in details for length in range(len(detail["loc"]))}
    for detail in details:
        if detail["type"] == "too_short" and detail["loc"] in holders:
            continue  # pydantic counts the items without those that have a fault of their own
        path = _find_place(detail, merged)
        is_choice = path != detail["loc"]
        words = _find_words(path) if is_choice and detail["type"] != "value_error" else None
        found[path] = f"should be {words}" if words else _describe(detail)
    return found


def _find_place(detail: ErrorDetails, merged: Mapping[str, object]) -> KeyPath:
    """The path without the names that pydantic gives to the types of a choice."""
    place: object = merged
    for length, step in enumerate(detail["loc"]):
        try:
            place = cast("Any", place)[step]
        except (LookupError, TypeError):
            is_missing = detail["type"] == "missing" and isinstance(place, dict)
            return detail["loc"][: length + is_missing]
    return detail["loc"]


def _find_words(path: KeyPath) -> str | None:
    names = [step for step in path if isinstance(step, str)]
    return _FORMS.get(".".join(names[-2:])) or _FORMS.get(names[-1])


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
        case "string_pattern_mismatch" if (words := _find_words(path)) is not None:
            return f"should be {words}"
        case "url_parsing" | "url_scheme" | "url_syntax_violation":
            return "should be a URL with http:// or https:// and a host"
        case "decimal_parsing" | "decimal_type":
            return "should be a number"
        case "datetime_parsing" | "datetime_from_date_parsing" | "datetime_type":
            return "should be a time, such as 2026-01-31T12:00:00Z"
        case "model_type" | "dict_type" | "mapping_type":
            return "should be a mapping of settings"
        case _:
            return describe_fault(detail)
