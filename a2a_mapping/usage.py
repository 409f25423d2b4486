"""What an agent says that it used: tokens, in the metadata of its answer.

A2A has no field for it. Frameworks put a mapping under a name of their own, with one of a few spellings; the last one
that is found counts, since agents that stream report what has come together so far. Of kagent the sum over the task,
which stands under the address of its extension, counts before what it says of single answers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from passerelle.a2a_mapping.extensions import KAGENT_USAGE
from passerelle.a2a_mapping.members import object_at, objects_at

if TYPE_CHECKING:
    from collections.abc import Iterator

    from passerelle.core.wire.json import Json, JsonObject

_NAMES: Final = (
    "usage",
    "token_usage",
    "tokenUsage",
    "adk_usage_metadata",
    "kagent_usage_metadata",
    "usage_metadata",
)
_INPUT: Final = ("input_tokens", "inputTokens", "prompt_tokens", "promptTokens", "promptTokenCount")
_OUTPUT: Final = (
    "output_tokens",
    "outputTokens",
    "completion_tokens",
    "completionTokens",
    "candidatesTokenCount",
)
_LIMIT: Final = 10**12


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens that were read and written."""

    input_tokens: int
    output_tokens: int


def read_usage(answer: JsonObject) -> Usage | None:
    """The usage in a Task or a Message; None where there is none that can be read."""
    found: Usage | None = None
    whole: Usage | None = None
    for metadata in _list_metadata(answer):
        whole = _read_whole(object_at(metadata, KAGENT_USAGE)) or whole
        for name in _NAMES:
            found = _read(object_at(metadata, name)) or found
    return whole or found


def _list_metadata(answer: JsonObject) -> Iterator[JsonObject]:
    yield object_at(answer, "metadata")
    for artifact in objects_at(answer, "artifacts"):
        yield object_at(artifact, "metadata")
    yield object_at(object_at(object_at(answer, "status"), "message"), "metadata")


def _read_whole(usage: JsonObject) -> Usage | None:
    """The sum of kagent; what a model writes while it reasons is counted apart there, and was written all the same."""
    found = _read(usage)
    if found is None:
        return None
    return Usage(
        found.input_tokens, found.output_tokens + (_count(usage.get("reasoningTokens")) or 0)
    )


def _read(usage: JsonObject) -> Usage | None:
    read, written = _find(usage, _INPUT), _find(usage, _OUTPUT)
    if read is None and written is None:
        return None
    return Usage(read or 0, written or 0)


def _find(usage: JsonObject, names: tuple[str, ...]) -> int | None:
    return next((count for name in names if (count := _count(usage.get(name))) is not None), None)


def _count(value: Json) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _LIMIT:
        return None
    return int(value)
