"""How much a run has brought: the bytes of each of its artifacts, and of all of them.

Pure. An agent that brings more than its limit is told to stop, and its run fails as ``artifact_too_large``. What came
until then is stored and can be read. What is counted is the content of parts.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from passerelle.a2a_mapping.long_task import measure_artifact
from passerelle.a2a_mapping.members import object_at, objects_at, text_at
from passerelle.core.errors import ArtifactTooLarge
from passerelle.core.record import value

if TYPE_CHECKING:
    from passerelle.core.json import JsonObject

_MIB: Final = 1024 * 1024
LARGE_BYTES: Final = _MIB
"""From here on a Task is written, and read, piece by piece."""


@value
class OutputLimits:
    """What an agent may bring, in bytes and of one run in a second; the names are those of the settings."""

    artifact_bytes: int = 256 * _MIB
    task_bytes: int = 1024 * _MIB
    events_per_s: int = 1_000
    bytes_per_s: int = 16 * _MIB


NO_LIMITS_OF_ITS_OWN: Final = OutputLimits()
"""Where the settings say nothing."""


@dataclass(slots=True)
class Volume:
    """What is stored of a run by the names of its artifacts at the agent; ``total`` is the sum."""

    sizes: dict[str, int] = field(default_factory=dict[str, int])
    total: int = 0

    def set(self, name: str, size: int) -> None:
        """An artifact has this size now."""
        self.total += size - self.sizes.get(name, 0)
        self.sizes[name] = size


@dataclass(slots=True)
class Growth:
    """What a decision adds to a volume, which stays as it is until that is stored."""

    volume: Volume
    limits: OutputLimits
    sizes: dict[str, int] = field(default_factory=dict[str, int])
    added: int = 0

    @property
    def total(self) -> int:
        """Of the run, with what is added."""
        return self.volume.total + self.added

    def take(self, artifact: JsonObject, *, appends: bool = False) -> None:
        """Counts an artifact, or a piece of one that ``appends``.

        Raises:
            ArtifactTooLarge: it, or all of them together, is beyond the limit.
        """
        name = text_at(artifact, "artifactId")
        known = self.sizes.get(name)
        if known is None:
            known = self.volume.sizes.get(name, 0)
        size = measure_artifact(artifact) + (known if appends else 0)
        if size > self.limits.artifact_bytes:
            raise ArtifactTooLarge(
                f"artifact {name[:60]!r} (artifact_bytes)", self.limits.artifact_bytes
            )
        if self.total + size - known > self.limits.task_bytes:
            raise ArtifactTooLarge("all artifacts of the task (task_bytes)", self.limits.task_bytes)
        self.added += size - known
        self.sizes[name] = size

    def settle(self) -> None:
        """It is stored."""
        for name, size in self.sizes.items():
            self.volume.set(name, size)
        self.sizes, self.added = {}, 0


def measure_task(task: JsonObject | None) -> Volume:
    """The volume of a Task that is known already."""
    volume = Volume()
    for artifact in objects_at(task or {}, "artifacts"):
        volume.set(text_at(artifact, "artifactId"), measure_artifact(artifact))
    return volume


def measure_frame(frame: JsonObject) -> int:
    """Bytes that a frame of an agent brings in artifacts and in its message, roughly."""
    piece = object_at(object_at(frame, "artifactUpdate"), "artifact")
    if piece:
        return measure_artifact(piece)
    task = object_at(frame, "task")
    status = object_at(task or object_at(frame, "statusUpdate"), "status")
    said = object_at(status, "message") or object_at(frame, "message")
    return measure_artifact(said) + sum(map(measure_artifact, objects_at(task, "artifacts")))
