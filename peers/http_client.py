"""The requests of one peer: its connections, its credential, what every request carries on."""

from __future__ import annotations

import ssl
from contextlib import asynccontextmanager
from dataclasses import replace
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, TypeAlias

import aiohttp

from passerelle.core.errors import ConfigInvalid, PeerUnavailable
from passerelle.core.wire.record import value
from passerelle.peers import exchange
from passerelle.peers.credential import HEADER_VALUE, ShownCredential
from passerelle.peers.origin import origin_of
from passerelle.peers.request_head import close_head, write_head, write_headers
from passerelle.peers.sessions import asking
from passerelle.runtime.common.carried import AUTHORIZATION, find_wanted, write_trace

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
class _Form:
    """What the requests of one ``kind`` have in common: their connections, and what stands in every head of them.

    A kind is method, URL, whether there is a body, interface, extensions, and both credentials.
    """

    kind: Kind
    pool: ConnectionPool
    head: bytes


class HttpClient:
    """Makes the requests of one peer. They follow no redirect."""

    def __init__(
        self, config: PeerConfig, sessions: PeerSessions, credential: PeerCredential
    ) -> None:
        """Loads certificates.

        Raises:
            ConfigInvalid: one cannot be read.
        """
        self._config = config
        self._sessions = sessions
        self._credential = credential
        self._tls = _make_tls(config.name, config.tls) if config.tls else None
        self._form: _Form | None = None

    @asynccontextmanager
    async def request(
        self,
        request: PeerRequest,
        origin: str,
        headers: Mapping[str, str],
        timeout_s: float,
        may_send: SendGuard | None = None,
    ) -> AsyncGenerator[aiohttp.ClientResponse, None]:
        """The response to a request. One that was refused with 401 is made once more where that can help.

        Raises:
            HeldBack: ``may_send`` said no.
            aiohttp.ClientError, TimeoutError: see ``exchange.explain_failure``.
            PeerUnavailable: no credential is to be had; nothing was sent.
            Draining: no more requests are made.
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
        """What answers from an origin draw on; None where nothing is counted."""
        return self._sessions.bind(origin)

    def fetch(
        self,
        request: PeerRequest,
        interface: Interface,
        timeout_s: float,
        may_send: SendGuard | None = None,
    ) -> Awaitable[AgentReply]:
        """The whole answer to a request, of at most 24 MiB. One refused with 401 is made once more where that can help.

        Raises:
            NotConnected, HeldBack, ConnectionLost, NotReadable, TimeoutError: see ``whole_answer``.
            PeerUnavailable: no credential is to be had; nothing was sent.
            Draining: no more requests are made.
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
        # One is mostly made like the one before it.
        kind = (
            request.method,
            request.url,
            request.body is None,
            interface,
            find_wanted(interface.extensions),
            shown,
            AUTHORIZATION.get() if self._config.forward_auth else None,
        )
        form = self._form
        if form is None or form.kind != kind:
            pool = self._sessions.pool(interface.origin, self._tls)
            form = self._form = _Form(kind, pool, self._write_head(request, interface, shown))
        trace = write_trace()
        head = form.head + write_headers(trace) if trace else form.head
        return form.pool.ask(
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
        """A document that everybody may read, asked for without any credential; at most ``PUBLIC_BYTES``.

        Raises:
            PeerUnavailable: it cannot be had.
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
        dressed = add_credential(request, shown)
        with asking(may_send):
            return await self._sessions.open(origin).request(
                dressed.method,
                dressed.url,
                data=exchange.wrap_body(dressed.body),
                headers={**headers, **write_carried(self._config, shown)},
                timeout=exchange.limit_time(self._config, timeout_s),
                allow_redirects=False,
                ssl=self._tls or True,
            )


def add_credential(request: PeerRequest, shown: ShownCredential) -> PeerRequest:
    """The request with the part of a credential that stands in its address."""
    if not shown.query:
        return request
    joint = "&" if "?" in request.url else "?"
    return replace(request, url=f"{request.url}{joint}{shown.query}")


def write_carried(config: PeerConfig, shown: ShownCredential) -> dict[str, str]:
    """Headers that say who calls, and on behalf of what."""
    return write_credential(config, shown) | write_trace()


def write_credential(config: PeerConfig, shown: ShownCredential) -> dict[str, str]:
    """Headers that say who calls."""
    headers = dict(shown.headers)
    own = AUTHORIZATION.get() if config.forward_auth else None
    if own is not None and HEADER_VALUE.fullmatch(own.get_secret_value()):
        headers["Authorization"] = own.get_secret_value()
    return headers


def write_call(
    interface: Interface, request: PeerRequest, *, streams: bool = False
) -> dict[str, str]:
    """Headers that say what is asked, and in which form it is answered."""
    headers = write_version(interface.version, find_wanted(interface.extensions))
    if request.body is not None:
        headers["Content-Type"] = "application/json"
    headers["Accept"] = "text/event-stream" if streams else "application/json"
    return headers


def write_version(version: Version, wanted: frozenset[str]) -> dict[str, str]:
    """Headers that say the version, and the extensions that are asked for."""
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
        raise ConfigInvalid(f"agents.{name}.tls", str(error)) from None
    return context
