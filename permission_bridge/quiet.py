"""Quiet hours: pushes of low and medium risk wait until they are over.

They do not affect the inbox, open connections or the expiry of a request, and a delayed push is no decision.
"""

from __future__ import annotations

from datetime import datetime, timedelta, tzinfo
from typing import TYPE_CHECKING

from passerelle.core.frozen import frozen
from passerelle.core.payloads.device import reaches

if TYPE_CHECKING:
    from collections.abc import Iterable

    from passerelle.core.payloads.approval import Risk

_HOUR_MIN = 60


@frozen
class QuietHours:
    """From ``begin_min`` to ``end_min``, minutes of the day in ``zone``; the end may be on the next day.

    ``people`` are those that the hours apply to; empty: everybody.
    """

    begin_min: int
    end_min: int
    zone: tzinfo
    people: frozenset[str] = frozenset()

    def find_end_ms(self, person: str, now_ms: int) -> int | None:
        """The end of the quiet hours that contain ``now_ms``, for a person; None outside of them."""
        if self.people and person not in self.people:
            return None
        now = datetime.fromtimestamp(now_ms / 1000, self.zone)
        minute = now.hour * _HOUR_MIN + now.minute
        after_begin, before_end = minute >= self.begin_min, minute < self.end_min
        is_over_night = self.begin_min > self.end_min
        if not (after_begin or before_end if is_over_night else after_begin and before_end):
            return None
        hour, rest = divmod(self.end_min, _HOUR_MIN)
        end = now.replace(hour=hour, minute=rest, second=0, microsecond=0)
        if end <= now:
            end += timedelta(days=1)
        return round(end.timestamp() * 1000)


def is_high_risk(risk: Risk) -> bool:
    """Whether a risk is high or critical: such pushes are not delayed."""
    return not reaches("medium", risk)


def find_quiet_end(hours: Iterable[QuietHours], person: str, now_ms: int) -> int | None:
    """The time until which a low or medium risk push to a person waits; None: it is sent now."""
    ends = [one.find_end_ms(person, now_ms) for one in hours]
    return max((end for end in ends if end is not None), default=None)
