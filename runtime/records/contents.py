"""The content of a task as its callers see it: folded from the stored frames, or read from where its end has stored it.

The peer is not called, so reads work while the peer is down, and after any restart.
"""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, Final, cast

import orjson

from passerelle.a2a_mapping.content import fold, settle_status
from passerelle.a2a_mapping.history import complete_history
from passerelle.a2a_mapping.long_task import is_slim, slim_frame, write_slim_task
from passerelle.core.event_type import EventType
from passerelle.core.events import FRAME, decode_event
from passerelle.core.frozen import frozen
from passerelle.core.ids import TaskId, expose
from passerelle.core.payloads.conversation import TurnSubmitted
from passerelle.core.payloads.run import COPY, ArtifactChanged, RunStatus
from passerelle.core.ports.log import StreamKind, StreamRef
from passerelle.core.task.folds.relations import name_artifact
from passerelle.core.task.record import KEPT_ARTIFACTS
from passerelle.core.wire.long_json import LongJson, Slice
from passerelle.core.wire.record import change
from passerelle.core.wire.times import parse_ms
from passerelle.runtime.records.long_content import (
    LongContent,
    MissingContent,
    mark_message,
    mark_task,
)
from passerelle.runtime.records.task_fields import (
    CONTENT,
    IN_BLOB,
    IN_ENTRY,
    IN_PIECES,
    Content,
    SendOptions,
    TurnInput,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from passerelle.core.events import Event, Fact
    from passerelle.core.facts import Ref
    from passerelle.core.ids import Shard
    from passerelle.core.ports.blobs import Blobs
    from passerelle.core.ports.log import Entry, EventLog
    from passerelle.core.task.record import ArtifactRef, TaskRecord
    from passerelle.core.wire.json import JsonObject
    from passerelle.runtime.records.withheld import Withholding

_PAGE: Final = 256
_SLIM: Final = 4_096
_TAKEN_OVER: Final = b'"takenOver":true'


@frozen
class Contents:
    """Reads task contents from log and blob store."""

    log: EventLog
    blobs: Blobs
    withholding: Withholding
    _slim: dict[str, JsonObject] = field(default_factory=dict[str, "JsonObject"], repr=False)
    """Slim frames (parts left out) by blob hash: each subscriber of a large task reads all of them."""

    async def read_task(self, record: TaskRecord, fields: Mapping[str, bytes]) -> JsonObject | None:
        """The Task of a record whose hash has ``fields``; None if callers see none."""
        if not record.shown:
            return None
        kept = fields.get(CONTENT)
        try:
            return await self._read_kept(record, kept)
        except MissingContent:
            # Most of the content is in the frames as well, many of which are in the stream.
            return await self._fold_remaining(record)

    async def _read_kept(self, record: TaskRecord, kept: bytes | None) -> JsonObject | None:
        if kept is None:
            return (await self.fold_task(record)).task
        if kept == IN_ENTRY:
            frame = await self.log.read_frame(_stream(record), record.shown_to)
            return cast("JsonObject", orjson.loads(frame)["task"]) if frame else None
        if kept.startswith(IN_PIECES):
            long = self._find_long(record, kept)
            await self.peek(long, 1)
            return cast("JsonObject", orjson.loads(await long.read_whole()))
        if kept.startswith(IN_BLOB):
            return await self._load(shard_of_task(record), kept[5:].decode())
        return cast("JsonObject", orjson.loads(kept))

    async def _fold_remaining(self, record: TaskRecord) -> JsonObject:
        missing: list[str] = []
        facade = expose(TaskId(record.task_id), record.exposure)
        content = await self.fold_task(record, missing)
        if not missing and content.task is not None:
            return content.task
        return mark_task(content.task, facade, record, missing)

    def find_long(self, record: TaskRecord, fields: Mapping[str, bytes]) -> LongContent | None:
        """The stored Task of a record if it has ended and is large, else None."""
        kept = fields.get(CONTENT, b"")
        if not record.shown or not kept.startswith(IN_PIECES):
            return None
        return self._find_long(record, kept)

    def _find_long(self, record: TaskRecord, kept: bytes) -> LongContent:
        size, _, blob = kept.removeprefix(IN_PIECES).decode().partition(":")
        whole = Slice(blob, 0, int(size), blob)
        return LongContent(self.blobs, shard_of_task(record), LongJson((whole,)))

    async def read_turn(self, record: TaskRecord, turn_id: str) -> TurnInput | None:
        """The message of a turn of the task as its caller wrote it, with its send options."""
        named = turn_id.encode()
        async for entry in self._walk(record):
            if entry.type != EventType.TURN_SUBMITTED or named not in entry.data:
                continue
            event = decode_event(entry.data)
            fact, turn = event.fact, event.fact.payload
            if fact.scope.turn_id == turn_id and isinstance(turn, TurnSubmitted):
                shard = shard_of_task(record)
                send_options = await self._read_send_options(fact, turn, shard)
                return TurnInput(await self.read_message(event, shard), send_options)
        return None

    async def _read_send_options(
        self, fact: Fact, turn: TurnSubmitted, shard: Shard
    ) -> SendOptions:
        options, ref = turn.options, fact.refs.get("options")
        if ref is not None and ref.blob is not None:
            options = await self._load(shard, ref.blob)
        return SendOptions(turn.streams is True, options or {}, turn.extensions or (), turn.sealed)

    async def list_turns(self, record: TaskRecord) -> AsyncIterator[tuple[str, JsonObject]]:
        """The turns of the task with their messages, in order."""
        async for entry in self._walk(record):
            if entry.type == EventType.TURN_SUBMITTED:
                event = decode_event(entry.data)
                if event.fact.scope.task_id == record.task_id:
                    message = await self.read_message(event, shard_of_task(record))
                    yield event.fact.scope.turn_id or "", message

    async def read_answer(self, record: TaskRecord) -> JsonObject | None:
        """The Message with which a peer answered instead of a task; None if there is none."""
        facade = expose(TaskId(record.task_id), record.exposure)
        async for entry in self._walk(record):
            if entry.facade == facade:
                frame = await self.read_frame(entry, shard_of_task(record))
                if frame is not None and "message" in frame:
                    return cast("JsonObject", frame["message"])
        return None

    async def read_slim(
        self, record: TaskRecord, fields: Mapping[str, bytes]
    ) -> JsonObject | LongContent | None:
        """``read_task``, but large content stays in the blob store."""
        try:
            found = await self._read_slim(record, fields)
            if isinstance(found, LongContent):
                await found.require()
            return found
        except MissingContent:
            return await self.read_task(record, fields)

    async def _read_slim(
        self, record: TaskRecord, fields: Mapping[str, bytes]
    ) -> JsonObject | LongContent | None:
        if not record.shown or fields.get(CONTENT) is not None:
            long = self.find_long(record, fields)
            return long if long is not None else await self.read_task(record, fields)
        task = (await self.fold_task(record, slim=True)).task
        if task is None or not is_slim(task):
            return task
        return LongContent(self.blobs, shard_of_task(record), write_slim_task(task))

    async def fold_task(
        self, record: TaskRecord, missing: list[str] | None = None, *, slim: bool = False
    ) -> Content:
        """The content folded from every stored frame of the task's current exposure.

        With ``missing``, lost content is left out, and its hash is added to the list. ``slim``: parts in the blob store
        stay there, with ``Elsewhere`` in their place.

        Raises:
            MissingContent: without ``missing``, if the blob store has lost some content.
        """
        facade, shard = expose(TaskId(record.task_id), record.exposure), shard_of_task(record)
        task: JsonObject | None = None
        accepted: list[JsonObject] = []
        frames = 0
        catalogue: dict[str, ArtifactRef] = {}
        moves: list[int] = []
        async for entry in self._walk(record):
            if entry.type == EventType.RUN_STATUS and _TAKEN_OVER in entry.data:
                moves += _list_moves(decode_event(entry.data), record)
            elif entry.type == EventType.TURN_SUBMITTED:
                message = await self._read_accepted(entry, record, missing)
                if message is None:
                    continue
                accepted.append(message)
                task = settle_status(task) if task is not None else None
            elif entry.facade == facade:
                frame = await self._read_or_leave_out(entry, shard, missing, slim=slim)
                if frame is not None:
                    task = fold(task, frame)
                    frames += "message" not in frame
            if entry.type == EventType.ARTIFACT_CHANGED and record.artifact_count > KEPT_ARTIFACTS:
                _catalogue(catalogue, decode_event(entry.data), record)
            if task is not None and _adds_to_history(entry, facade):
                # In the order of the conversation: later frames come after the messages accepted before them.
                task = complete_history(task, accepted)
        return Content(task, tuple(accepted), frames, catalogue, tuple(moves))

    async def _read_accepted(
        self, entry: Entry, record: TaskRecord, missing: list[str] | None
    ) -> JsonObject | None:
        """The message of a submitted turn, or a mark in its place; None if it is of another task."""
        event = decode_event(entry.data)
        if event.fact.scope.task_id != record.task_id:
            return None
        try:
            return await self.read_message(event, shard_of_task(record))
        except MissingContent as error:
            if missing is None:
                raise
            missing.append(error.sha256)
            turn = event.fact.payload
            name = turn.message_id if isinstance(turn, TurnSubmitted) else ""
            return mark_message(error.sha256, name)

    async def _read_or_leave_out(
        self, entry: Entry, shard: Shard, missing: list[str] | None, *, slim: bool
    ) -> JsonObject | None:
        try:
            if slim:
                return await self._read_slim_frame(entry, shard)
            return await self.read_frame(entry, shard)
        except MissingContent as error:
            if missing is None:
                raise
            missing.append(error.sha256)
            return None

    async def name_artifacts(self, record: TaskRecord) -> TaskRecord:
        """The record as readers get it, with every artifact by reference: those only counted are read from events.

        Artifacts whose events are no longer in the stream stay counted. A record with all names costs no read.
        """
        if record.artifact_count <= len(record.artifacts):
            return record
        known: dict[str, ArtifactRef] = {}
        async for entry in self._walk(record):
            if entry.type == EventType.ARTIFACT_CHANGED:
                _catalogue(known, decode_event(entry.data), record)
        named = {one.name_at_peer for one in record.artifacts}
        rest = (one for name, one in known.items() if name not in named)
        return change(record, artifacts=(*record.artifacts, *rest))

    async def find_ref(self, record: TaskRecord, sha256: str) -> tuple[str, Ref] | None:
        """The reference of a fact of the task to this content, with its name; None if no fact has one."""
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
        """The file copies that facts of the task name, each once."""
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
        """The A2A frame of an entry, from the entry or the blob store."""
        if entry.frame is not None:
            offset, length = entry.frame
            return cast("JsonObject", orjson.loads(entry.data[offset : offset + length]))
        ref = decode_event(entry.data).fact.refs.get(FRAME)
        if ref is None or ref.blob is None:
            return None
        return await self._load(shard, ref.blob)

    async def _read_slim_frame(self, entry: Entry, shard: Shard) -> JsonObject | None:
        ref = None if entry.frame else decode_event(entry.data).fact.refs.get(FRAME)
        if ref is None or ref.blob is None:
            return await self.read_frame(entry, shard)
        known = self._slim.get(ref.blob)
        if known is None:
            content = await self._fetch(shard, ref.blob)
            frame = cast("JsonObject", orjson.loads(content))
            known = slim_frame(frame, content, ref.blob)
            if known is frame:
                return frame
            self._slim[ref.blob] = known
            if len(self._slim) > _SLIM:
                del self._slim[next(iter(self._slim))]
        return known

    def find_frame(self, entry: Entry, shard: Shard) -> LongContent | None:
        """Where the frame of an entry is stored if it was too large for the entry; None if there is no such frame."""
        ref = decode_event(entry.data).fact.refs.get(FRAME)
        if ref is None or ref.blob is None or ref.size is None:
            return None
        return LongContent(self.blobs, shard, LongJson((Slice(ref.blob, 0, ref.size, ref.blob),)))

    async def peek(self, long: LongContent, size: int) -> bytes:
        """The beginning of the first slice of long JSON. Raises MissingContent if the blob is lost."""
        first = next(one for one in long.json.pieces if isinstance(one, Slice))
        begin = await self.blobs.read(long.shard, first.blob, first.start, size)
        if begin is None:
            raise MissingContent(first.blob)
        return begin

    async def read_message(self, event: Event, shard: Shard) -> JsonObject:
        """The message of a submitted turn, from the event or the blob store."""
        payload = event.fact.payload
        if isinstance(payload, TurnSubmitted) and payload.message is not None:
            return payload.message
        ref = event.fact.refs.get("input")
        if ref is None or ref.blob is None:
            return {}
        return await self._load(shard, ref.blob)

    async def _load(self, shard: Shard, sha256: str) -> JsonObject:
        return cast("JsonObject", orjson.loads(await self._fetch(shard, sha256)))

    async def _fetch(self, shard: Shard, sha256: str) -> bytes:
        content = await self.blobs.get(shard, sha256)
        if content is None:
            raise MissingContent(sha256)
        return content


def _list_moves(event: Event, record: TaskRecord) -> list[int]:
    """The time in ms of a fact that records a takeover of the task's run by another driver; else an empty list."""
    said = event.fact.payload
    is_move = isinstance(said, RunStatus) and said.taken_over
    return (
        [parse_ms(event.timestamp)]
        if is_move and event.fact.scope.task_id == record.task_id
        else []
    )


def _catalogue(known: dict[str, ArtifactRef], event: Event, record: TaskRecord) -> None:
    changed = event.fact.payload
    if isinstance(changed, ArtifactChanged) and event.fact.scope.task_id == record.task_id:
        known[changed.name_at_peer] = name_artifact(changed, event)


def shard_of_task(record: TaskRecord) -> Shard:
    """The shard of a task."""
    return _stream(record).shard


def _stream(record: TaskRecord) -> StreamRef:
    return StreamRef(StreamKind.SESSION, record.session_id)


def _adds_to_history(entry: Entry, facade: str) -> bool:
    """Whether an entry may add to the history: a message to the task, or a frame of it."""
    return entry.type == EventType.TURN_SUBMITTED or entry.facade == facade
