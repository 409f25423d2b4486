"""Projections: pure functions that turn a stored event and its record into rows of views in other shards.

A projection declares which types of events it reads, and with which record; events of other types are not decoded for
it. It must tolerate a repeated event, and a record that is newer than the event: an inbox entry carries the id of its
event. Rows of owners' lists need no projection: each decision derives them, and they are in the feed
(``core/index_changes.py``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Final, TypeAlias

import orjson

from passerelle.core.approval.audience import list_paired_readers, list_readers
from passerelle.core.approval.paired_mark import PAIRED, mark_for_paired
from passerelle.core.approval.record import ActionRecord
from passerelle.core.batch import EntityKind
from passerelle.core.event_type import EventType
from passerelle.core.events import EncodedEvent
from passerelle.core.frozen import frozen
from passerelle.core.index_changes import LINK_EVENTS
from passerelle.core.machine import Record
from passerelle.core.ports.log import Entry
from passerelle.core.ports.projections import InboxRow, ProjectionRow
from passerelle.core.session.machine import SessionRecord
from passerelle.core.wire.times import parse_ms
from passerelle.permission_bridge.views import render_view

if TYPE_CHECKING:
    from passerelle.core.wire.json import JsonObject

Project: TypeAlias = Callable[[Entry, Record], list[ProjectionRow]]


@frozen
class Projection:
    """``project`` gets each event for which ``sees`` is true, with the record of ``kind`` in its scope."""

    name: str
    kind: EntityKind
    sees: Callable[[str], bool]
    project: Project


def project_inbox(entry: Entry, record: Record) -> list[InboxRow]:
    """Copies a question and its end to its readers' inboxes; while it is open, it is listed there as pending.

    A wider audience is copied too: that is how approvers who are added later receive it. Forwarding it to people and
    returning the answer to the agent are copied and change nothing. A question that policy answered itself was never
    asked. A reader who may see it from paired devices alone gets it with a mark.
    """
    if not isinstance(record, ActionRecord) or record.was_settled:
        return []
    is_forwarding = entry.type in _FORWARDING and not _widens(entry)
    opens = not is_forwarding and entry.type not in _CLOSING and record.is_open
    action = None if is_forwarding else record.request.action_id
    view = render_view(record) if opens else None
    event, asked_ms = copy_event(entry), record.request.created_ms
    closed = None if is_forwarding or record.state == "pending" else record.state
    row = InboxRow("", event, action, None, asked_ms, closed, parse_ms(record.closed_at))
    paired = list_paired_readers(record)
    return [
        _address(replace(row, owner=reader), view, paired=reader in paired)
        for reader in list_readers(record)
    ]


def _address(row: InboxRow, view: JsonObject | None, *, paired: bool) -> InboxRow:
    if view is not None:
        view = {**view, **PAIRED} if paired else view
        row = replace(row, view=orjson.dumps(view))
    return replace(row, event=mark_for_paired(row.event)) if paired else row


def project_links(entry: Entry, record: Record) -> list[ProjectionRow]:
    """Copies link events of a session to its owner's inbox, in one order with the questions."""
    if not isinstance(record, SessionRecord):
        return []
    return [InboxRow(record.owner, copy_event(entry), None, None)]


def _widens(entry: Entry) -> bool:
    envelope: JsonObject = orjson.loads(entry.data)
    payload = envelope.get("payload")
    return isinstance(payload, dict) and payload.get("step") is not None


def copy_event(entry: Entry) -> EncodedEvent:
    """The event as another stream stores it: same id, and same bytes after the sequence number of the old stream."""
    begin = len(f'{{"sequence":{entry.sequence},')
    end = len(entry.data) if entry.frame is None else entry.frame[0]
    body = entry.data[begin:end]
    return EncodedEvent(entry.event_id, entry.type, body, entry.cut_frame(), entry.facade)


def read_entity(entry: Entry, kind: EntityKind) -> str | None:
    """The id of ``kind`` in the scope of a stored event."""
    envelope: JsonObject = orjson.loads(entry.data)
    found = envelope.get(_SCOPE[kind])
    return found if isinstance(found, str) else None


_SCOPE: Final = {
    EntityKind.SESSION: "sessionId",
    EntityKind.TASK: "taskId",
    EntityKind.ACTION: "actionId",
}
_OPENING: Final = frozenset({EventType.ACTION_REQUIRED, EventType.PERMISSION_REQUESTED})
_CLOSING: Final = frozenset({EventType.ACTION_RESOLVED, EventType.PERMISSION_RESOLVED})
_FORWARDING: Final = frozenset(
    {EventType.CHANNEL_PERMISSION_FORWARDED, EventType.CHANNEL_PERMISSION_RETURNED}
)
_FOR_INBOX: Final = _OPENING | _CLOSING | _FORWARDING


def sees_question(kind: str) -> bool:
    """Whether an event of this type is copied to inboxes as part of a question."""
    return kind in _FOR_INBOX


def _fill(entry: Entry, record: Record) -> list[ProjectionRow]:
    return [*project_inbox(entry, record)]


REGISTRY: Final = (
    Projection("inbox", EntityKind.ACTION, sees_question, _fill),
    Projection("links", EntityKind.SESSION, lambda kind: kind in LINK_EVENTS, project_links),
)
