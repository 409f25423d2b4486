"""Settings of spans: where they are sent, if anywhere."""

from __future__ import annotations

from pydantic import Field

from passerelle.gateway.settings_section import Section, WebUrl


class SpanSettings(Section):
    """Spans for OpenTelemetry; they take the extra ``otel``."""

    otlp_endpoint: WebUrl | None = Field(
        default=None,
        description="Where spans are sent, as OTLP over HTTP: `http://collector:4318/v1/traces`. None: there are none. "
        "`OTEL_EXPORTER_OTLP_HEADERS` and the sampler of `OTEL_TRACES_SAMPLER` count as everywhere.",
    )
