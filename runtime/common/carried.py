"""What a call to an agent inherits from the call that caused it: trace, extensions, and possibly the caller's token.

The variables are valid in the task that serves the caller and in tasks it starts. A run that continues at another
instance or after a restart has its trace and extensions from its record, and no token.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

from passerelle.a2a_mapping.extensions import UNDERSTOOD
from passerelle.core.wire.trace import SPAN_BITS, Trace
from passerelle.runtime.common.secret import Secret

TRACE: Final[ContextVar[Trace | None]] = ContextVar("trace", default=None)
"""Our span as sent to the peer; the run driver sets it before the call (ENV-8)."""
SERVED: Final[ContextVar[Trace | None]] = ContextVar("served", default=None)
"""The exported span of the request being served; a run that it starts uses it as its own."""
CALLING: Final[ContextVar[Trace | None]] = ContextVar("calling", default=None)
"""The exported span of the current call, sent to the peer in place of the run's."""
EXTENSIONS: Final[ContextVar[frozenset[str]]] = ContextVar("extensions", default=frozenset())
"""Extension URIs that the caller requests; those that a peer declares are forwarded to it (A2A 1.0 section 4.6)."""
CONFIRMED: Final[ContextVar[set[str] | None]] = ContextVar("confirmed", default=None)
"""Collects the extensions that called agents report as activated; None: the caller requested none."""
AUTHORIZATION: Final[ContextVar[Secret | None]] = ContextVar("authorization", default=None)
"""The caller's own ``Authorization`` header, for peers with ``forward_auth``."""


def set_call_context(extensions: frozenset[str], authorization: Secret | None) -> None:
    """Sets what the served call requested, and its credentials."""
    EXTENSIONS.set(extensions)
    CONFIRMED.set(set() if extensions else None)
    AUTHORIZATION.set(authorization)


def choose_extensions(declared: frozenset[str]) -> frozenset[str]:
    """The extensions requested by the caller or supported by the gateway that a peer declares."""
    return (EXTENSIONS.get() | UNDERSTOOD) & declared if declared else declared


def restore_extensions(extensions: Iterable[str]) -> None:
    """Restores the extensions requested by a run's caller, from the run's record."""
    EXTENSIONS.set(frozenset(extensions))


@contextmanager
def adding_extensions(extensions: Iterable[str]) -> Generator[None]:
    """Calls inside also request the extensions that the caller of a further message requested."""
    token = EXTENSIONS.set(EXTENSIONS.get() | frozenset(extensions))
    try:
        yield
    finally:
        EXTENSIONS.reset(token)


def note_confirmed(text: str | None) -> None:
    """Records the extensions that an agent reports as activated, from its header value."""
    gathered = CONFIRMED.get()
    if text and gathered is not None:
        gathered.update(filter(None, map(str.strip, text.split(","))))


def list_confirmed() -> frozenset[str]:
    """The extensions that the caller requested and the called agents have activated."""
    gathered = CONFIRMED.get()
    return EXTENSIONS.get() & gathered if gathered else frozenset()


def choose_trace(caller: Trace | None, draw: Callable[[int], int]) -> Trace | None:
    """Our span for work that a request starts: the exported one, else a new one in the caller's trace, if any."""
    served = SERVED.get()
    if served is not None or caller is None:
        return served
    return caller.descend(draw(SPAN_BITS))


def write_trace() -> dict[str, str]:
    """The trace headers of a call (W3C Trace Context section 3)."""
    trace = CALLING.get() or TRACE.get()
    if trace is None:
        return {}
    state = {"tracestate": trace.state} if trace.state else {}
    return {"traceparent": trace.parent, **state}
