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

    @property
    def holds_path(self) -> bool:
        """Whether its value is a path of a file or folder."""
        options = cast("list[JsonObject]", self.schema.get("anyOf", [self.schema]))
        return any(option.get("format") == "path" for option in options)

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


_SWITCH: Final = "should be a number; YAML reads a bare yes, no, on or off as true or false"
_NO_PATH: Final = "should be a path; leave the key out for none"


def find_misread(merged: dict[str, object]) -> Iterator[tuple[KeyPath, str]]:
    """Values that pydantic reads as others: true and false for a number as 1 and 0, an empty path as ``.``."""
    for path, value in _list_values(merged, ()):
        if not isinstance(value, bool) and value != "":
            continue
        place = SchemaPlace.root().descend(path)
        if place is None:
            continue
        if isinstance(value, bool) and place.counts:
            yield path, _SWITCH
        elif value == "" and place.holds_path:
            yield path, _NO_PATH


def _list_values(value: object, path: KeyPath) -> Iterator[tuple[KeyPath, object]]:
    if isinstance(value, dict):
        for key, one in cast("dict[str, object]", value).items():
            yield from _list_values(one, (*path, key))
    elif isinstance(value, list):
        for at, one in enumerate(cast("list[object]", value)):
            yield from _list_values(one, (*path, at))
    else:
        yield path, value
