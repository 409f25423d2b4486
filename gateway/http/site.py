"""The whole site: routes, errors as problems, and without authentication a guard against foreign web pages.

With ``--auth open`` every caller that reaches the port is the owner, and any web page in a browser can reach a loopback
port: directly (then the request has an ``Origin``), or under its own host name that resolves to 127.0.0.1 (then the
``Host`` is that name). Both are rejected unless they name this machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from urllib.parse import urlsplit

from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from passerelle.core.errors import Forbidden, InvalidInput
from passerelle.core.wire.headers import REASON, find_repeated
from passerelle.gateway.http.problem import EXCEPTION_HANDLERS, FaultGuard, render_problem
from passerelle.gateway.settings.model import Settings, is_loopback


def make_site(
    routes: Sequence[BaseRoute],
    settings: Settings,
    wrap: Callable[[ASGIApp], ASGIApp] = lambda site: site,
) -> ASGIApp:
    """The ASGI application that serves ``routes``; ``wrap`` adds what runs before the router, inside the guard."""
    guarded = Starlette(
        routes=routes,
        middleware=[Middleware(FaultGuard)],
        exception_handlers=EXCEPTION_HANDLERS,
    )
    # A redirect would lead to the host in the request, without TLS, and a token would go along.
    guarded.router.redirect_slashes = False
    site = wrap(guarded)
    return site if settings.auth != "open" else LoopbackGuard(site, find_own_hosts(settings))


def find_own_hosts(settings: Settings) -> OwnHosts:
    """The names of this machine in the settings."""
    urls = (settings.public_url, *settings.channels.origins)
    return OwnHosts(name for url in urls if (name := urlsplit(url or "").hostname))


class LoopbackGuard:
    """Lets requests through that name this machine."""

    def __init__(self, app: ASGIApp, hosts: OwnHosts) -> None:
        self._app = app
        self._hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in {"http", "websocket"}:
            await self._app(scope, receive, send)
        elif scope["type"] == "http" and (repeated := _find_repeated(scope)) is not None:
            await render_problem(InvalidInput(repeated, REASON))(scope, receive, send)
        elif self._hosts.admits(scope):
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            refusal = Forbidden("a web page of another origin, or another name for this machine")
            await render_problem(refusal)(scope, receive, send)
        else:
            # Closing before accepting rejects the handshake.
            await receive()
            await send({"type": "websocket.close", "code": 1008})


def _find_repeated(scope: Scope) -> str | None:
    return find_repeated([name for name, _ in scope["headers"]])


class OwnHosts:
    """Loopback, and further names of this machine."""

    def __init__(self, hosts: Iterable[str] = ()) -> None:
        self._hosts = frozenset(host.lower() for host in hosts)

    def admits(self, scope: Scope) -> bool:
        """Whether a request names this machine once, and is not from a foreign web page."""
        if _find_repeated(scope) is not None:
            return False
        headers = Headers(scope=scope)
        origin = headers.get("origin")
        named = [f"//{headers.get('host', '')}", *([] if origin is None else [origin])]
        return all(self._is_ours(url) for url in named)

    def _is_ours(self, url: str) -> bool:
        try:
            host = urlsplit(url).hostname
        except ValueError:
            return False
        return host is not None and (is_loopback(host) or host in self._hosts)
