"""How much a run brings, in all and in a time, and which run is read next.

*In all*: the bytes of its artifacts, and what this process holds of its task, which is more: many small pieces, data
and metadata take memory beside what they say. An agent that brings more than its limit is told to stop, and its run
fails as ``artifact_too_large``. What came until then is stored and can be read.

*In a time*: a run may bring a second's worth at once. Beyond that its stream is read no faster than its rate, so the
agent feels it.

*Next*: runs that bring much take turns, one batch of frames in every few turns of the event loop. Turns go round
callers, then the agents of a caller, then the runs at an agent: twenty runs of one caller have together what one run of
another caller has. A run that brings little never waits here. Events per run do not tell what brings much: many runs,
each of them slow, take the process together. So a run takes turns when more has come than its last batch has taken, or
when the runs of its caller together bring more than a fixed amount; and only while somebody is there who brings little:
turns keep appends apart that would share an exchange with the store, and are of no use among those who all bring much.
"""

from __future__ import annotations

import asyncio
import sys
from collections import OrderedDict, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Generic, TypeVar

import orjson

from passerelle.a2a_mapping.long_task import measure_artifact, measure_part
from passerelle.a2a_mapping.members import object_at, objects_at, text_at
from passerelle.core.errors import ArtifactTooLarge
from passerelle.core.wire.record import value

if TYPE_CHECKING:
    from passerelle.core.wire.json import Json, JsonObject

_MIB: Final = 1024 * 1024
LARGE_BYTES: Final = _MIB
"""From here on a Task is written, and read, piece by piece."""
_OBJECT_BYTES: Final = 256
"""What a part takes beside what it says: a piece of two letters is no smaller."""
_JSON_TIMES: Final = 4
"""As objects, JSON takes so many times its length."""
_SAYING: Final = ("text", "raw", "url")
_HOLDING: Final = ("data", "metadata")
_BURST_S: Final = 1.0
QUIET_EVENTS: Final = 64
QUIET_BYTES: Final = 1024 * 1024
"""What the runs of a caller may bring within a second before each of them waits for its turn."""
_MOST_CALLERS: Final = 1024
"""Callers whose sums are kept; those that are loud are kept beyond it."""
_NEAR_S: Final = 10.0
"""For so long somebody is taken to be there after a request, or after an event of a run."""
_APART: Final = 8
"""Turns of the loop from one batch to the next. Others need some twenty for one answer; where nobody has anything to do
they take some µs each."""


@value
class OutputLimits:
    """What an agent may bring, in bytes and of one run in a second; the names are those of the settings."""

    artifact_bytes: int = 256 * _MIB
    task_bytes: int = 1024 * _MIB
    events_per_s: int = 1_000
    bytes_per_s: int = 16 * _MIB
    held_bytes: int = 1024 * _MIB
    """What a process may hold of one task: all of its memory budget."""


NO_LIMITS_OF_ITS_OWN: Final = OutputLimits()
"""Where the settings say nothing."""


@value
class Extent:
    """``said``: bytes of what parts say, as limits count them. ``held``: the memory that all of it takes, roughly."""

    said: int = 0
    held: int = 0

    def exchange(self, before: Extent, now: Extent) -> Extent:
        """What this sum is where a part of it was ``before`` and is ``now``."""
        return Extent(self.said - before.said + now.said, self.held - before.held + now.held)


_NOTHING: Final = Extent()
_METADATA: Final = None
"""In the place of a name: the metadata of the task."""


@dataclass(slots=True)
class Volume:
    """What is stored of a run by the names of its artifacts at the agent; ``total`` is the sum."""

    extents: dict[str | None, Extent] = field(default_factory=dict["str | None", Extent])
    total: Extent = _NOTHING
    metadata_bytes: int = 0
    """Of the metadata of the task, when it was measured last."""

    def set(self, name: str | None, extent: Extent) -> None:
        """An artifact has this extent now."""
        self.total = self.total.exchange(self.extents.get(name, _NOTHING), extent)
        self.extents[name] = extent


