"""Describes every form in which something is stored: events, snapshots of records, and keys with their members."""

from __future__ import annotations

import hashlib
import inspect
import json
from typing import Any, Final, cast, get_args

from pydantic import TypeAdapter

from passerelle.client import shared_space
from passerelle.core.machine import Record
from passerelle.store import keys
from passerelle.store.archive import frame, locator, segment
from tools.event_schema import render_event_schema

_REF: Final = "#/$defs/"
_WORDS: Final = ("description", "title")


def describe_forms() -> dict[str, object]:
    """The forms by what they are of. The docstrings of keys and of parts of the archive count: they name members."""
    records = [(kind.__name__, "validation", TypeAdapter[Any](kind)) for kind in get_args(Record)]
    refs, drawn = TypeAdapter.json_schemas(records, by_alias=True)  # type: ignore[arg-type]
    functions = [
        (name, one)
        for module in (keys, shared_space)
        for name, one in inspect.getmembers(module, inspect.isfunction)
        if one.__module__ == module.__name__
    ]
    return {
        "events": _number_types(json.loads(render_event_schema())),
        "records": _number_types({**drawn, "oneOf": list(refs.values())}),
        "archive": [inspect.getdoc(one) for one in (locator, frame, segment)],
        "keys": {name: inspect.getdoc(one) for name, one in functions if not name.startswith("_")},
    }


def _number_types(schema: dict[str, Any]) -> list[object]:
    """The schema and its types, each under a number in the order in which they are met: names of types are prose."""
    types: dict[str, dict[str, Any]] = schema.pop("$defs")
    numbers: dict[str, int] = {}
    numbered = [_drop_words(schema, numbers)]
    met = 0
    while met < len(numbers):
        # More of them are met on the way.
        numbered.append(_drop_words(types[list(numbers)[met]], numbers))
        met += 1
    return numbered


def _drop_words(value: object, numbers: dict[str, int]) -> object:
    """The same without descriptions and titles, which are prose, and with numbers in place of the names of types."""
    match value:
        case str() if value.startswith(_REF):
            return numbers.setdefault(value.removeprefix(_REF), len(numbers))
        case list():
            return [_drop_words(item, numbers) for item in cast("list[object]", value)]
        case dict():
            return {
                name: _drop_words(item, numbers)
                for name, item in cast("dict[str, object]", value).items()
                if name not in _WORDS or not isinstance(item, str)
            }
        case _:
            return value


def digest_forms() -> str:
    """One hash for all of them."""
    described = json.dumps(describe_forms(), sort_keys=True).encode()
    return hashlib.sha256(described).hexdigest()
