"""Times between milliseconds and RFC 3339 text; the clock itself is an argument."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import lru_cache


@lru_cache(64)
def format_ms(ms: int) -> str:
    """RFC 3339, UTC, milliseconds, ``Z`` (ENV-3). All events of one decision have one time, so a few are kept."""
    moment = datetime.fromtimestamp(ms // 1000, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{ms % 1000:03d}Z"


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
