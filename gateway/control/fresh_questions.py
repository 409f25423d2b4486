"""Questions that were opened here a moment ago: whoever is told of one finds it listed before the relay has been."""

from __future__ import annotations

from collections import deque
from time import monotonic
from typing import TYPE_CHECKING, Final

from passerelle.core.approval_audience import list_readers
from passerelle.core.approval_record import ActionRecord

if TYPE_CHECKING:
    from passerelle.gateway.control.glimpse import Glimpse

_KEPT_S: Final = 30.0
"""The relay takes a tenth of a second, and longer where a shard is away."""
_MOST: Final = 4_096


class FreshQuestions:
    """By reader, the newest of them, for a while. They are read again before they are shown, so they may be closed."""

    def __init__(self) -> None:
        self._asked_ms: dict[str, dict[str, int]] = {}
        self._order: deque[tuple[float, str, str]] = deque()

    def note(self, seen: Glimpse) -> None:
        """Notes the questions of an append that are open."""
        for record in seen.records.values():
            if isinstance(record, ActionRecord) and record.is_open:
                for reader in list_readers(record):
                    self._add(reader, record.request.action_id, record.request.created_ms)

    def _add(self, reader: str, action: str, asked_ms: int) -> None:
        self._asked_ms.setdefault(reader, {})[action] = asked_ms
        self._order.append((monotonic() + _KEPT_S, reader, action))
        self._forget()

    def _forget(self) -> None:
        order, now_s = self._order, monotonic()
        while order and (len(order) > _MOST or order[0][0] <= now_s):
            _, reader, action = order.popleft()
            asked = self._asked_ms.get(reader, {})
            asked.pop(action, None)
            if not asked:
                self._asked_ms.pop(reader, None)

    def list_newest(self, reader: str, before: tuple[int, str] | None) -> list[tuple[str, int]]:
        """Their ids and the times at which they were asked, as an inbox lists them, from one row on."""
        self._forget()
        rows = self._asked_ms.get(reader, {}).items()
        return [row for row in rows if before is None or (row[1], row[0]) < before]
