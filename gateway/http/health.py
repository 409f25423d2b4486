"""Whether the process lives (``/healthz``), whether it can work (``/readyz``), and what it counted (``/metrics``)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from passerelle.core.errors import PasserelleError
from passerelle.runtime.common.version import VERSION
from passerelle.runtime.observability import metrics

UNREADY: Final = 503


@dataclass(frozen=True, slots=True)
class Readiness:
    """Whether work is taken; ``reason`` says why not."""

    ready: bool
    reason: str | None = None
    configuration: str | None = None
    """What is wrong with the file, while the configuration before is in force; it makes nobody unready."""
    policy: str | None = None
    """What has to be mended in the edited rules; it makes nobody unready."""
    replicas: str | None = None
    """What is wrong with the replicas of the store; it makes nobody unready, either."""
    clock: str | None = None
    """How far the clocks of this machine and the store are apart, if far; nobody is unready for it."""
    memory: str | None = None
    """How full the store is, if it is nearly full: what is there goes on, so nobody is unready for it."""
    archive: str | None = None
    """Why nothing leaves the memory of the store; nobody is unready for it."""


_OPEN: Final = metrics.OPEN_MEDIA_TYPE.partition(";")[0]
Probe: TypeAlias = Callable[[], Awaitable[Readiness]]
"""Writes to the store and says whether that held. An error of ours is the same as not ready."""


async def _refresh_nothing() -> None:
    """What is counted stands already."""


def make_health_routes(
    probe: Probe,
    counted: metrics.Metrics,
    refresh: Callable[[], Awaitable[None]] = _refresh_nothing,
) -> list[Route]:
    """The three routes; none of them asks for a credential. ``refresh`` comes before what was counted is shown."""

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
                "clock": readiness.clock,
                "memory": readiness.memory,
                "archive": readiness.archive,
            }
            said = {name: text for name, text in noted.items() if text}
            return _answer(200, {"status": "ready"} | said)
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
