"""When a schedule has its ticks: by a cron expression in a time zone, or at a fixed distance.

A cron expression has five fields, and means what the cron of Debian does with it: where a change of the clock leaves
out the time of a daily tick, the tick comes right behind the change, and a time that comes twice has one tick. What is
due every so many minutes goes on through either as if nothing had happened.
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
"""The fields in their order, as the library names them, and as we do."""


class ZonedCalendar:
    """The calendar of this machine, with the time zones that it knows or that come with ``tzdata``."""

    def next_after(self, terms: ScheduleTerms, after_ms: int) -> int | None:
        """The first tick behind a time, in ms; None where there is none in the next fifty years.

        Raises:
            InvalidInput: the terms name no time zone, or are no cron expression.
        """
        if terms.every_s is not None:
            step_ms = terms.every_s * 1000
            return terms.anchor_ms + ((after_ms - terms.anchor_ms) // step_ms + 1) * step_ms
        zone = find_zone(terms.timezone)
        # From the second that has begun, since the library counts in seconds.
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
    """Which field is wrong, and what stands there: the library says "Bad hour"."""
    said = str(error).removeprefix("Bad ")
    for (name, words), given in zip(_FIELDS.items(), text.split(), strict=True):
        if name == said:
            return f"{given!r} is not a valid {words}"
    return said.lower()


@lru_cache(256)
def find_zone(name: str) -> ZoneInfo:
    """The time zone of a name such as ``Europe/Paris``. Raises InvalidInput."""
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise InvalidInput("timezone", "is the name of a time zone, such as Europe/Paris") from None
