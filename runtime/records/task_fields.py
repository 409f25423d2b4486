"""Fields of a task's hash beside its record: who drives it, and the content that its callers see."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

from passerelle.core.batch import Incarnation

if TYPE_CHECKING:
    from collections.abc import Mapping

    from passerelle.core.task.record import ArtifactRef, TaskRecord
    from passerelle.core.wire.json import Json, JsonObject
    from passerelle.runtime.records.withheld import Withholding

OWNER: Final = "own"
"""The field of a task's hash that names its driver."""
LEASE: Final = "own"
"""The kind of the due row that stands while a run is driven."""
CONTENT: Final = "c"
"""The field with the content of an ended task: itself, or where it stands."""
IN_ENTRY: Final = b"="
"""The content stands whole in the last entry that callers saw."""
IN_BLOB: Final = b"blob:"
IN_PIECES: Final = b"long:"
"""The content is large: its size, a colon, its blob."""


class ContentReads(Protocol):
    """Folds the stored frames of a task."""

    async def fold_task(self, record: TaskRecord) -> Content:
        """The content as its callers see it."""
        ...

    async def read_turn(self, record: TaskRecord, turn_id: str) -> TurnInput | None:
        """The message of a turn of the task, and what was asked for beside it."""
        ...

    @property
    def withholding(self) -> Withholding:
        """Opens what nobody may keep."""
        ...


@dataclass(frozen=True, slots=True)
class SendOptions:
    """What a request with a further message said beside it: how its caller reads, and what its agent is told."""

    streams: bool = False
    options: JsonObject = field(default_factory=dict[str, "Json"])
    extensions: tuple[str, ...] = ()
    sealed: str | None = None
    """Where the message stands until it is sent, if nobody may keep it."""


@dataclass(frozen=True, slots=True)
class TurnInput:
    """A message to a task as its caller wrote it, and what was asked for beside it."""

    message: JsonObject
    send_options: SendOptions


@dataclass(frozen=True, slots=True)
class Content:
    """The Task as it was shown (None before the first Task frame), and the messages that were sent on it.

    ``frames`` are how many callers have seen: the generation that the Task has reached.
    """

    task: JsonObject | None
    accepted: tuple[JsonObject, ...]
    frames: int = 0
    catalogue: Mapping[str, ArtifactRef] = field(default_factory=dict[str, "ArtifactRef"])
    """The artifacts that the record does not name, where there are more."""
    moves: tuple[int, ...] = ()
    """When the run was taken over by another driver, in ms."""


def read_driver(fields: Mapping[str, bytes]) -> Incarnation | None:
    """Who drives a task, from the fields of its hash."""
    instance, dot, number = fields.get(OWNER, b"").decode().rpartition(".")
    return Incarnation(instance, int(number)) if dot and number.isdigit() else None
