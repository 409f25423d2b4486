"""The shape of JSON values, as ``orjson.loads`` returns them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    Json: TypeAlias = "dict[str, Json] | list[Json] | str | int | float | bool | None"
    JsonObject: TypeAlias = "dict[str, Json]"
else:
    # Codecs evaluate these at run time. They need resolvable names, and need not validate content that a JSON parser
    # has just made.
    Json = Any
    JsonObject = dict[str, Any]
