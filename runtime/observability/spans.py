"""Spans for OpenTelemetry: one for each A2A request, one for each call of an agent.

The span of a request that starts a run is also the span on the run's events, so both have the same id; the calls of
the run are below it, and the agent's own spans below these. Without an exporter there is no ``Spans``, and the cost is
one comparison.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from opentelemetry.trace import (
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    StatusCode,
    TraceFlags,
    TraceState,
    set_span_in_context,
)

from passerelle.core.wire.trace import Trace, read_trace
from passerelle.runtime.common.carried import CALLING, SERVED, TRACE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from opentelemetry.context import Context
    from opentelemetry.trace import Span, Tracer

_NOWHERE = SpanContext(0, 0, is_remote=False)
_FINE = frozenset({"ok", "drained", "left", "answered"})
_INVOKES = frozenset({"SendMessage", "SendStreamingMessage"})
"""Operations that make an agent work; a GetTask is no step of a conversation."""


class Spans:
    """Starts spans; ``tracer`` is that of an SDK."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer

    def begin_request(self, headers: Mapping[str, str]) -> Span:
        """The span of a request, below the caller's; a run that this task starts is a part of it (ENV-8)."""
        caller = read_trace(headers.get("traceparent"), headers.get("tracestate"))
        span = self._tracer.start_span("request", _place(caller), SpanKind.SERVER)
        SERVED.set(_read(span, caller))
        return span

    def begin_call(self, agent: str, operation: str, conversation: str) -> Span:
        """The span of a call, in the trace of its run; it is sent to the agent.

        ``conversation`` is the agent's context id, empty if the agent creates one.
        """
        trace = TRACE.get()
        attributes = {
            "passerelle.agent": agent,
            "a2a.operation": operation,
            **describe_invocation(agent, operation),
        }
        if conversation:
            attributes["gen_ai.conversation.id"] = conversation
        span = self._tracer.start_span(operation, _place(trace), SpanKind.CLIENT, attributes)
        CALLING.set(_read(span, trace))
        return span


def describe_invocation(agent: str, operation: str) -> dict[str, str]:
    """The attributes of OpenTelemetry's GenAI conventions for a span in which an agent works; empty for others."""
    if operation not in _INVOKES:
        return {}
    return {"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": agent}


def end_request(
    span: Span, *, agent: str, operation: str, outcome: str, binding: str, version: str
) -> None:
    """Ends the span of a request with its outcome; a caller that left is not recorded as an error."""
    span.update_name(operation)
    span.set_attributes(
        {
            "passerelle.agent": agent,
            "a2a.operation": operation,
            "a2a.binding": binding,
            "a2a.version": version,
            **describe_invocation(agent, operation),
        }
    )
    _end(span, outcome)


def end_call(span: Span, outcome: str) -> None:
    """Ends the span of a call with its outcome."""
    CALLING.set(None)
    _end(span, outcome)


def _end(span: Span, outcome: str) -> None:
    span.set_attribute("passerelle.outcome", outcome)
    if outcome not in _FINE:
        span.set_status(StatusCode.ERROR, outcome)
        span.set_attribute("error.type", outcome)
    span.end()


def _place(trace: Trace | None) -> Context:
    if trace is None:
        # Not None: that would use the current span as parent.
        return set_span_in_context(NonRecordingSpan(_NOWHERE))
    state = TraceState.from_header([trace.state]) if trace.state else None
    flags = TraceFlags(int(trace.flags, 16))
    ids = int(trace.trace_id, 16), int(trace.span_id, 16)
    context = SpanContext(*ids, is_remote=True, trace_flags=flags, trace_state=state)
    return set_span_in_context(NonRecordingSpan(context))


def _read(span: Span, caller: Trace | None) -> Trace:
    context = span.get_span_context()
    flags = f"{context.trace_flags:02x}"
    state = caller.state if caller else None
    return Trace(f"{context.trace_id:032x}", f"{context.span_id:016x}", flags, state)
