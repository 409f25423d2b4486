"""Fields of a task's hash besides its record: its driver, and the content that callers see."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, Final, Protocol

from passerelle.core.batch import Incarnation
from passerelle.core.frozen import frozen

if TYPE_CHECKING:
    from collections.abc import Mapping

    from passerelle.core.task.record import ArtifactRef, TaskRecord
    from passerelle.core.wire.json import Json, JsonObject
    from passerelle.runtime.records.withheld import Withholding

OWNER: Final = "own"
"""The field of a task's hash that names its driver."""
LEASE: Final = "own"
"""The kind of the due row that exists while a run is driven."""
CONTENT: Final = "c"
"""The field with the content of an ended task: the content itself, or where it is stored."""
IN_ENTRY: Final = b"="
"""The content is complete in the last entry that callers saw."""
IN_BLOB: Final = b"blob:"
IN_PIECES: Final = b"long:"
"""The content is large: its size, a colon, its blob."""


class ContentReads(Protocol):
    """Folds the stored frames of a task."""

    async def fold_task(self, record: TaskRecord) -> Content:
        """The content as its callers see it."""
        ...

    async def read_turn(self, record: TaskRecord, turn_id: str) -> TurnInput | None:
        """The message of a turn of the task, with its send options."""
        ...

    @property
    def withholding(self) -> Withholding:
        """Reads withheld content."""
        ...


@frozen
class SendOptions:
    """The options of a request with a further message: how its caller reads the answer, and options for the agent."""

    streams: bool = False
    options: JsonObject = field(default_factory=dict[str, "Json"])
    extensions: tuple[str, ...] = ()
    sealed: str | None = None
    """Where the sealed message is stored until it is sent, if its content must not be kept."""


@frozen
class TurnInput:
    """A message to a task as its caller wrote it, with its send options."""

    message: JsonObject
    send_options: SendOptions


@frozen
class Content:
    """The Task as callers saw it (None before the first Task frame), and the messages that were sent on it.

    ``frames`` is the number of frames that callers have seen: the generation of the Task.
    """

    task: JsonObject | None
    accepted: tuple[JsonObject, ...]
    frames: int = 0
    catalogue: Mapping[str, ArtifactRef] = field(default_factory=dict[str, "ArtifactRef"])
    """The artifacts that the record does not name, if there are more than it keeps."""
    moves: tuple[int, ...] = ()
    """Times of takeovers of the run by another driver, in ms."""


def read_driver(fields: Mapping[str, bytes]) -> Incarnation | None:
    """The driver of a task, from the fields of its hash."""
    instance, dot, number = fields.get(OWNER, b"").decode().rpartition(".")
    return Incarnation(instance, int(number)) if dot and number.isdigit() else None
