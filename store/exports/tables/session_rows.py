"""The table rows of a session, from its stored data: records, and every event."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar, cast

import orjson

from passerelle.core.approval.record import ActionRecord
from passerelle.core.errors import InvalidInput
from passerelle.core.event_type import EventType
from passerelle.core.events import decode_event
from passerelle.core.machine import read_snapshot
from passerelle.core.payloads.limit import CostEstimated, CostRecorded
from passerelle.core.ports.log import StreamKind, StreamRef
from passerelle.core.task.record import TaskRecord
from passerelle.store.exports.tables.approval_table import APPROVALS
from passerelle.store.exports.tables.event_tables import COSTS, EVENTS, CostRow, EventRow
from passerelle.store.exports.tables.task_tables import ATTEMPTS, TASKS, AttemptRow, TaskRow
from passerelle.store.replies import as_hash
from passerelle.store.stream_entries import read_rows

if TYPE_CHECKING:
    from passerelle.core.wire.json import JsonObject
    from passerelle.store.archive.frame import SessionFrame
    from passerelle.store.exports.session_source import FoundSession
    from passerelle.store.exports.tables.column import CellValue, Table

R = TypeVar("R")

FORM: Final = 1
"""Version of the table format: raised with each change that a query may notice, other than a new column."""
TABLES: Final[tuple[Table[Any], ...]] = (TASKS, ATTEMPTS, EVENTS, APPROVALS, COSTS)
_PRICED: Final = {EventType.COST_ESTIMATED.value, EventType.COST_RECORDED.value}


Cells: TypeAlias = "dict[str, list[tuple[CellValue, ...]]]"
"""Rows by the name of their table, each with its cells in column order."""


def list_rows(found: FoundSession) -> Cells:
    """All rows of a session.

    Raises:
        ValueError: part of it is damaged, or of a version that this one cannot read.
    """
    cells: Cells = {table.name: [] for table in TABLES}
    try:
        _add_records(cells, found)
        _add_events(cells, found.frame)
    except (InvalidInput, LookupError, TypeError) as error:
        raise ValueError(str(error)) from None
    return cells


def _add(cells: Cells, table: Table[R], row: R) -> None:
    cells[table.name].append(tuple(column.read(row) for column in table.columns))


def _add_records(cells: Cells, found: FoundSession) -> None:
    for ref in sorted(found.frame.hashes):
        fields = as_hash(found.frame.hashes[ref])
        record = read_snapshot(ref.kind, fields.get("s", b""))
        if isinstance(record, TaskRecord):
            _add(cells, TASKS, TaskRow(record, found.is_archived))
            for attempt in record.attempts:
                _add(cells, ATTEMPTS, AttemptRow(record, attempt))
        elif isinstance(record, ActionRecord):
            _add(cells, APPROVALS, record)


def _add_events(cells: Cells, frame: SessionFrame) -> None:
    stream = StreamRef(StreamKind.SESSION, frame.session)
    for entry in read_rows(frame.entries, stream, 0, sys.maxsize):
        if not entry.event_id:
            message = f"the events up to {entry.sequence} cannot be read"
            raise ValueError(message)
        event = EventRow(frame.session, entry, cast("JsonObject", orjson.loads(entry.data)))
        _add(cells, EVENTS, event)
        if entry.type in _PRICED:
            cost = decode_event(entry.data).fact.payload
            # A cost event of a newer schema is only listed as an event.
            if isinstance(cost, CostEstimated | CostRecorded):
                _add(cells, COSTS, CostRow(event, cost))