@dataclass(slots=True)
class Growth:
    """What a decision adds to a volume, which stays as it is until that is stored."""

    volume: Volume
    limits: OutputLimits
    extents: dict[str | None, Extent] = field(default_factory=dict["str | None", Extent])
    _total: Extent | None = None

    @property
    def total(self) -> Extent:
        """Of the run, with what is added."""
        return self.volume.total if self._total is None else self._total

    def take(self, artifact: JsonObject, *, appends: bool = False) -> None:
        """Counts an artifact, or a piece of one that ``appends``.

        Raises:
            ArtifactTooLarge: it, or all of them together, is beyond the limit.
        """
        name = text_at(artifact, "artifactId")
        extent, known = measure_extent(artifact), self._find(name)
        if appends:
            extent = Extent(known.said + extent.said, known.held + extent.held)
        if extent.said > self.limits.artifact_bytes:
            raise ArtifactTooLarge(
                f"artifact {name[:60]!r} (artifact_bytes)", self.limits.artifact_bytes
            )
        self._set(name, known, extent)

    def take_metadata(self, brought: JsonObject, task: JsonObject) -> None:
        """Counts what an update brings to the metadata of ``task``, which has it already.

        Raises:
            ArtifactTooLarge: what is held of the task is beyond the limit.
        """
        known = self._find(_METADATA)
        held = known.held + _measure_json(brought)
        # Most of it takes the place of what was there. That costs a look at all of it, each time the sum has doubled.
        if held > 2 * self.volume.metadata_bytes:
            held = self.volume.metadata_bytes = _measure_json(object_at(task, "metadata"))
        self._set(_METADATA, known, Extent(0, held))

    def settle(self) -> None:
        """It is stored."""
        for name, extent in self.extents.items():
            self.volume.set(name, extent)
        self.extents, self._total = {}, None

    def _find(self, name: str | None) -> Extent:
        known = self.extents.get(name)
        return known if known is not None else self.volume.extents.get(name, _NOTHING)

    def _set(self, name: str | None, known: Extent, extent: Extent) -> None:
        total = self.total.exchange(known, extent)
        if total.said > self.limits.task_bytes:
            raise ArtifactTooLarge("all artifacts of the task (task_bytes)", self.limits.task_bytes)
        if total.held > self.limits.held_bytes:
            raise ArtifactTooLarge(
                "the task, as it is held in memory (memory.budget_bytes)", self.limits.held_bytes
            )
        self._total = total
        self.extents[name] = extent


def measure_task(task: JsonObject | None) -> Volume:
    """The volume of a Task that is known already."""
    volume = Volume()
    for artifact in objects_at(task or {}, "artifacts"):
        volume.set(text_at(artifact, "artifactId"), measure_extent(artifact))
    volume.metadata_bytes = _measure_json(object_at(task or {}, "metadata"))
    volume.set(_METADATA, Extent(0, volume.metadata_bytes))
    return volume


def measure_extent(artifact: JsonObject) -> Extent:
    """What an artifact, or a piece of one, says, and what it takes as objects of this process."""
    said, held = 0, _OBJECT_BYTES
    if "metadata" in artifact:
        held += _measure_json(object_at(artifact, "metadata"))
    for part in objects_at(artifact, "parts"):
        said += measure_part(part)
        held += _OBJECT_BYTES
        for name in _SAYING:
            if name in part:
                held += sys.getsizeof(part[name])
        for name in _HOLDING:
            if name in part:
                held += _measure_json(part[name])
    return Extent(said, held)


def _measure_json(value: Json) -> int:
    """The memory of JSON of any form, roughly; of none nothing."""
    return _JSON_TIMES * len(orjson.dumps(value)) if value else 0


def measure_frame(frame: JsonObject) -> int:
    """Bytes that a frame of an agent brings in artifacts and in its message, roughly."""
    if "artifactUpdate" in frame:
        return measure_artifact(object_at(object_at(frame, "artifactUpdate"), "artifact"))
    task = object_at(frame, "task")
    status = object_at(task or object_at(frame, "statusUpdate"), "status")
    said = object_at(status, "message") or object_at(frame, "message")
    return measure_artifact(said) + sum(map(measure_artifact, objects_at(task, "artifacts")))


@dataclass(slots=True)
class ReadRate:
    """Events and bytes of one run. Each moves on a time at which all that came is paid for."""

    events_per_s: float
    bytes_per_s: float
    _events_at_s: float = 0.0
    _bytes_at_s: float = 0.0

    def count(self, events: int, size: int, now_s: float) -> None:
        """So much has come by now."""
        begin_s = now_s - _BURST_S
        self._events_at_s = max(self._events_at_s, begin_s) + events / self.events_per_s
        self._bytes_at_s = max(self._bytes_at_s, begin_s) + size / self.bytes_per_s

    def find_wait_s(self, now_s: float) -> float:
        """Seconds until more may come; none or less where it may now."""
        return max(self._events_at_s, self._bytes_at_s) - now_s


def name_caller(tenant: str, principal: str) -> str:
    """Under what name the share of a caller is counted."""
    return f"{tenant}/{principal}"


