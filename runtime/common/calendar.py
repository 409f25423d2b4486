"""Computes the ticks of a schedule: by a cron expression in a time zone, or at a fixed interval.

A cron expression has five fields with the semantics of Debian's cron: if a clock change skips the time of a daily tick,
the tick follows right after the change, and a time that occurs twice has one tick. Ticks every N minutes continue
through both without interruption.
"""

from __future__ import annotations

from datetime import UTC, datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError

from passerelle.core.errors import InvalidInput

if TYPE_CHECKING:
    from passerelle.core.payloads.schedule import ScheduleTerms

_FIELDS: Final = {
    "minute": "minute",
    "hour": "hour",
    "day-of-month": "day of the month",
    "month": "month",
    "day-of-week": "day of the week",
}
"""The fields in their order: the library's name, then ours."""


class ZonedCalendar:
    """The calendar of this machine, with the time zones of the system or of ``tzdata``."""

    def next_after(self, terms: ScheduleTerms, after_ms: int) -> int | None:
        """The first tick after a time, in ms; None if there is none in the next fifty years.

        Raises:
            InvalidInput: the time zone is unknown, or the cron expression is invalid.
        """
        if terms.every_s is not None:
            step_ms = terms.every_s * 1000
            return terms.anchor_ms + ((after_ms - terms.anchor_ms) // step_ms + 1) * step_ms
        zone = find_zone(terms.timezone)
        # Rounded down to the second, because the library counts in seconds.
        moment = datetime.fromtimestamp(after_ms // 1000, UTC).astimezone(zone)
        try:
            found = next(CronSim(_read_cron(terms.cron or ""), moment))
        except CronSimError as error:
            raise InvalidInput("cron", _explain(error, terms.cron or "")) from None
        except StopIteration:
            return None
        return round(found.timestamp() * 1000)


def _read_cron(text: str) -> str:
    if len(text.split()) != len(_FIELDS):
        raise InvalidInput("cron", "takes five fields: minute, hour, day, month, day of the week")
    return text


def _explain(error: CronSimError, text: str) -> str:
    """Names the invalid field and its value: the library only reports "Bad hour"."""
    said = str(error).removeprefix("Bad ")
    for (name, words), given in zip(_FIELDS.items(), text.split(), strict=True):
        if name == said:
            return f"{given!r} is not a valid {words}"
    return said.lower()


@lru_cache(256)
def find_zone(name: str) -> ZoneInfo:
    """The time zone with a name such as ``Europe/Paris``. Raises InvalidInput."""
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise InvalidInput("timezone", "is the name of a time zone, such as Europe/Paris") from None
