"""Reads packet streams: a session's own stream, with each input or result shown as its packet.

Packets are not stored, so writers pay nothing, and cursors, chains and gaps are those of the session. An entry that is
no packet keeps its position in the chain and is not shown.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Final, TypeAlias

import orjson

from passerelle.a2a_mapping.content import read_text
from passerelle.a2a_mapping.members import object_at, objects_at, text_at, texts_at
from passerelle.core.batch import EntityKind, EntityRef
from passerelle.core.event_chain import extend_chain
from passerelle.core.event_type import EventType
from passerelle.core.events import decode_event
from passerelle.core.frozen import frozen
from passerelle.core.payloads.approval import ActionRequired
from passerelle.core.payloads.conversation import TurnSubmitted
from passerelle.core.payloads.runtime import WarningRaised
from passerelle.core.payloads.task import TaskFailed
from passerelle.core.ports.log import Entry, StreamKind
from passerelle.core.read_models.packets import (
    ENDS,
    INPUT,
    MESSAGE,
    RESULT,
    HistoryMessage,
    InputPacket,
    ResultPacket,
    TaskResult,
    UserInput,
    cut_text,
    is_published,
    show_result,
)
from passerelle.core.task.record import TaskRecord
from passerelle.core.wire.codec import to_wire
from passerelle.core.wire.record import change
from passerelle.protocol.concurrency import join_all
from passerelle.protocol.cursor import Cursor
from passerelle.runtime.records.long_content import MissingContent
from passerelle.runtime.records.writes import read_record

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from passerelle.core.batch import Loaded
    from passerelle.core.events import Event
    from passerelle.core.payloads.approval import ApprovalRequest
    from passerelle.core.ports.log import Head, StreamRef
    from passerelle.core.wire.json import JsonObject
    from passerelle.runtime.records.contents import Contents

_NO_PACKET: Final = "none"
_MESSAGE_TYPES: Final = frozenset(
    {EventType.TURN_SUBMITTED, EventType.ACTION_REQUIRED, EventType.RUNTIME_WARNING}
)
"""Event types that are messages of a thread, besides the ends of its tasks."""
_Known: TypeAlias = "Mapping[str, tuple[TaskRecord, Loaded]]"


@frozen
class PacketReads:
    """``channels.follower.StreamReads`` over the log: packets are built on read; other streams are read as stored."""

    contents: Contents

    async def read_head(self, stream: StreamRef) -> Head | None:
        """The head of the session stream after the packets."""
        return await self.contents.log.read_head(stream)

    async def read_resume(
        self, stream: StreamRef, after: int, limit: int = 256
    ) -> tuple[Head | None, list[Entry]]:
        """The head, then a page, in this order."""
        head, entries = await self.contents.log.read_resume(stream, after, limit)
        match stream.kind:
            case StreamKind.INPUTS if head is not None:
                made = join_all(self._show_input(head.epoch, stream, one) for one in entries)
                return head, [*await made]
            case StreamKind.RESULTS if head is not None:
                known = await self._load_tasks(entries)
                made = join_all(self._show_result(head.epoch, known, one) for one in entries)
                return head, [*await made]
            case StreamKind.MESSAGES if head is not None:
                known = await self._load_tasks(entries)
                made = join_all(
                    self._show_message(head.epoch, stream, known, one) for one in entries
                )
                return head, [*await made]
            case _:
                return head, entries

    async def _show_input(self, epoch: str, stream: StreamRef, entry: Entry) -> Entry:
        event = decode_event(entry.data) if entry.type == EventType.TURN_SUBMITTED else None
        payload = await self._read_input(event, stream) if event else None
        if payload is None:
            return _leave_out(entry)
        packet = InputPacket(payload.id, payload.created_at, payload, _after(epoch, entry))
        return _write(entry, INPUT, to_wire(packet))

    async def _read_input(self, event: Event, stream: StreamRef) -> UserInput | None:
        said = event.fact.payload
        if not isinstance(said, TurnSubmitted):
            return None
        message: JsonObject = {"parts": [{"text": said.preview}]}
        with suppress(MissingContent):
            message = await self.contents.read_message(event, stream.shard)
        text, cut = cut_text(_join_parts(message))
        return UserInput(
            id=event.fact.scope.turn_id or event.event_id,
            text=text,
            created_at=event.timestamp,
            message_id=said.message_id,
            agent=said.agent,
            quote=tuple(texts_at(message, "referenceTaskIds")) or None,
            cut=cut,
        )

    async def _show_message(
        self, epoch: str, stream: StreamRef, known: _Known, entry: Entry
    ) -> Entry:
        """An input, an end, an approval or a notice as a message of its thread."""
        if entry.type not in _MESSAGE_TYPES and entry.type not in ENDS:
            return _leave_out(entry)
        event = decode_event(entry.data)
        said, thread = event.fact.payload, event.fact.scope.thread_id
        base = HistoryMessage(
            id=event.event_id,
            role="system",
            text="",
            created_at=event.timestamp,
            thread_id=thread or "",
            cursor=_after(epoch, entry),
            task_id=event.fact.scope.task_id,
        )
        match said:
            case TurnSubmitted():
                message = await self._render_input(base, event, stream)
            case ActionRequired(request):
                message = _render_question(base, request)
            case WarningRaised(message=text):
                message = change(base, text=text)
            case _:
                message = await self._render_end(base, event, known, entry)
        if message is None or thread is None:
            return _leave_out(entry)
        return _write(entry, MESSAGE, to_wire(message))

    async def _render_input(
        self, base: HistoryMessage, event: Event, stream: StreamRef
    ) -> HistoryMessage | None:
        given = await self._read_input(event, stream)
        if given is None:
            return None
        return change(
            base,
            id=given.id,
            role="user",
            text=given.text,
            agent=given.agent,
            quote=given.quote,
            cut=given.cut,
        )

    async def _render_end(
        self, base: HistoryMessage, event: Event, known: _Known, entry: Entry
    ) -> HistoryMessage | None:
        task, loaded = known.get(event.fact.scope.task_id or "", (None, None))
        if task is None or loaded is None or not is_published(task):
            return None
        output = await self._read_output(event, task, loaded)
        result = show_result(event, task, output, loaded.archive, entry.facade)
        # If the agent reported no output of its own, the gateway reports why the task ended.
        is_notice = not result.ok and output == _name_error(event)
        return change(
            base,
            id=_name_result(result),
            role="system" if is_notice else "assistant",
            text=result.output,
            task_id=result.task_id,
            agent=result.agent,
            usage=result.usage,
            elapsed_ms=result.duration_ms,
            cut=result.cut,
        )

    async def _load_tasks(self, entries: Sequence[Entry]) -> _Known:
        tasks = dict.fromkeys(
            task
            for one in entries
            if one.type in ENDS and (task := decode_event(one.data).fact.scope.task_id)
        )
        refs = [EntityRef(EntityKind.TASK, task) for task in tasks]
        loaded = await self.contents.log.load(refs)
        found = ((one, read_record(one)) for one in loaded)
        return {
            one.ref.id: (record, one) for one, record in found if isinstance(record, TaskRecord)
        }

    async def _show_result(self, epoch: str, known: _Known, entry: Entry) -> Entry:
        event = decode_event(entry.data) if entry.type in ENDS else None
        task, loaded = known.get((event and event.fact.scope.task_id) or "", (None, None))
        if event is None or task is None or loaded is None or not is_published(task):
            return _leave_out(entry)
        output = await self._read_output(event, task, loaded)
        payload = show_result(event, task, output, loaded.archive, entry.facade)
        packet = ResultPacket(_name_result(payload), event.timestamp, payload, _after(epoch, entry))
        return _write(entry, RESULT, to_wire(packet))

    async def _read_output(self, event: Event, task: TaskRecord, loaded: Loaded) -> str:
        """All text of a task's artifacts, else its last status message, else its error."""
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


def _render_question(base: HistoryMessage, request: ApprovalRequest) -> HistoryMessage | None:
    """The approval of an agent, or of the gateway during its work; None if it is not part of a conversation."""
    by = request.origin.asked_by
    if by not in {"peer", "gateway"}:
        return None
    text, cut = cut_text(request.peer_message or request.description or request.title)
    return change(
        base,
        id=request.action_id,
        role="assistant" if by == "peer" else "system",
        text=text,
        agent=request.origin.peer,
        cut=cut,
    )


def _name_result(result: TaskResult) -> str:
    return ".".join(filter(None, (result.task_id, result.run_id)))


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
    """Adds the members by which channel clients identify an event."""
    whole = {"sequence": entry.sequence, "eventId": entry.event_id, "type": kind, **packet}
    return replace(entry, type=kind, data=orjson.dumps(whole), frame=None, facade=None)
