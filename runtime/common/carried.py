"""What a call of ours carries on from the call that caused it: its trace, its extensions, and at most its token.

The variables hold for the task that serves the caller and for what it starts. A run that goes on elsewhere or after a
restart has its trace and its extensions from its record, and the token not at all.
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
"""Set by whoever drives a run, before the call: our span, as the peer is told of it (ENV-8)."""
SERVED: Final[ContextVar[Trace | None]] = ContextVar("served", default=None)
"""The exported span of the request that is served now; a run that it begins has it as its own."""
CALLING: Final[ContextVar[Trace | None]] = ContextVar("calling", default=None)
"""The exported span of the call that is made now, which the peer is told of in place of the run's."""
EXTENSIONS: Final[ContextVar[frozenset[str]]] = ContextVar("extensions", default=frozenset())
"""URIs that the caller asks for; those that a peer declares are forwarded to it (A2A 1.0 section 4.6)."""
CONFIRMED: Final[ContextVar[set[str] | None]] = ContextVar("confirmed", default=None)
"""Where the calls that a request causes gather what agents say they have activated; None: nobody has asked."""
AUTHORIZATION: Final[ContextVar[Secret | None]] = ContextVar("authorization", default=None)
"""The caller's own ``Authorization`` header, for peers with ``forward_auth``."""


def set_call_context(extensions: frozenset[str], authorization: Secret | None) -> None:
    """Notes what the call that is served now asked for, and who made it."""
    EXTENSIONS.set(extensions)
    CONFIRMED.set(set() if extensions else None)
    AUTHORIZATION.set(authorization)


def choose_extensions(declared: frozenset[str]) -> frozenset[str]:
    """The extensions that the caller asks for and those that are understood here, as far as a peer declares them."""
    return (EXTENSIONS.get() | UNDERSTOOD) & declared if declared else declared


def restore_extensions(extensions: Iterable[str]) -> None:
    """Goes on with what the caller of a run asked for, as its record has it."""
    EXTENSIONS.set(frozenset(extensions))


@contextmanager
def adding_extensions(extensions: Iterable[str]) -> Generator[None]:
    """Calls made inside also ask for what the caller of a further message asked for."""
    token = EXTENSIONS.set(EXTENSIONS.get() | frozenset(extensions))
    try:
        yield
    finally:
        EXTENSIONS.reset(token)


def note_confirmed(text: str | None) -> None:
    """Notes the extensions that an agent says it has activated, in the form of its header."""
    gathered = CONFIRMED.get()
    if text and gathered is not None:
        gathered.update(filter(None, map(str.strip, text.split(","))))


def list_confirmed() -> frozenset[str]:
    """What the caller asked for and the agents that were called for it have activated."""
    gathered = CONFIRMED.get()
    return EXTENSIONS.get() & gathered if gathered else frozenset()


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
