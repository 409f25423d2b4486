"""The content of a task as its callers see it: folded from the stored frames, or read where its end has put it.

The peer is not asked, so it works while the peer is away, and after any restart.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, cast

import orjson

from passerelle.a2a_mapping.content import fold
from passerelle.a2a_mapping.history import complete_history
from passerelle.core.errors import StoreUnavailable
from passerelle.core.event_type import EventType
from passerelle.core.events import FRAME, decode_event
from passerelle.core.ids import TaskId, expose
from passerelle.core.payloads.conversation import TurnSubmitted
from passerelle.core.payloads.run import COPY, ArtifactChanged, RunStatus
from passerelle.core.ports.log import StreamKind, StreamRef
from passerelle.core.task_record import KEPT_ARTIFACTS
from passerelle.core.times import parse_ms
from passerelle.gateway.delegation.artifacts import Catalogued
from passerelle.gateway.delegation.run import CONTENT, IN_BLOB, IN_ENTRY, Content

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from passerelle.core.events import Event
    from passerelle.core.facts import Ref
    from passerelle.core.ids import Shard
    from passerelle.core.json import JsonObject
    from passerelle.core.ports.blobs import Blobs
    from passerelle.core.ports.log import Entry, EventLog
    from passerelle.core.task_record import TaskRecord

_PAGE: Final = 256
_TAKEN_OVER: Final = b'"takenOver":true'


@dataclass(frozen=True, slots=True)
class Contents:
    """Reads contents."""

    log: EventLog
    blobs: Blobs

    async def read_task(self, record: TaskRecord, fields: Mapping[str, bytes]) -> JsonObject | None:
        """The Task of a record whose hash has ``fields``; None while callers see none."""
        if not record.shown:
            return None
        kept = fields.get(CONTENT)
        if kept is None:
            return (await self.fold_task(record)).task
        if kept == IN_ENTRY:
            entries = await self.log.read_page(_stream(record), record.shown_to - 1, 1)
            frame = await self.read_frame(entries[0], place_of(record)) if entries else None
            return cast("JsonObject", frame["task"]) if frame else None
        if kept.startswith(IN_BLOB):
            return cast(
                "JsonObject", orjson.loads(await self._fetch(place_of(record), kept[5:].decode()))
            )
        return cast("JsonObject", orjson.loads(kept))

    async def read_turn(self, record: TaskRecord, turn_id: str) -> JsonObject | None:
        """The message of a turn of the task, as its caller wrote it."""
        async for turn, message in self.list_turns(record):
            if turn == turn_id:
                return message
        return None

    async def list_turns(self, record: TaskRecord) -> AsyncIterator[tuple[str, JsonObject]]:
        """The turns of the task and their messages, in order."""
        async for entry in self._walk(record):
            if entry.type == EventType.TURN_SUBMITTED:
                event = decode_event(entry.data)
                if event.fact.scope.task_id == record.task_id:
                    message = await self.read_message(event, place_of(record))
                    yield event.fact.scope.turn_id or "", message

    async def read_answer(self, record: TaskRecord) -> JsonObject | None:
        """The bare Message with which a peer answered instead of a task."""
        facade = expose(TaskId(record.task_id), record.exposure)
        async for entry in self._walk(record):
            if entry.facade == facade:
                frame = await self.read_frame(entry, place_of(record))
                if frame is not None and "message" in frame:
                    return cast("JsonObject", frame["message"])
        return None

    async def fold_task(self, record: TaskRecord) -> Content:
        """The content folded from every stored frame of the task's current exposure."""
        facade = expose(TaskId(record.task_id), record.exposure)
        task: JsonObject | None = None
        accepted: list[JsonObject] = []
        frames = 0
        catalogue: dict[str, Catalogued] = {}
        moves: list[int] = []
        async for entry in self._walk(record):
            if entry.type == EventType.RUN_STATUS and _TAKEN_OVER in entry.data:
                moves += _list_moves(decode_event(entry.data), record)
            elif entry.type == EventType.TURN_SUBMITTED:
                event = decode_event(entry.data)
                if event.fact.scope.task_id != record.task_id:
                    continue
                accepted.append(await self.read_message(event, place_of(record)))
            elif entry.facade == facade:
                frame = await self.read_frame(entry, place_of(record))
                if frame is not None:
                    task = fold(task, frame)
                    frames += "message" not in frame
            if entry.type == EventType.ARTIFACT_CHANGED and record.artifact_count > KEPT_ARTIFACTS:
                _catalogue(catalogue, decode_event(entry.data), record)
            if task is not None and _is_said(entry, facade):
                # In the order in which it was said: what comes later goes behind what was accepted before.
                task = complete_history(task, accepted)
        return Content(task, tuple(accepted), frames, catalogue, tuple(moves))

    async def find_ref(self, record: TaskRecord, sha256: str) -> tuple[str, Ref] | None:
        """The reference of a fact of the task to this content, with its name; None where no fact has one."""
        wanted = sha256.encode()
        async for entry in self._walk(record):
            if wanted not in entry.data:
                continue
            event = decode_event(entry.data)
            if event.fact.scope.task_id != record.task_id:
                continue
            for name, ref in event.fact.refs.items():
                if ref.blob == sha256:
                    return name, ref
        return None

    async def list_copies(self, record: TaskRecord) -> list[str]:
        """The copies of files that facts of the task name, each once."""
        found: dict[str, None] = {}
        async for entry in self._walk(record):
            if entry.type == EventType.ARTIFACT_CHANGED:
                event = decode_event(entry.data)
                if event.fact.scope.task_id == record.task_id:
                    refs = event.fact.refs.items()
                    found |= {
                        ref.blob: None for name, ref in refs if name.startswith(COPY) and ref.blob
                    }
        return [*found]

    async def _walk(self, record: TaskRecord) -> AsyncIterator[Entry]:
        after = record.first - 1
        while after < record.last:
            entries = await self.log.read_page(_stream(record), after, _PAGE)
            if not entries:
                return
            for entry in entries:
                if entry.sequence > record.last:
                    return
                yield entry
            after = entries[-1].sequence

    async def read_frame(self, entry: Entry, shard: Shard) -> JsonObject | None:
        """The A2A frame of an entry, wherever it stands."""
        if entry.frame is not None:
            offset, length = entry.frame
            return cast("JsonObject", orjson.loads(entry.data[offset : offset + length]))
        ref = decode_event(entry.data).fact.refs.get(FRAME)
        if ref is None or ref.blob is None:
            return None
        return cast("JsonObject", orjson.loads(await self._fetch(shard, ref.blob)))

    async def read_message(self, event: Event, shard: Shard) -> JsonObject:
        """The message of a submitted turn, wherever it stands."""
        payload = event.fact.payload
        if isinstance(payload, TurnSubmitted) and payload.message is not None:
            return payload.message
        ref = event.fact.refs.get("input")
        if ref is None or ref.blob is None:
            return {}
        return cast("JsonObject", orjson.loads(await self._fetch(shard, ref.blob)))

    async def _fetch(self, shard: Shard, sha256: str) -> bytes:
        content = await self.blobs.get(shard, sha256)
        if content is None:
            raise StoreUnavailable(f"blob {sha256[:12]} is missing", "no")
        return content


def _list_moves(event: Event, record: TaskRecord) -> list[int]:
    """The time of a fact that says that another driver has the run of the task, in ms."""
    said = event.fact.payload
    is_move = isinstance(said, RunStatus) and said.taken_over
    return (
        [parse_ms(event.timestamp)]
        if is_move and event.fact.scope.task_id == record.task_id
        else []
    )


def _catalogue(known: dict[str, Catalogued], event: Event, record: TaskRecord) -> None:
    changed = event.fact.payload
    if isinstance(changed, ArtifactChanged) and event.fact.scope.task_id == record.task_id:
        found = Catalogued(changed.artifact_id, changed.version, changed.sha256)
        known[changed.name_at_peer] = found


def place_of(record: TaskRecord) -> Shard:
    """The shard of a task."""
    return _stream(record).shard


def _stream(record: TaskRecord) -> StreamRef:
    return StreamRef(StreamKind.SESSION, record.session_id)


def _is_said(entry: Entry, facade: str) -> bool:
    """Whether an entry may add to the history: a message to the task, or a frame of it."""
    return entry.type == EventType.TURN_SUBMITTED or entry.facade == facade
