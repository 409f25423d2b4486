"""Draws the JSON Schema of events from their payload types."""

from __future__ import annotations

import json
from typing import Any, Final, cast

from pydantic import TypeAdapter
from pydantic.alias_generators import to_camel
from pydantic.json_schema import JsonSchemaMode

from passerelle.core.event_type import EventType
from passerelle.core.events import FRAME, GENERATION, SCHEMA_VERSION, required_ids
from passerelle.core.facts import Ref, Scope
from passerelle.core.payloads import PAYLOADS

_DESCRIPTION: Final = (
    f"Schema version {SCHEMA_VERSION}, drawn from the payload types. Writers fit it exactly; a reader passes "
    f"over members that a later minor version added. The member {FRAME} is the frame that A2A callers see."
)


def render_event_schema() -> str:
    """``docs/protocol/events.schema.json``: the envelope, and one payload for each class."""
    records: tuple[type[Any], ...] = (Scope, Ref, *PAYLOADS.values())
    wanted: list[tuple[str, JsonSchemaMode, TypeAdapter[Any]]] = [
        (kind.__name__, "validation", TypeAdapter[Any](kind)) for kind in records
    ]
    _, made = TypeAdapter.json_schemas(wanted, by_alias=True, ref_template="#/$defs/{model}")
    definitions = cast("dict[str, dict[str, Any]]", _drop_titles(made["$defs"]))
    for payload in PAYLOADS.values():
        definitions[payload.__name__].setdefault("properties", {})[FRAME] = {"type": "object"}
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Passerelle event",
        "description": _DESCRIPTION,
        **_draw_envelope(definitions.pop("Scope")),
        "oneOf": [*map(_draw_class, EventType), {"properties": {"type": {"pattern": r"^x\..+"}}}],
        "$defs": dict(sorted(definitions.items())),
    }
    return json.dumps(schema, indent=1, ensure_ascii=False) + "\n"


def _draw_envelope(scope: dict[str, Any]) -> dict[str, Any]:
    text = {"type": "string"}
    needed = ("eventId", "type", "timestamp", "schemaVersion", "runtimeId", "payload")
    return {
        "type": "object",
        "required": [*needed, *scope["required"]],
        "properties": {
            "sequence": {"type": "integer", "minimum": 1},
            "eventId": text,
            "type": text,
            "timestamp": {"type": "string", "format": "date-time"},
            "schemaVersion": text,
            "runtimeId": text,
            **scope["properties"],
            GENERATION: {"type": "integer", "minimum": 1},
            "refs": {"type": "object", "additionalProperties": {"$ref": "#/$defs/Ref"}},
            "payload": {"type": "object"},
        },
    }


def _draw_class(kind: EventType) -> dict[str, Any]:
    payload = {"$ref": f"#/$defs/{PAYLOADS[kind].__name__}"}
    needs = {"required": [to_camel(name) for name in required_ids(kind)]}
    properties = {"properties": {"type": {"const": kind.value}, "payload": payload}}
    return {**needs, **properties} if needs["required"] else properties


def _drop_titles(value: object) -> object:
    """A title that is text was made out of a name and says nothing; a member called title is an object and stays."""
    if isinstance(value, list):
        return [_drop_titles(item) for item in cast("list[object]", value)]
    if not isinstance(value, dict):
        return value
    named = cast("dict[str, object]", value)
    return {
        name: _drop_titles(item)
        for name, item in named.items()
        if not (name == "title" and isinstance(item, str))
    }
