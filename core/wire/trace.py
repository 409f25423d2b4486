"""The trace of a piece of work (W3C Trace Context): read from callers, stored in facts, sent to agents.

A run has one span of the gateway, a child of the caller's. Its ids are in the envelope of every event of the run
(ENV-8), and because they are facts, a run that another instance takes over stays in its trace.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from passerelle.core.frozen import frozen
from passerelle.core.wire.record import change

if TYPE_CHECKING:
    from collections.abc import Iterable

    from passerelle.core.events import Fact

_FORM: Final = re.compile(r"(?!ff)[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_FIRST_VERSION: Final = "00"
SPAN_BITS: Final = 64
"""Random bits for ``Trace.descend``."""
TRACE_ID: Final = slice(3, 35)
SPAN_ID: Final = slice(36, 52)
"""The slices of the ids in ``Trace.parent``."""
STATE_LIMIT: Final = 512
"""The minimum of a ``tracestate`` that must be forwarded (W3C Trace Context section 3.3.1.5)."""


@frozen
class Trace:
    """A span in a trace. ``state`` is the vendors' ``tracestate``."""

    trace_id: str
    span_id: str
    flags: str
    state: str | None = None

    @property
    def parent(self) -> str:
        """The ``traceparent`` for calls from this span."""
        return f"{_FIRST_VERSION}-{self.trace_id}-{self.span_id}-{self.flags}"

    def descend(self, drawn: int) -> Trace:
        """A child span of the gateway; ``drawn`` are 64 random bits."""
        # An id of zeros is invalid.
        return replace(self, span_id=f"{drawn or 1:016x}")


def read_trace(parent: str | None, state: str | None = None) -> Trace | None:
    """The trace of a caller, or None if ``parent`` is no valid ``traceparent``: then its ``tracestate`` is ignored."""
    match = _FORM.fullmatch(parent.strip()) if parent else None
    if match is None or (match[4] and parent and parent.startswith(_FIRST_VERSION)):
        return None
    trace_id, span_id, flags = match[1], match[2], match[3]
    if not int(trace_id, 16) or not int(span_id, 16):
        return None
    kept = state.strip() if state and len(state) <= STATE_LIMIT and state.isprintable() else None
    return Trace(trace_id, span_id, flags, kept or None)


def stamp(facts: Iterable[Fact], trace: Trace) -> list[Fact]:
    """The facts with the ids of a trace in their scope; a fact with its own trace keeps it."""
    return [_stamp(fact, trace) for fact in facts]


def _stamp(fact: Fact, trace: Trace) -> Fact:
    if fact.scope.trace_id is not None:
        return fact
    return change(fact, scope=change(fact.scope, trace_id=trace.trace_id, span_id=trace.span_id))
