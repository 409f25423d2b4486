"""Liveness (``/healthz``), readiness (``/readyz``) and metrics (``/metrics``)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias

import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from passerelle.core.errors import PasserelleError
from passerelle.core.frozen import frozen
from passerelle.runtime.common.version import VERSION
from passerelle.runtime.observability import metrics

UNREADY: Final = 503


@frozen
class Readiness:
    """Whether the instance takes work; ``reason`` states why not."""

    ready: bool
    reason: str | None = None
    configuration: str | None = None
    """The fault of the configuration file, while the previous configuration is in use; does not affect readiness."""
    policy: str | None = None
    """What is wrong with the edited rules; does not affect readiness."""
    replicas: str | None = None
    """What is wrong with the store's replicas; does not affect readiness."""
    durability: str | None = None
    """Which settings of the store can lose acknowledged writes; does not affect readiness."""
    clock: str | None = None
    """The clock skew between this machine and the store, if it is large; does not affect readiness."""
    memory: str | None = None
    """How full the store is, if nearly full: existing work continues, so it does not affect readiness."""
    archive: str | None = None
    """Why no session leaves the store's memory; does not affect readiness."""
    blobs: str | None = None
    """Why large content could not be written or read, within the last minute; does not affect readiness."""


_OPEN: Final = metrics.OPEN_MEDIA_TYPE.partition(";")[0]
Probe: TypeAlias = Callable[[], Awaitable[Readiness]]
"""Writes to the store and returns the state. A PasserelleError means not ready."""


async def _refresh_nothing() -> None:
    """Does nothing: the metrics are current."""


def make_health_routes(
    probe: Probe,
    counted: metrics.Metrics,
    refresh: Callable[[], Awaitable[None]] = _refresh_nothing,
) -> list[Route]:
    """The three routes, without authentication. Calls ``refresh`` before it renders the metrics."""

    async def answer_health(_request: Request) -> Response:
        return _answer(200, {"status": "ok", "version": VERSION})

    async def answer_ready(_request: Request) -> Response:
        try:
            readiness = await probe()
        except PasserelleError as error:
            readiness = Readiness(ready=False, reason=str(error))
        if readiness.ready:
            noted = {
                "configuration": readiness.configuration,
                "policy": readiness.policy,
                "replicas": readiness.replicas,
                "durability": readiness.durability,
                "clock": readiness.clock,
                "memory": readiness.memory,
                "archive": readiness.archive,
                "blobs": readiness.blobs,
            }
            warnings = {name: text for name, text in noted.items() if text}
            return _answer(200, {"status": "ready"} | warnings)
        return _answer(UNREADY, {"status": "unready", "reason": readiness.reason or "starting"})

    async def answer_metrics(request: Request) -> Response:
        wants_open = _OPEN in request.headers.get("accept", "")
        await refresh()
        media_type = metrics.OPEN_MEDIA_TYPE if wants_open else metrics.MEDIA_TYPE
        text = counted.render(exemplars=wants_open)
        return Response(text, headers={"Content-Type": media_type})

    return [
        Route("/healthz", answer_health),
        Route("/readyz", answer_ready),
        Route("/metrics", answer_metrics),
    ]


def _answer(status: int, body: dict[str, str]) -> Response:
    headers = {"Cache-Control": "no-store"}
    if status == UNREADY:
        headers["Retry-After"] = "1"
    return Response(orjson.dumps(body), status, headers, "application/json")
