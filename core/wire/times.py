"""Times between milliseconds and RFC 3339 text; the clock itself is an argument."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from functools import lru_cache
from typing import Final

_NAIVE: Final = re.compile(r"(\d{4}-\d{2}-\d{2})[Tt ](\d{2}:\d{2}:\d{2}(?:\.\d+)?)", re.ASCII)


def format_ms(ms: int) -> str:
    """RFC 3339, UTC, milliseconds, ``Z`` (ENV-3)."""
    return f"{_format_second(ms // 1000)}.{ms % 1000:03d}Z"


@lru_cache(64)
def _format_second(second: int) -> str:
    """Cached, since most times are current."""
    return f"{datetime.fromtimestamp(second, UTC):%Y-%m-%dT%H:%M:%S}"


def parse_ms(text: str) -> int:
    """Milliseconds of an RFC 3339 text with any offset.

    Raises:
        ValueError: the text is no time, or has no offset.
    """
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        message = "a time needs an offset, such as Z"
        raise ValueError(message)
    return round(moment.timestamp() * 1000)


def complete_time(text: str) -> str:
    """An RFC 3339 time, unchanged; one without an offset is read as UTC, and gets its ``Z``."""
    if text.endswith("Z") or (naive := _NAIVE.fullmatch(text)) is None:
        return text
    return f"{naive[1]}T{naive[2]}Z"
