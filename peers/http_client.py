"""The HTTP requests of one peer: its connections, its credential, and the headers that all requests carry."""

from __future__ import annotations

import ssl
from contextlib import asynccontextmanager
from dataclasses import replace
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, TypeAlias

import aiohttp

from passerelle.core.errors import ConfigInvalid, PeerUnavailable
from passerelle.core.wire.display import explain_error
from passerelle.core.wire.record import value
from passerelle.peers import exchange
from passerelle.peers.credential import HEADER_VALUE, ShownCredential
from passerelle.peers.origin import origin_of
from passerelle.peers.request_head import close_head, write_head, write_headers
from passerelle.peers.sessions import check_before_send
from passerelle.runtime.common.carried import AUTHORIZATION, choose_extensions, write_trace

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Mapping

    from passerelle.a2a_mapping.version import Version
    from passerelle.core.peer import SendGuard
    from passerelle.peers.call import AgentReply, PeerRequest
    from passerelle.peers.config import PeerConfig, Tls
    from passerelle.peers.connection_pool import ConnectionPool
    from passerelle.peers.credential import PeerCredential
    from passerelle.peers.interface import Interface
    from passerelle.peers.sessions import PeerSessions
    from passerelle.runtime.common.secret import Secret
    from passerelle.runtime.memory.room import MemoryAccount

    Kind: TypeAlias = tuple[
        str, str, bool, Interface, frozenset[str], ShownCredential, Secret | None
    ]

PUBLIC_BYTES: Final = 262_144
_UNAUTHORIZED: Final = int(HTTPStatus.UNAUTHORIZED)
EXTENSIONS_HEADER: Final[Mapping[Version, str]] = {
    "1.0": "A2A-Extensions",
    "0.3": "X-A2A-Extensions",
}


@value
class _HeadTemplate:
    """What requests of one ``kind`` share: their connections, and the constant part of their head.

    A kind is method, URL, whether there is a body, interface, extensions, and both credentials.
    """

    kind: Kind
    pool: ConnectionPool
    head: bytes


