"""What an agent says of its status beside its words: members that stand in the metadata of a status (EVC-5).

Nobody has to write them. What is there under one of the names and can be read is told as such; the metadata itself goes
along, unless it is too large: it stands in the frame in any case.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import orjson
from pydantic import TypeAdapter, ValidationError

from passerelle.a2a_mapping.members import object_at, text_at
from passerelle.core.task.status import OwnPhase

if TYPE_CHECKING:
    from passerelle.core.wire.json import JsonObject

METADATA_BYTES: Final = 2_048
"""Of metadata that goes along with a fact."""
TITLE_CHARS: Final = 200
DETAIL_CHARS: Final = 2_000
MOST_CHECKPOINTS: Final = 32
CHECKPOINT_CHARS: Final = 200
_PHASE: Final[TypeAdapter[str]] = TypeAdapter(OwnPhase)


@dataclass(frozen=True, slots=True)
class StatusWords:
    """What a status says of itself; None of each where it says nothing."""

    title: str | None = None
    detail: str | None = None
    phase: str | None = None
    checkpoints: tuple[str, ...] | None = None
    metadata: JsonObject | None = None


SILENT: Final = StatusWords()


def read_words(holder: JsonObject) -> StatusWords:
    """Reads the metadata of a status update, else that of the message in the status of it or of a Task."""
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
