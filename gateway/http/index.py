"""``GET /``: the entry points, as JSON for programs and as a page for browsers. Public: it shows no caller's data."""

from __future__ import annotations

from html import escape
from typing import Final

import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from passerelle.gateway.http import openapi
from passerelle.runtime.common.version import VERSION

INDEX: Final = "/"
LINKS: Final = {
    "health": ("/healthz", "liveness of the process"),
    "readiness": ("/readyz", "readiness, and the reason if it is not ready"),
    "metrics": ("/metrics", "metrics for Prometheus"),
    "openapi": (openapi.PATH, "tasks, approvals, devices and rules over HTTP"),
    "asyncapi": (
        openapi.ASYNCAPI_PATH,
        "the frames of the channel for user interfaces and devices",
    ),
}
"""The path of each link, and its description."""
AGENT_CARD: Final = "/agents/{name}/.well-known/agent-card.json"
_HTML: Final = "text/html"
_HEADERS: Final = {
    "Cache-Control": "no-store",
    "Vary": "Accept",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
}


def make_index_route() -> Route:
    """The route, without authentication."""

    async def answer(request: Request) -> Response:
        if _HTML in request.headers.get("Accept", ""):
            return Response(_render_page(), headers=_HEADERS, media_type=_HTML)
        links = {name: path for name, (path, _) in LINKS.items()}
        body = {"name": "Passerelle", "version": VERSION, "links": links, "agentCard": AGENT_CARD}
        return Response(orjson.dumps(body), headers=_HEADERS, media_type="application/json")

    return Route(INDEX, answer)


def _render_page() -> str:
    rows = "\n".join(
        f'<li><a href="{path}">{path}</a>: {escape(about)}</li>' for path, about in LINKS.values()
    )
    return f"""<!doctype html>
<html lang="en">
<meta charset="utf-8">
<title>Passerelle</title>
<h1>Passerelle {escape(VERSION)}</h1>
<p>A gateway for agents that speak A2A. The card of an agent is at <code>{escape(AGENT_CARD)}</code>.</p>
<ul>
{rows}
</ul>
</html>
"""
