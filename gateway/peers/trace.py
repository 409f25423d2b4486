"""The trace that the work in hand belongs to; calls to peers carry it on (ENV-8)."""

from __future__ import annotations

import re
from contextvars import ContextVar
from typing import Final

TRACEPARENT: Final[ContextVar[str | None]] = ContextVar("traceparent", default=None)
"""Set by whoever drives a run, before the call; the value of a W3C ``traceparent`` header."""

_FORM: Final = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")


def read_traceparent() -> str | None:
    """The value to send, or None when there is none or it is not of the W3C form."""
    value = TRACEPARENT.get()
    return value if value is not None and _FORM.fullmatch(value) else None
