"""Reads the streams of packets: a session's own stream, of which each input or result is shown as its packet.

Nothing is stored for it, so whoever writes pays nothing, and cursors, chains and gaps are those of the session. What is
no packet keeps its place in the chain and is shown to nobody.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, TypeAlias

import orjson

from passerelle.a2a_mapping.content import read_text
from passerelle.a2a_mapping.members import object_at, objects_at, text_at, texts_at
from passerelle.core.batch import EntityKind, EntityRef
from passerelle.core.event_chain import extend_chain
from passerelle.core.event_type import EventType
from passerelle.core.events import decode_event
from passerelle.core.machine import read_loaded
from passerelle.core.payloads.conversation import TurnSubmitted
from passerelle.core.payloads.task import TaskFailed
from passerelle.core.ports.log import Entry, StreamKind
from passerelle.core.read_models.packets import (
    ENDS,
    INPUT,
    RESULT,
    InputPacket,
    ResultPacket,
    UserInput,
    cut_text,
    is_told,
    show_result,
)
from passerelle.core.task.record import TaskRecord
from passerelle.core.wire.codec import to_wire
from passerelle.protocol.cursor import Cursor
from passerelle.runtime.common.concurrency import join_all
from passerelle.runtime.records.long_content import MissingContent

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from passerelle.core.batch import Loaded
    from passerelle.core.events import Event
    from passerelle.core.ports.log import EventLog, Head, StreamRef
    from passerelle.core.wire.json import JsonObject
    from passerelle.runtime.records.contents import Contents

_NO_PACKET: Final = "none"
_Known: TypeAlias = "Mapping[str, tuple[TaskRecord, Loaded]]"


@dataclass(frozen=True, slots=True)
class PacketReads:
    """``channels.follower.StreamReads`` over the log: packets are made as they are read, others are as they stand."""

    log: EventLog
    contents: Contents

    async def read_head(self, stream: StreamRef) -> Head | None:
        """The head of the stream in which the packets stand."""
        return await self.log.read_head(stream)

    async def read_resume(
        self, stream: StreamRef, after: int, limit: int = 256
    ) -> tuple[Head | None, list[Entry]]:
        """Head, then page, in this order."""
        head, entries = await self.log.read_resume(stream, after, limit)
        match stream.kind:
            case StreamKind.INPUTS if head is not None:
                made = join_all(self._show_input(head.epoch, stream, one) for one in entries)
                return head, [*await made]
            case StreamKind.RESULTS if head is not None:
                known = await self._load_tasks(entries)
                made = join_all(self._show_result(head.epoch, known, one) for one in entries)
                return head, [*await made]
            case _:
                return head, entries

    async def _show_input(self, epoch: str, stream: StreamRef, entry: Entry) -> Entry:
        event = decode_event(entry.data) if entry.type == EventType.TURN_SUBMITTED else None
        said = event.fact.payload if event else None
        if event is None or not isinstance(said, TurnSubmitted):
            return _leave_out(entry)
        message: JsonObject = {"parts": [{"text": said.preview}]}
        with suppress(MissingContent):
            message = await self.contents.read_message(event, stream.shard)
        text, cut = cut_text(_join_parts(message))
        turn = event.fact.scope.turn_id or event.event_id
        payload = UserInput(
            id=turn,
            text=text,
            created_at=event.timestamp,
            message_id=said.message_id,
            agent=said.agent,
            quote=tuple(texts_at(message, "referenceTaskIds")) or None,
            cut=cut,
        )
        packet = InputPacket(turn, event.timestamp, payload, _after(epoch, entry))
        return _write(entry, INPUT, to_wire(packet))

    async def _load_tasks(self, entries: Sequence[Entry]) -> _Known:
        tasks = dict.fromkeys(
            task
            for one in entries
            if one.type in ENDS and (task := decode_event(one.data).fact.scope.task_id)
        )
        refs = [EntityRef(EntityKind.TASK, task) for task in tasks]
        loaded = await self.log.load(refs) if refs else []
        found = ((one, read_loaded(one)) for one in loaded)
        return {
            one.ref.id: (record, one) for one, record in found if isinstance(record, TaskRecord)
        }

    async def _show_result(self, epoch: str, known: _Known, entry: Entry) -> Entry:
        event = decode_event(entry.data) if entry.type in ENDS else None
        task, loaded = known.get((event and event.fact.scope.task_id) or "", (None, None))
        if event is None or task is None or loaded is None or not is_told(task):
            return _leave_out(entry)
        output = await self._read_output(event, task, loaded)
        payload = show_result(event, task, output, loaded.archive, entry.facade)
        name = ".".join(filter(None, (payload.task_id, payload.run_id)))
        packet = ResultPacket(name, event.timestamp, payload, _after(epoch, entry))
        return _write(entry, RESULT, to_wire(packet))

    async def _read_output(self, event: Event, task: TaskRecord, loaded: Loaded) -> str:
        """All text of what a task brought: of its artifacts, else of its last word, else of what went wrong."""
        try:
            content = await self.contents.read_task(task, loaded.fields)
            if content is None:
                answer = await self.contents.read_answer(task)
                return _join_parts(answer or {}) or _name_error(event)
        except MissingContent as error:
            return f"({error.message})"
        brought = "\n".join(filter(None, map(read_text, objects_at(content, "artifacts"))))
        status = object_at(content, "status")
        return brought or _join_parts(object_at(status, "message")) or _name_error(event)


def _join_parts(message: JsonObject) -> str:
    return "\n".join(
        text for part in objects_at(message, "parts") if (text := text_at(part, "text"))
    )


def _name_error(event: Event) -> str:
    said = event.fact.payload
    return said.error.message if isinstance(said, TaskFailed) else ""


def _after(epoch: str, entry: Entry) -> str:
    return str(Cursor(epoch, entry.sequence, extend_chain(entry.previous, entry.event_id)))


def _leave_out(entry: Entry) -> Entry:
    return replace(entry, type=_NO_PACKET, data=b"{}", frame=None, facade=None)


def _write(entry: Entry, kind: str, packet: JsonObject) -> Entry:
    """With the members by which clients of a channel know an event."""
    whole = {"sequence": entry.sequence, "eventId": entry.event_id, "type": kind, **packet}
    return replace(entry, type=kind, data=orjson.dumps(whole), frame=None, facade=None)
