"""Metadata of an agent's answers: the status of its work (EVC-5), and the tokens that it used.

All of it is optional. Readable values under known names are reported.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import orjson
from pydantic import TypeAdapter, ValidationError

from passerelle.a2a_mapping.extensions import KAGENT_USAGE
from passerelle.a2a_mapping.members import object_at, objects_at, text_at
from passerelle.core.frozen import frozen
from passerelle.core.task.status import OwnPhase

if TYPE_CHECKING:
    from collections.abc import Iterator

    from passerelle.core.wire.json import Json, JsonObject

METADATA_BYTES: Final = 2_048
"""Limit of metadata in a fact."""
TITLE_CHARS: Final = 200
DETAIL_CHARS: Final = 2_000
MOST_CHECKPOINTS: Final = 32
CHECKPOINT_CHARS: Final = 200
_PHASE: Final[TypeAdapter[str]] = TypeAdapter(OwnPhase)


@frozen
class StatusWords:
    """The members of a status's metadata; None if absent."""

    title: str | None = None
    detail: str | None = None
    phase: str | None = None
    checkpoints: tuple[str, ...] | None = None
    metadata: JsonObject | None = None


SILENT: Final = StatusWords()


def read_words(holder: JsonObject) -> StatusWords:
    """Reads the metadata of a status update, else that of its message, or of a Task's status message.

    The metadata itself is included, unless it is too large; the frame has it in any case.
    """
    update = "final" in holder or "taskId" in holder
    metadata = object_at(holder, "metadata") if update else {}
    if not metadata:
        metadata = object_at(object_at(object_at(holder, "status"), "message"), "metadata")
    if not metadata:
        return SILENT
    return StatusWords(
        title=text_at(metadata, "title")[:TITLE_CHARS] or None,
        detail=text_at(metadata, "detail")[:DETAIL_CHARS] or None,
        phase=_read_phase(metadata),
        checkpoints=_read_checkpoints(metadata),
        metadata=metadata if len(orjson.dumps(metadata)) <= METADATA_BYTES else None,
    )


def _read_phase(metadata: JsonObject) -> str | None:
    try:
        return _PHASE.validate_python(metadata["phase"]) if "phase" in metadata else None
    except ValidationError:
        return None


def _read_checkpoints(metadata: JsonObject) -> tuple[str, ...] | None:
    named = metadata.get("checkpoints")
    if not isinstance(named, list):
        return None
    texts = [one[:CHECKPOINT_CHARS] for one in named if isinstance(one, str) and one]
    return tuple(texts[:MOST_CHECKPOINTS]) or None


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


@frozen
class Usage:
    """Input and output tokens."""

    input_tokens: int
    output_tokens: int


def read_usage(answer: JsonObject) -> Usage | None:
    """The usage in a Task or a Message; None if there is none that can be read.

    A2A has no field for it. Frameworks put a mapping under a name of their own, in one of a few spellings. The last one
    counts, since streaming agents report running totals. For kagent the sum over the task, under the URI of its
    extension, takes precedence over its values for single answers.
    """
    found: Usage | None = None
    whole: Usage | None = None
    for metadata in filter(None, _list_metadata(answer)):
        whole = _read_whole(object_at(metadata, KAGENT_USAGE)) or whole
        for name in _NAMES:
            if name in metadata:
                found = _read(object_at(metadata, name)) or found
    return whole or found


def _list_metadata(answer: JsonObject) -> Iterator[JsonObject]:
    yield object_at(answer, "metadata")
    for artifact in objects_at(answer, "artifacts"):
        yield object_at(artifact, "metadata")
    yield object_at(object_at(object_at(answer, "status"), "message"), "metadata")


def _read_whole(usage: JsonObject) -> Usage | None:
    """The sum of kagent; it counts reasoning tokens separately, which are output tokens too."""
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
