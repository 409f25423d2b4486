"""The JSON Schema of the configuration file, for editors and for finding the names that are known."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from typing import cast

from passerelle.core.wire.json import Json, JsonObject
from passerelle.gateway.settings import Settings

TITLE = "Passerelle configuration"


def render_schema() -> str:
    """The text of ``gateway/settings.schema.json``."""
    document: JsonObject = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **_schema(),
        "title": TITLE,
    }
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


@dataclass(frozen=True, slots=True)
class Shape:
    """A place in the schema: what may stand below it."""

    schema: JsonObject

    @classmethod
    def root(cls) -> Shape:
        return cls(_schema())

    @property
    def nested(self) -> bool:
        """Whether a list or a mapping stands here."""
        return self.schema.get("type") in {"array", "object"}

    def names(self) -> tuple[str, ...]:
        """The keys that are known here."""
        return tuple(cast("JsonObject", self.schema.get("properties", {})))

    def descend(self, path: tuple[str | int, ...]) -> Shape | None:
        """The place at ``path`` below this one, or None where there is no such key."""
        place: Shape = self
        for step in path:
            below = (
                place.schema.get("items")
                if isinstance(step, int)
                else cast("JsonObject", place.schema.get("properties", {})).get(step)
            )
            if not isinstance(below, dict):
                return None
            place = Shape(_resolve(below))
        return place


@cache
def _schema() -> JsonObject:
    return cast("JsonObject", Settings.model_json_schema())


def _resolve(schema: JsonObject) -> JsonObject:
    """Follows a reference, through an optional one as well."""
    options = cast("list[Json]", schema.get("anyOf", []))
    for option in (schema, *options):
        if isinstance(option, dict) and isinstance(ref := option.get("$ref"), str):
            definitions = cast("JsonObject", _schema()["$defs"])
            return cast("JsonObject", definitions[ref.rpartition("/")[2]])
    return schema