class HttpClient:
    """Makes the requests of one peer. They follow no redirects."""

    def __init__(
        self, config: PeerConfig, sessions: PeerSessions, credential: PeerCredential
    ) -> None:
        """Loads the certificates.

        Raises:
            ConfigInvalid: a certificate cannot be read.
        """
        self._config = config
        self._sessions = sessions
        self._credential = credential
        self._tls = _make_tls(config.name, config.tls) if config.tls else None
        self._template: _HeadTemplate | None = None

    @asynccontextmanager
    async def request(
        self,
        request: PeerRequest,
        origin: str,
        headers: Mapping[str, str],
        timeout_s: float,
        may_send: SendGuard | None = None,
    ) -> AsyncGenerator[aiohttp.ClientResponse, None]:
        """The response to a request. After a 401 it is sent once more if that can help.

        Raises:
            HeldBack: ``may_send`` returned False.
            aiohttp.ClientError, TimeoutError: see ``exchange.explain_failure``.
            PeerUnavailable: no credential can be had; nothing was sent.
            Draining: the client is closed.
        """
        for is_last in (False, True):
            shown = await self._credential.show()
            response = await self._send(request, origin, headers, timeout_s, shown, may_send)
            async with response:
                refused = response.status == _UNAUTHORIZED
                if is_last or not refused or not self._credential.renew(shown):
                    yield response
                    return

    def bind(self, origin: str) -> MemoryAccount | None:
        """The memory account for answers from an origin; None if memory is not counted."""
        return self._sessions.bind(origin)

    def fetch(
        self,
        request: PeerRequest,
        interface: Interface,
        timeout_s: float,
        may_send: SendGuard | None = None,
    ) -> Awaitable[AgentReply]:
        """The whole answer to a request, of at most 24 MiB. After a 401 it is sent once more if that can help.

        Raises:
            NotConnected, HeldBack, ConnectionLost, NotReadable, TimeoutError: see ``whole_answer``.
            PeerUnavailable: no credential can be had; nothing was sent.
            Draining: the client is closed.
        """
        shown = self._credential.shown
        if shown is None or self._credential.renews:
            return self._fetch_renewing(request, interface, timeout_s, may_send)
        return self._ask(request, interface, timeout_s, shown, may_send)

    async def _fetch_renewing(
        self,
        request: PeerRequest,
        interface: Interface,
        timeout_s: float,
        may_send: SendGuard | None,
    ) -> AgentReply:
        is_last = False
        while True:
            shown = self._credential.shown or await self._credential.show()
            reply = await self._ask(request, interface, timeout_s, shown, may_send)
            if is_last or reply.status != _UNAUTHORIZED or not self._credential.renew(shown):
                return reply
            is_last = True

    def _ask(
        self,
        request: PeerRequest,
        interface: Interface,
        timeout_s: float,
        shown: ShownCredential,
        may_send: SendGuard | None,
    ) -> Awaitable[AgentReply]:
        # Most requests are made like the previous one.
        kind = (
            request.method,
            request.url,
            request.body is None,
            interface,
            choose_extensions(interface.extensions),
            shown,
            AUTHORIZATION.get() if self._config.forward_auth else None,
        )
        template = self._template
        if template is None or template.kind != kind:
            pool = self._sessions.pool(interface.origin, self._tls)
            template = self._template = _HeadTemplate(
                kind, pool, self._write_head(request, interface, shown)
            )
        trace = write_trace()
        head = template.head + write_headers(trace) if trace else template.head
        return template.pool.ask(
            close_head(head, request.body),
            connect_s=self._config.connect_timeout_s,
            total_s=timeout_s,
            may_send=may_send,
        )

    def _write_head(
        self, request: PeerRequest, interface: Interface, shown: ShownCredential
    ) -> bytes:
        headers = write_call(interface, request) | write_credential(self._config, shown)
        url = add_credential(request, shown).url
        return write_head(request.method, url, headers)

    async def read_public(self, url: str) -> bytes:
        """Reads a public document without any credential; at most ``PUBLIC_BYTES``.

        Raises:
            PeerUnavailable: it cannot be read.
        """
        origin = origin_of(url) or url
        timeout = exchange.limit_time(self._config, self._config.query_timeout_s)
        try:
            async with self._sessions.open(origin).get(
                url, timeout=timeout, allow_redirects=False, ssl=self._tls or True
            ) as response:
                if response.status != HTTPStatus.OK:
                    raise PeerUnavailable(f"{url}: HTTP {response.status}", url=url)
                return await exchange.read_body(response, PUBLIC_BYTES)
        except (aiohttp.ClientError, TimeoutError) as error:
            reason = exchange.explain_failure(error).reason
            raise PeerUnavailable(f"{url}: {reason}", url=url) from error
        except exchange.TooLong as fault:
            raise PeerUnavailable(f"{url}: {fault}", url=url) from None

    async def _send(
        self,
        request: PeerRequest,
        origin: str,
        headers: Mapping[str, str],
        timeout_s: float,
        shown: ShownCredential,
        may_send: SendGuard | None,
    ) -> aiohttp.ClientResponse:
        authenticated = add_credential(request, shown)
        with check_before_send(may_send):
            return await self._sessions.open(origin).request(
                authenticated.method,
                authenticated.url,
                data=exchange.wrap_body(authenticated.body),
                headers={**headers, **write_carried(self._config, shown)},
                timeout=exchange.limit_time(self._config, timeout_s),
                allow_redirects=False,
                ssl=self._tls or True,
            )


def add_credential(request: PeerRequest, shown: ShownCredential) -> PeerRequest:
    """The request with the query parameter of a credential."""
    if not shown.query:
        return request
    joint = "&" if "?" in request.url else "?"
    return replace(request, url=f"{request.url}{joint}{shown.query}")


def write_carried(config: PeerConfig, shown: ShownCredential) -> dict[str, str]:
    """Headers with the credential and the trace context."""
    return write_credential(config, shown) | write_trace()


def write_credential(config: PeerConfig, shown: ShownCredential) -> dict[str, str]:
    """Headers with the credential."""
    headers = dict(shown.headers)
    own = AUTHORIZATION.get() if config.forward_auth else None
    if own is not None and HEADER_VALUE.fullmatch(own.get_secret_value()):
        headers["Authorization"] = own.get_secret_value()
    return headers


def write_call(
    interface: Interface, request: PeerRequest, *, streams: bool = False
) -> dict[str, str]:
    """Headers with the content type, and the form of the answer."""
    headers = write_version(interface.version, choose_extensions(interface.extensions))
    if request.body is not None:
        headers["Content-Type"] = "application/json"
    headers["Accept"] = "text/event-stream" if streams else "application/json"
    return headers


def write_version(version: Version, wanted: frozenset[str]) -> dict[str, str]:
    """Headers with the version and the requested extensions."""
    # No version means 0.3 (A2A 1.0 section 3.6.2); agents of 0.3 do not know the header.
    headers: dict[str, str] = {"A2A-Version": version} if version != "0.3" else {}
    if wanted:
        headers[EXTENSIONS_HEADER[version]] = ", ".join(sorted(wanted))
    return headers


def _make_tls(name: str, tls: Tls) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=tls.ca)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if tls.cert is not None:
            context.load_cert_chain(tls.cert, tls.key)
    except (OSError, ssl.SSLError) as error:
        raise ConfigInvalid(f"agents.{name}.tls", explain_error(error)) from None
    return context
