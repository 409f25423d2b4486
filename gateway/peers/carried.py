"""What a call of ours carries on from the call that caused it: its trace, its extensions, and at most its token.

The variables hold for the task that serves the caller and for what it starts. A run that goes on after a restart has
none of them.
"""

from __future__ import annotations

import re
from contextvars import ContextVar
from typing import Final

from passerelle.gateway.secret import Secret

TRACEPARENT: Final[ContextVar[str | None]] = ContextVar("traceparent", default=None)
"""Set by whoever drives a run, before the call; the value of a W3C ``traceparent`` header (ENV-8)."""
EXTENSIONS: Final[ContextVar[frozenset[str]]] = ContextVar("extensions", default=frozenset())
"""URIs that the caller asks for; those that a peer declares are forwarded to it (A2A 1.0 section 4.6)."""
AUTHORIZATION: Final[ContextVar[Secret | None]] = ContextVar("authorization", default=None)
"""The caller's own ``Authorization`` header, for peers with ``forward_auth``."""

_FORM: Final = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")


def carry_on(extensions: frozenset[str], authorization: str | None) -> None:
    """Notes what the call that is served now asked for, and who made it."""
    EXTENSIONS.set(extensions)
    AUTHORIZATION.set(Secret(authorization) if authorization else None)


def read_traceparent() -> str | None:
    """The value to send, or None when there is none or it is not of the W3C form."""
    value = TRACEPARENT.get()
    return value if value is not None and _FORM.fullmatch(value) else None
