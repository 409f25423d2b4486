"""Hours in which people are left alone: pushes of low and medium risk wait until they are over.

What stands in an inbox, goes over open links, or expires is none of their business, and to be left alone is no answer.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta, tzinfo
from typing import TYPE_CHECKING

from passerelle.core.payloads.device import reaches

if TYPE_CHECKING:
    from collections.abc import Iterable

    from passerelle.core.payloads.approval import Risk

_HOUR_MIN = 60


@dataclass(frozen=True, slots=True)
class QuietHours:
    """From ``begin_min`` to ``end_min``, minutes of the day where ``zone`` is; the end may be of the next day.

    ``people`` are those whom they are for; none: everybody.
    """

    begin_min: int
    end_min: int
    zone: tzinfo
    people: frozenset[str] = frozenset()

    def find_end_ms(self, person: str, now_ms: int) -> int | None:
        """When the hours that ``now_ms`` lies in are over for somebody; None where it lies in none."""
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
    """Whether a risk is high or critical: pushes of these do not wait."""
    return not reaches("medium", risk)


def find_quiet_end(hours: Iterable[QuietHours], person: str, now_ms: int) -> int | None:
    """Until when a push of low or medium risk to somebody waits; None: it goes out now."""
    ends = [one.find_end_ms(person, now_ms) for one in hours]
    return max((end for end in ends if end is not None), default=None)
