"""A span collector on a loopback socket: OTLP over HTTP, as OpenTelemetry's own exporter sends it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.support.loopback_server import LoopbackServer


@dataclass(frozen=True, slots=True)
class Span:
    """The fields of a span that tests read."""

    name: str
    kind: int
    trace: str
    span: str
    parent: str
    failed: bool
    attributes: dict[str, str]


@dataclass
class Collector(LoopbackServer):
    """Keeps the spans that it receives."""

    spans: list[Span] = field(default_factory=list[Span])
    services: set[str] = field(default_factory=set[str])
    PATH: ClassVar = "/v1/traces"

    def list_routes(self) -> list[web.RouteDef]:
        """The routes."""
        return [web.post("/v1/traces", self._take)]

    def find(self, name: str, kind: int) -> Span:
        """The only span with that name and kind."""
        [found] = [span for span in self.spans if (span.name, span.kind) == (name, kind)]
        return found

    async def _take(self, request: web.Request) -> web.Response:
        sent = ExportTraceServiceRequest.FromString(await request.read())
        for resource in sent.resource_spans:
            names = {one.key: one.value.string_value for one in resource.resource.attributes}
            self.services.add(names["service.name"])
            for scope in resource.scope_spans:
                self.spans += [
                    Span(
                        one.name,
                        one.kind,
                        one.trace_id.hex(),
                        one.span_id.hex(),
                        one.parent_span_id.hex(),
                        failed=one.status.code == one.status.STATUS_CODE_ERROR,
                        attributes={at.key: at.value.string_value for at in one.attributes},
                    )
                    for one in scope.spans
                ]
        return web.Response()
