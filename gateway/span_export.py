"""Sends spans to a collector, with libraries of an extra that are imported only if spans are configured."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

from passerelle.core.errors import ConfigInvalid
from passerelle.runtime.common.version import VERSION
from passerelle.runtime.observability.spans import Spans

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

WITHOUT_EXTRA: Final = "tracing needs more libraries: pip install 'passerelle[otel]'"
_SEND_S: Final = 2.0
"""Longest time of one export: at a shutdown one is running and one is left, within its ten seconds."""
_DELAY_MS: Final = 1_000
_QUEUE: Final = 2_048


@asynccontextmanager
async def open_spans(endpoint: str | None) -> AsyncGenerator[Spans | None]:
    """Exports spans to ``endpoint``, and flushes the rest at the end; yields None without an endpoint.

    Raises:
        ConfigInvalid: the libraries are not installed.
    """
    if endpoint is None:
        yield None
        return
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        raise ConfigInvalid("spans.otlp_endpoint", WITHOUT_EXTRA) from None
    resource = Resource.create({"service.name": "passerelle", "service.version": VERSION})
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    exporter = OTLPSpanExporter(endpoint, timeout=_SEND_S)
    provider.add_span_processor(
        BatchSpanProcessor(
            exporter,
            max_queue_size=_QUEUE,
            schedule_delay_millis=_DELAY_MS,
            max_export_batch_size=_QUEUE,
        )
    )
    try:
        yield Spans(provider.get_tracer("passerelle", VERSION))
    finally:
        await asyncio.to_thread(provider.shutdown)
