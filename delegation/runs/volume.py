"""How much a run brings in all: the bytes of its artifacts, and the memory that its task uses in this process.

The memory is more: many small pieces, data and metadata take more than their text. An agent that exceeds its limit is
cancelled, and its run fails as ``artifact_too_large``. Its output until then is stored and can be read.
``delegation.runs.read_scheduler`` limits what a run brings per second.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import orjson

from passerelle.a2a_mapping.long_task import measure_artifact, measure_part
from passerelle.a2a_mapping.members import object_at, objects_at, text_at
from passerelle.core.errors import ArtifactTooLarge
from passerelle.core.wire.record import value

if TYPE_CHECKING:
    from passerelle.core.wire.json import Json, JsonObject

_MIB: Final = 1024 * 1024
LARGE_BYTES: Final = _MIB
"""From this size on a Task is written, and read, piece by piece."""
_OBJECT_BYTES: Final = 256
"""Memory of a part apart from its content: even a piece of two letters takes it."""
_JSON_TIMES: Final = 4
"""As objects, JSON takes this many times its length."""
_SAYING: Final = ("text", "raw", "url")
_HOLDING: Final = ("data", "metadata")


@value
class OutputLimits:
    """Limits of an agent's output, in bytes or per second of one run; the names are those of the settings."""

    artifact_bytes: int = 256 * _MIB
    task_bytes: int = 1024 * _MIB
    events_per_s: int = 1_000
    bytes_per_s: int = 16 * _MIB
    chunk_delay_ms: int = 50
    """How long a piece of an artifact may wait for others that are stored with it."""
    held_bytes: int = 1024 * _MIB
    """Memory that a process may use for one task: its whole memory budget."""


NO_LIMITS_OF_ITS_OWN: Final = OutputLimits()
"""The limits without settings."""


@value
class ContentSize:
    """``content_bytes``: the parts' content, as limits count it. ``memory_bytes``: about the memory that it takes."""

    content_bytes: int = 0
    memory_bytes: int = 0

    def exchange(self, before: ContentSize, now: ContentSize) -> ContentSize:
        """This sum after a part of it has changed from ``before`` to ``now``."""
        return ContentSize(
            self.content_bytes - before.content_bytes + now.content_bytes,
            self.memory_bytes - before.memory_bytes + now.memory_bytes,
        )


_NOTHING: Final = ContentSize()
_METADATA: Final = None
"""The key for the metadata of the task in place of an artifact's name."""


@dataclass(slots=True)
class Volume:
    """The stored sizes of a run by the agent's artifact ids; ``total`` is their sum."""

    sizes: dict[str | None, ContentSize] = field(default_factory=dict["str | None", ContentSize])
    total: ContentSize = _NOTHING
    metadata_bytes: int = 0
    """Size of the metadata of the task when it was last measured."""

    def set(self, name: str | None, size: ContentSize) -> None:
        """Sets the present size of an artifact."""
        self.total = self.total.exchange(self.sizes.get(name, _NOTHING), size)
        self.sizes[name] = size


@dataclass(slots=True)
class Growth:
    """What a decision adds to a volume, which stays unchanged until the decision is stored."""

    volume: Volume
    limits: OutputLimits
    sizes: dict[str | None, ContentSize] = field(default_factory=dict["str | None", ContentSize])
    _total: ContentSize | None = None

    @property
    def total(self) -> ContentSize:
        """The size of the run including this growth."""
        return self.volume.total if self._total is None else self._total

    def take(self, artifact: JsonObject, *, appends: bool = False) -> None:
        """Counts an artifact, or a piece of one that ``appends``.

        Raises:
            ArtifactTooLarge: it, or all of them together, exceeds the limit.
        """
        name = text_at(artifact, "artifactId")
        size, known = measure_size(artifact), self._find(name)
        if appends:
            size = ContentSize(
                known.content_bytes + size.content_bytes, known.memory_bytes + size.memory_bytes
            )
        if size.content_bytes > self.limits.artifact_bytes:
            raise ArtifactTooLarge(
                f"artifact {name[:60]!r} (artifact_bytes)", self.limits.artifact_bytes
            )
        self._set(name, known, size)

    def take_metadata(self, brought: JsonObject, task: JsonObject) -> None:
        """Counts the metadata of an update of ``task``, which contains it already.

        Raises:
            ArtifactTooLarge: the memory of the task exceeds the limit.
        """
        known = self._find(_METADATA)
        held = known.memory_bytes + _measure_json(brought)
        # Most of it replaces earlier metadata. So all of it is measured again each time the sum has doubled.
        if held > 2 * self.volume.metadata_bytes:
            held = self.volume.metadata_bytes = _measure_json(object_at(task, "metadata"))
        self._set(_METADATA, known, ContentSize(0, held))

    def settle(self) -> None:
        """The growth is stored."""
        for name, size in self.sizes.items():
            self.volume.set(name, size)
        self.sizes, self._total = {}, None

    def _find(self, name: str | None) -> ContentSize:
        known = self.sizes.get(name)
        return known if known is not None else self.volume.sizes.get(name, _NOTHING)

    def _set(self, name: str | None, known: ContentSize, size: ContentSize) -> None:
        total = self.total.exchange(known, size)
        if total.content_bytes > self.limits.task_bytes:
            raise ArtifactTooLarge("all artifacts of the task (task_bytes)", self.limits.task_bytes)
        if total.memory_bytes > self.limits.held_bytes:
            raise ArtifactTooLarge(
                "the task, as it is held in memory (memory.budget_bytes)", self.limits.held_bytes
            )
        self._total = total
        self.sizes[name] = size


def measure_task(task: JsonObject | None) -> Volume:
    """The volume of a known Task."""
    volume = Volume()
    for artifact in objects_at(task or {}, "artifacts"):
        volume.set(text_at(artifact, "artifactId"), measure_size(artifact))
    volume.metadata_bytes = _measure_json(object_at(task or {}, "metadata"))
    volume.set(_METADATA, ContentSize(0, volume.metadata_bytes))
    return volume


def measure_size(artifact: JsonObject) -> ContentSize:
    """The content of an artifact, or of a piece of one, in bytes, and the memory of its objects."""
    content_bytes, memory_bytes = 0, _OBJECT_BYTES
    if "metadata" in artifact:
        memory_bytes += _measure_json(object_at(artifact, "metadata"))
    for part in objects_at(artifact, "parts"):
        content_bytes += measure_part(part)
        memory_bytes += _OBJECT_BYTES
        for name in _SAYING:
            if name in part:
                memory_bytes += sys.getsizeof(part[name])
        for name in _HOLDING:
            if name in part:
                memory_bytes += _measure_json(part[name])
    return ContentSize(content_bytes, memory_bytes)


def _measure_json(value: Json) -> int:
    """The approximate memory of a JSON value; zero for an empty one."""
    return _JSON_TIMES * len(orjson.dumps(value)) if value else 0


def measure_frame(frame: JsonObject) -> int:
    """The approximate bytes of a frame of an agent, in artifacts and in its message."""
    if "artifactUpdate" in frame:
        return measure_artifact(object_at(object_at(frame, "artifactUpdate"), "artifact"))
    task = object_at(frame, "task")
    status = object_at(task or object_at(frame, "statusUpdate"), "status")
    message = object_at(status, "message") or object_at(frame, "message")
    return measure_artifact(message) + sum(map(measure_artifact, objects_at(task, "artifacts")))
