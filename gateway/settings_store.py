"""Settings of a store that ``redis_url`` names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, TypeAlias, cast

from pydantic import BeforeValidator, Field, WithJsonSchema

from passerelle.gateway.settings_section import Section
from passerelle.runtime.common.durations import Duration, parse_duration
from passerelle.runtime.common.secret import Secret
from passerelle.store.info import StoreDurability

if TYPE_CHECKING:
    from collections.abc import Sequence


def _join(addresses: object) -> object:
    """A list in the file is what several addresses separated by commas are elsewhere."""
    if not isinstance(addresses, list | tuple):
        return addresses
    listed = cast("Sequence[object]", addresses)
    return ",".join(map(str, listed)) if all(isinstance(one, str) for one in listed) else listed


StoreUrl: TypeAlias = Annotated[
    Secret,
    BeforeValidator(_join),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string", "minLength": 1},
                {"type": "array", "minItems": 1, "items": {"type": "string", "minLength": 1}},
            ]
        }
    ),
]


class StoreSection(Section):
    """What is expected of the store that ``redis_url`` names."""

    durability: StoreDurability = Field(
        default="aof",
        description="What keeps what the server has acknowledged: `aof`, its append-only file, without which it is "
        "refused; `replicas`, the memory of at least one replica besides; `service`, the word of those who run it, and "
        "nothing is checked. [What each can lose](README.md#what-a-store-can-lose).",
    )
    wait: Duration = Field(
        default=parse_duration("60s"),
        json_schema_extra={"default": "60s"},
        description="How long the start waits for a server that does not answer, loads its data or has no primary; "
        "0s: not at all.",
    )
