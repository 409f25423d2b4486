"""What a call of ours carries on from the call that caused it: its trace, its extensions, and at most its token.

The variables hold for the task that serves the caller and for what it starts. A run that goes on after a restart has
none of them.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Final

from passerelle.core.trace import SPAN_BITS, Trace
from passerelle.gateway.secret import Secret

TRACE: Final[ContextVar[Trace | None]] = ContextVar("trace", default=None)
"""Set by whoever drives a run, before the call: our span, as the peer is told of it (ENV-8)."""
SERVED: Final[ContextVar[Trace | None]] = ContextVar("served", default=None)
"""The exported span of the request that is served now; a run that it begins has it as its own."""
CALLING: Final[ContextVar[Trace | None]] = ContextVar("calling", default=None)
"""The exported span of the call that is made now, which the peer is told of in place of the run's."""
EXTENSIONS: Final[ContextVar[frozenset[str]]] = ContextVar("extensions", default=frozenset())
"""URIs that the caller asks for; those that a peer declares are forwarded to it (A2A 1.0 section 4.6)."""
AUTHORIZATION: Final[ContextVar[Secret | None]] = ContextVar("authorization", default=None)
"""The caller's own ``Authorization`` header, for peers with ``forward_auth``."""


def carry_on(extensions: frozenset[str], authorization: Secret | None) -> None:
    """Notes what the call that is served now asked for, and who made it."""
    EXTENSIONS.set(extensions)
    AUTHORIZATION.set(authorization)


def find_wanted(declared: frozenset[str]) -> frozenset[str]:
    """The extensions that the caller asks for, as far as a peer declares them."""
    return EXTENSIONS.get() & declared if declared else declared


def choose_trace(caller: Trace | None, draw: Callable[[int], int]) -> Trace | None:
    """Our span for what a request begins: the exported one, else a new one in the caller's trace, if it has one."""
    served = SERVED.get()
    if served is not None or caller is None:
        return served
    return caller.descend(draw(SPAN_BITS))


def write_trace() -> dict[str, str]:
    """The headers of the trace that a call belongs to (W3C Trace Context section 3)."""
    trace = CALLING.get() or TRACE.get()
    if trace is None:
        return {}
    state = {"tracestate": trace.state} if trace.state else {}
    return {"traceparent": trace.parent, **state}
