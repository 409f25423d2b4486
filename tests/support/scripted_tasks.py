"""The tasks of the scripted peer and the operations of its scripts, without a socket."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from copy import deepcopy
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final, TypeAlias, cast

from passerelle.core.wire.json import Json, JsonObject

TERMINAL: Final = frozenset({"COMPLETED", "FAILED", "CANCELED", "REJECTED"})
INTERRUPTED: Final = frozenset({"INPUT_REQUIRED", "AUTH_REQUIRED"})
_PREFIX: Final = "TASK_STATE_"
_EPOCH: Final = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class ScriptedFrame:
    """One StreamResponse: ``{"task": …}``, ``{"statusUpdate": …}``, ``{"message": …}`` or anything else."""

    result: JsonObject


@dataclass(frozen=True, slots=True)
class Raw:
    """Bytes in place of a frame, written unchanged."""

    content: bytes


@dataclass(frozen=True, slots=True)
class ScriptedFault:
    """A JSON-RPC error; ends the answer."""

    code: int
    message: str


@dataclass(frozen=True, slots=True)
class Drop:
    """Cuts the TCP connection of each current reader."""


@dataclass(frozen=True, slots=True)
class End:
    """The end of the script: the stream of its request closes normally."""


ScriptedItem: TypeAlias = ScriptedFrame | Raw | ScriptedFault | Drop | End


class Transcript:
    """All items in order; any number of readers follow from any position."""

    def __init__(self) -> None:
        self.items: list[ScriptedItem] = []
        self._grew = asyncio.Event()

    def write(self, item: ScriptedItem) -> None:
        self.items.append(item)
        self._grew.set()
        self._grew = asyncio.Event()

    async def read(self, position: int) -> ScriptedItem:
        """The item at ``position``, waiting for it."""
        while len(self.items) <= position:
            await self._grew.wait()
        return self.items[position]


class TurnGate:
    """Open until it is closed; then it admits as many as ``admit`` allows."""

    def __init__(self) -> None:
        self._left: int | None = None
        self._changed = asyncio.Event()

    async def enter(self) -> None:
        while self._left == 0:
            await self._changed.wait()
        if self._left is not None:
            self._left -= 1

    def close(self) -> None:
        self._left = self._left or 0

    def admit(self, steps: int) -> None:
        if self._left is None:
            raise RuntimeError("release without hold")
        self._set(self._left + steps)

    def open(self) -> None:
        self._set(None)

    def _set(self, left: int | None) -> None:
        self._left = left
        self._changed.set()
        self._changed = asyncio.Event()


class Ticks:
    """Time and numbers of one peer. They only increase, so a test can name the first task of a peer."""

    def __init__(self) -> None:
        self._ticks = 0

    def skip(self, ticks: int) -> None:
        """Skips ticks, as a restarted peer does."""
        self._ticks += ticks

    def stamp(self) -> str:
        self._ticks += 1
        moment = _EPOCH + timedelta(milliseconds=self._ticks)
        return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")

    def number(self) -> int:
        self._ticks += 1
        return self._ticks


@dataclass
class RemoteTask:
    """One task of the peer. Each operation changes ``record`` and notifies readers; tests may call them too."""

    record: JsonObject
    transcript: Transcript
    ticks: Ticks
    keeps_history: bool = True
    repeat: int = 1
    """Number of times that each frame is written: 2 creates duplicates."""
    forgotten: bool = False
    """The peer answers as if the task did not exist."""
    finished: asyncio.Event = field(default_factory=asyncio.Event)
    saved: Callable[[RemoteTask], None] = lambda _task: None
    """Updates the record before readers are notified."""

    @property
    def id(self) -> str:
        return str(self.record["id"])

    @property
    def context_id(self) -> str:
        return str(self.record["contextId"])

    @property
    def state(self) -> str:
        """Without its prefix: ``WORKING``."""
        return state_of(self.record)

    def tell(self, frame: JsonObject) -> None:
        """Writes any frame without changing the record."""
        self.saved(self)
        for _ in range(self.repeat):
            self.transcript.write(ScriptedFrame(frame))

    def show(self) -> None:
        """Writes the whole Task as a frame."""
        self.tell({"task": deepcopy(self.record)})

    def status(self, state: str, text: str | None = None, parts: list[Json] | None = None) -> None:
        """A status update; ``state`` without prefix, or any text that begins with ``TASK_STATE_``."""
        old = cast("JsonObject", self.record["status"])
        if "message" in old:
            self.remember(cast("JsonObject", old["message"]))
        full = state if state.startswith(_PREFIX) else _PREFIX + state
        status: JsonObject = {"state": full, "timestamp": self.ticks.stamp()}
        shown: list[Json] = [] if text is None else [{"text": text}]
        shown += parts or []
        if shown:
            status["message"] = self.message(shown)
        self.record["status"] = status
        update: JsonObject = {"taskId": self.id, "contextId": self.context_id, "status": status}
        self.tell({"statusUpdate": deepcopy(update)})
        if self.state in TERMINAL:
            self.finished.set()

    def artifact(
        self,
        parts: list[Json],
        *,
        artifact_id: str = "artifact-1",
        name: str = "result",
        append: bool = False,
        last: bool = True,
    ) -> None:
        """An artifact update; ``append`` adds the parts to what the artifact has."""
        known = cast("list[JsonObject]", self.record.setdefault("artifacts", []))
        found = next((one for one in known if one["artifactId"] == artifact_id), None)
        if append and found is not None:
            cast("list[Json]", found["parts"]).extend(deepcopy(parts))
        else:
            made: JsonObject = {"artifactId": artifact_id, "name": name, "parts": deepcopy(parts)}
            known[:] = [one for one in known if one is not found] + [made]
        sent: JsonObject = {"artifactId": artifact_id, "name": name, "parts": deepcopy(parts)}
        self.tell(
            {
                "artifactUpdate": {
                    "taskId": self.id,
                    "contextId": self.context_id,
                    "artifact": sent,
                    "append": append,
                    "lastChunk": last,
                }
            }
        )

    def message(self, parts: list[Json]) -> JsonObject:
        """An agent message about this task."""
        return {
            "messageId": f"{self.id}-message-{self.ticks.number()}",
            "role": "ROLE_AGENT",
            "taskId": self.id,
            "contextId": self.context_id,
            "parts": parts,
        }

    def remember(self, message: JsonObject) -> None:
        """Adds a message to the history, unless this peer keeps none."""
        if self.keeps_history:
            cast("list[Json]", self.record.setdefault("history", [])).append(deepcopy(message))


@dataclass
class Turn:
    """One received message, and the operations of its script.

    While the peer is held, each operation waits for a release.
    """

    message: JsonObject
    context_id: str
    task: RemoteTask | None
    transcript: Transcript
    start: int
    """Start of this turn in the transcript, which all turns of a task share."""
    wait_for_release: Callable[[], Awaitable[None]]
    make_task: Callable[[Turn], RemoteTask]

    @property
    def text(self) -> str:
        """All text parts, joined by spaces."""
        parts = cast("list[JsonObject]", self.message.get("parts", []))
        return " ".join(str(part["text"]) for part in parts if "text" in part)

    @property
    def argument(self) -> str:
        """The text after its first word."""
        return self.text.partition(" ")[2]

    async def answer(self, text: str) -> None:
        """A bare Message; it names the task if there is one."""
        await self.wait_for_release()
        message: JsonObject = {
            "messageId": f"{self.context_id}-message-{len(self.transcript.items)}",
            "role": "ROLE_AGENT",
            "contextId": self.context_id,
            "parts": [{"text": text}],
        }
        if self.task is not None:
            message["taskId"] = self.task.id
        self.transcript.write(ScriptedFrame({"message": message}))

    async def open(self) -> RemoteTask:
        """The task of this turn; creates it as SUBMITTED if there is none."""
        if self.task is None:
            await self.wait_for_release()
            self.task = self.make_task(self)
            self.task.show()
        return self.task

    async def status(
        self, state: str, text: str | None = None, parts: list[Json] | None = None
    ) -> None:
        task = await self.open()
        await self.wait_for_release()
        task.status(state, text, parts)

    async def artifact(
        self, text: str, *, artifact_id: str = "artifact-1", append: bool = False, last: bool = True
    ) -> None:
        """An artifact with one text part."""
        task = await self.open()
        await self.wait_for_release()
        task.artifact([{"text": text}], artifact_id=artifact_id, append=append, last=last)

    async def tell(self, frame: JsonObject) -> None:
        """Any frame."""
        await self.wait_for_release()
        self.transcript.write(ScriptedFrame(frame))

    async def write(self, content: bytes) -> None:
        """Bytes in place of a frame. In an event stream they must contain the blank line that ends an event."""
        await self.wait_for_release()
        self.transcript.write(Raw(content))

    async def refuse(self, code: int, message: str) -> None:
        await self.wait_for_release()
        self.transcript.write(ScriptedFault(code, message))

    async def drop(self) -> None:
        await self.wait_for_release()
        self.transcript.write(Drop())


TurnScript: TypeAlias = Callable[[Turn], Awaitable[None]]


def state_of(record: Json) -> str:
    """The state in a Task or a status update, without its prefix; empty when there is none."""
    match record:
        case {"status": {"state": str() as state}}:
            return state.removeprefix(_PREFIX)
        case _:
            return ""


def rests(frame: JsonObject) -> bool:
    """Whether a frame reports that the task has ended or waits."""
    state = state_of(frame.get("task")) or state_of(frame.get("statusUpdate"))
    return state in TERMINAL | INTERRUPTED


def ends(frame: JsonObject) -> bool:
    """Whether a frame reports that the task has ended."""
    state = state_of(frame.get("task")) or state_of(frame.get("statusUpdate"))
    return state in TERMINAL
