"""The packaged JSON Schema of the configuration file: which names are known, and where.

It is generated from the models and read here without them, so that looking up a name does not import them.
"""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Final, cast

from passerelle.core.frozen import frozen

if TYPE_CHECKING:
    from collections.abc import Iterator

    from passerelle.core.wire.json import Json, JsonObject
    from passerelle.gateway.settings.file import KeyPath

SCHEMA_FILE: Final = "settings.schema.json"


@frozen
class SchemaPlace:
    """A position in the schema, with what may be below it."""

    schema: JsonObject

    @classmethod
    def root(cls) -> SchemaPlace:
        return cls(_schema())

    @property
    def nested(self) -> bool:
        """Whether its value is a list or a mapping."""
        return self.schema.get("type") in {"array", "object"}

    @property
    def counts(self) -> bool:
        """Whether its value is a number, and never ``true`` or ``false``."""
        options = cast("list[JsonObject]", self.schema.get("anyOf", [self.schema]))
        kinds = {str(option.get("type")) for option in options}
        return bool(kinds & {"integer", "number"}) and "boolean" not in kinds

    def names(self) -> tuple[str, ...]:
        """The known keys."""
        return tuple(cast("JsonObject", self.schema.get("properties", {})))

    def descend(self, path: tuple[str | int, ...]) -> SchemaPlace | None:
        """The position at ``path`` below this one; None if there is no such key."""
        place: SchemaPlace = self
        for step in path:
            below = (
                place.schema.get("items")
                if isinstance(step, int)
                else cast("JsonObject", place.schema.get("properties", {})).get(step)
            )
            if not isinstance(below, dict):
                return None
            place = SchemaPlace(_resolve(below))
        return place


@cache
def _schema() -> JsonObject:
    text = files("passerelle.gateway").joinpath(SCHEMA_FILE).read_text("utf-8")
    return cast("JsonObject", json.loads(text))


def _resolve(schema: JsonObject) -> JsonObject:
    """Follows a reference, through an optional one as well."""
    options = cast("list[Json]", schema.get("anyOf", []))
    for option in (schema, *options):
        if isinstance(option, dict) and isinstance(ref := option.get("$ref"), str):
            definitions = cast("JsonObject", _schema()["$defs"])
            return cast("JsonObject", definitions[ref.rpartition("/")[2]])
    return schema


def find_misplaced_switches(merged: dict[str, object]) -> Iterator[KeyPath]:
    """Paths with true or false for a number: pydantic reads them as 1 and 0."""
    for path in _list_switches(merged, ()):
        place = SchemaPlace.root().descend(path)
        if place is not None and place.counts:
            yield path


def _list_switches(value: object, path: KeyPath) -> Iterator[KeyPath]:
    if isinstance(value, bool):
        yield path
    elif isinstance(value, dict):
        for key, one in cast("dict[str, object]", value).items():
            yield from _list_switches(one, (*path, key))
    elif isinstance(value, list):
        for at, one in enumerate(cast("list[object]", value)):
            yield from _list_switches(one, (*path, at))
