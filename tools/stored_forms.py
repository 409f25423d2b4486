"""Describes every form in which something is stored: events, snapshots of records, and keys with their members."""

from __future__ import annotations

import hashlib
import inspect
import json
from typing import Any, cast, get_args

from pydantic import TypeAdapter

from passerelle.client import shared_space
from passerelle.core.machine import Record
from passerelle.store import keys
from tools.event_schema import render_event_schema


def describe_forms() -> dict[str, object]:
    """The forms by what they are of. The docstrings of keys count: they name the members."""
    records = [(kind.__name__, "validation", TypeAdapter[Any](kind)) for kind in get_args(Record)]
    _, drawn = TypeAdapter.json_schemas(records, by_alias=True)  # type: ignore[arg-type]
    functions = [
        (name, one)
        for module in (keys, shared_space)
        for name, one in inspect.getmembers(module, inspect.isfunction)
        if one.__module__ == module.__name__
    ]
    return {
        "events": _drop_words(json.loads(render_event_schema())),
        "records": _drop_words(drawn),
        "keys": {name: inspect.getdoc(one) for name, one in functions if not name.startswith("_")},
    }


def _drop_words(value: object) -> object:
    """Descriptions are prose."""
    if isinstance(value, list):
        return [_drop_words(item) for item in cast("list[object]", value)]
    if not isinstance(value, dict):
        return value
    named = cast("dict[str, object]", value)
    return {
        name: _drop_words(item)
        for name, item in named.items()
        if name != "description" or not isinstance(item, str)
    }


def digest_forms() -> str:
    """One hash for all of them."""
    described = json.dumps(describe_forms(), sort_keys=True).encode()
    return hashlib.sha256(described).hexdigest()
