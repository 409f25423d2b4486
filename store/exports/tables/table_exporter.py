"""Writes sessions of a scope as tables, each once: one session is in memory at a time, plus buffered rows."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

from passerelle.core.frozen import frozen
from passerelle.store.exports.session_source import FoundSession, SessionSource, read_time
from passerelle.store.exports.tables.session_rows import list_rows

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from passerelle.core.wire.json import JsonObject
    from passerelle.store.exports.form import ExportScope
    from passerelle.store.exports.session_names import SessionNames
    from passerelle.store.exports.tables.column import CellValue

_NAMED: Final = 100
"""Sessions that are named for each reason why some are left out; the others are counted."""
_DAMAGED: Final = "it is damaged, which passerelle verify names"


class RowWriter(Protocol):
    """Takes rows. Raises OSError: the disk is full."""

    def add_rows(self, rows: Mapping[str, Sequence[tuple[CellValue, ...]]]) -> None:
        """Adds the rows of a session, by the name of their table."""
        ...


@dataclass(slots=True)
class LeftOutSessions:
    """Sessions that are left out for one reason: their number, and the first of them."""

    count: int = 0
    sessions: list[str] = field(default_factory=list[str])

    def add(self, session: str) -> None:
        """Counts a session, and names it if there are few."""
        self.count += 1
        if len(self.sessions) < _NAMED:
            self.sessions.append(session)


@dataclass(slots=True)
class TableSummary:
    """The totals: sessions, archived ones among them, and sessions left out with the reason."""

    sessions: int = 0
    archived: int = 0
    left_out: dict[str, LeftOutSessions] = field(default_factory=dict[str, LeftOutSessions])

    def leave_out(self, session: str, reason: str) -> None:
        """Counts a session that is left out."""
        self.left_out.setdefault(reason, LeftOutSessions()).add(session)

    def write(self) -> JsonObject:
        """The stored form."""
        return {
            "sessions": self.sessions,
            "archived": self.archived,
            "leftOut": {
                reason: {"count": one.count, "sessions": [*one.sessions]}
                for reason, one in sorted(self.left_out.items())
            },
        }


@frozen
class TableExporter:
    """Exports of one runtime as tables."""

    source: SessionSource

    async def export(
        self, scope: ExportScope, rows: RowWriter, names: SessionNames
    ) -> TableSummary:
        """Writes the rows of every session of a scope, also of those with something open.

        Raises:
            OSError: a file cannot be written.
            StoreUnavailable: something does not answer, or is damaged.
        """
        summary = TableSummary()
        async for _, sessions in self.source.list_sessions(scope, names):
            for session in sorted(sessions):
                await self._add(session, scope, rows, summary)
        return summary

    async def _add(
        self, session: str, scope: ExportScope, rows: RowWriter, summary: TableSummary
    ) -> None:
        found = await self.source.read(session, may_be_open=True)
        if not isinstance(found, FoundSession):
            if found is not None and await self.source.is_in_scope(session, scope):
                summary.leave_out(session, found)
            return
        if not scope.takes(found.frame, read_time(found.frame)):
            return
        try:
            cells = list_rows(found)
        except ValueError:
            summary.leave_out(session, _DAMAGED)
            return
        rows.add_rows(cells)
        summary.sessions += 1
        summary.archived += found.is_archived