@dataclass(slots=True)
class CallerLoads:
    """What the runs of each caller bring together."""

    _sums: dict[str, ReadRate] = field(default_factory=dict[str, ReadRate])
    _quiet: OrderedDict[str, float] = field(default_factory=OrderedDict[str, float])
    """When callers who bring little were there last, the newest last."""

    def __len__(self) -> int:
        """How many are kept."""
        return len(self._sums)

    def count(self, caller: str, events: int, size: int, now_s: float) -> None:
        """So much has come for a caller by now."""
        rate = self._sums.get(caller)
        if rate is None:
            if len(self._sums) >= _MOST_CALLERS:
                self._forget(now_s)
            rate = self._sums[caller] = ReadRate(QUIET_EVENTS, QUIET_BYTES)
        rate.count(events, size, now_s)
        if rate.find_wait_s(now_s) > 0:
            self._quiet.pop(caller, None)
        else:
            self._note_quiet(caller, now_s)

    def note(self, caller: str, now_s: float) -> None:
        """A caller is there."""
        if not self.are_loud(caller, now_s):
            self._note_quiet(caller, now_s)

    def _note_quiet(self, caller: str, now_s: float) -> None:
        self._quiet[caller] = now_s
        self._quiet.move_to_end(caller)
        if len(self._quiet) > _MOST_CALLERS:
            self._quiet.popitem(last=False)

    def is_among_its_like(self, caller: str, now_s: float) -> bool:
        """Whether nobody else is there who brings little."""
        quiet = self._quiet
        while quiet:
            oldest = next(iter(quiet))
            if now_s - quiet[oldest] <= _NEAR_S:
                break
            del quiet[oldest]
        return not quiet or (len(quiet) == 1 and caller in quiet)

    def are_loud(self, caller: str, now_s: float) -> bool:
        """Whether it is so much that others notice it."""
        rate = self._sums.get(caller)
        return rate is not None and rate.find_wait_s(now_s) > 0

    def _forget(self, now_s: float) -> None:
        """Those that are not loud: a new sum says the same of them, or a little less."""
        self._sums = {
            caller: rate for caller, rate in self._sums.items() if rate.find_wait_s(now_s) > 0
        }


T = TypeVar("T")


@dataclass(slots=True)
class RoundRobin(Generic[T]):
    """Who waits, by caller and agent. Pure."""

    _callers: dict[str, dict[str, deque[T]]] = field(
        default_factory=dict[str, "dict[str, deque[T]]"]
    )

    def add(self, caller: str, agent: str, item: T) -> None:
        """One more, behind the others of its caller and agent."""
        self._callers.setdefault(caller, {}).setdefault(agent, deque()).append(item)

    def pop(self) -> T | None:
        """Whose turn it is; None where nobody waits. Its caller, and its agent there, come last from now on."""
        if not self._callers:
            return None
        caller = next(iter(self._callers))
        agents = self._callers.pop(caller)
        agent = next(iter(agents))
        line = agents.pop(agent)
        item = line.popleft()
        if line:
            agents[agent] = line
        if agents:
            self._callers[caller] = agents
        return item


class ReadScheduler:
    """The turns of one event loop. Who does not find anybody there has one at once."""

    def __init__(self) -> None:
        self._line: RoundRobin[asyncio.Future[None]] = RoundRobin()
        self._is_taken = False
        self.waiting = 0
        """How many wait for one."""
        self.sums = CallerLoads()
        """What callers bring; the reader of each stream counts it."""

    async def take(self, caller: str, agent: str) -> None:
        """Returns when it is the turn of a run of ``caller`` at ``agent``; a run has one place in the line at most."""
        loop = asyncio.get_running_loop()
        if not self._is_taken:
            self._is_taken = True
            loop.call_soon(self._pass_on, loop, _APART)
            return
        place: asyncio.Future[None] = loop.create_future()
        self._line.add(caller, agent, place)
        self.waiting += 1
        try:
            await place
        finally:
            self.waiting -= 1

    def _pass_on(self, loop: asyncio.AbstractEventLoop, left: int) -> None:
        """Once in so many turns of the loop, as long as somebody waits."""
        if left > 1:
            loop.call_soon(self._pass_on, loop, left - 1)
            return
        place = self._line.pop()
        while place is not None and place.done():
            # It was cancelled.
            place = self._line.pop()
        if place is None:
            self._is_taken = False
            return
        place.set_result(None)
        loop.call_soon(self._pass_on, loop, _APART)
