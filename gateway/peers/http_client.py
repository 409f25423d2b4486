"""The requests of one peer: its connections, its credential, what every request carries on."""

from __future__ import annotations

import ssl
from contextlib import asynccontextmanager
from dataclasses import replace
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

import aiohttp

from passerelle.core.errors import ConfigInvalid, PeerUnavailable
from passerelle.gateway.peers import exchange
from passerelle.gateway.peers.carried import AUTHORIZATION, EXTENSIONS, write_trace
from passerelle.gateway.peers.credential import HEADER_VALUE
from passerelle.gateway.peers.origin import origin_of

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping
    from contextlib import AbstractAsyncContextManager

    from passerelle.gateway.peers.config import PeerConfig, Tls
    from passerelle.gateway.peers.credential import Credential, Shown
    from passerelle.gateway.peers.interface import Version
    from passerelle.gateway.peers.sessions import PeerSessions
    from passerelle.gateway.peers.wire import Reply, Request

PUBLIC_BYTES: Final = 262_144
_UNAUTHORIZED: Final = int(HTTPStatus.UNAUTHORIZED)
_EXTENSIONS_HEADER: Final[Mapping[Version, str]] = {
    "1.0": "A2A-Extensions",
    "0.3": "X-A2A-Extensions",
}


class HttpClient:
    """Makes the requests of one peer. They follow no redirect."""

    def __init__(self, config: PeerConfig, sessions: PeerSessions, credential: Credential) -> None:
        """Loads certificates.

        Raises:
            ConfigInvalid: one cannot be read.
        """
        self._config = config
        self._sessions = sessions
        self._credential = credential
        self._tls = _make_tls(config.name, config.tls) if config.tls else None

    @asynccontextmanager
    async def request(
        self,
        request: Request,
        origin: str,
        headers: Mapping[str, str],
        timeout_s: float,
    ) -> AsyncGenerator[aiohttp.ClientResponse, None]:
        """The response to a request. One that was refused with 401 is made once more where that can help.

        Raises:
            aiohttp.ClientError, TimeoutError: see ``exchange.explain_failure``.
            PeerUnavailable: no credential is to be had; nothing was sent.
            Draining: no more requests are made.
        """
        for is_last in (False, True):
            shown = await self._credential.show()
            async with self._send(request, origin, headers, timeout_s, shown) as response:
                refused = response.status == _UNAUTHORIZED
                if is_last or not refused or not self._credential.renew(shown):
                    yield response
                    return

    async def fetch(
        self, request: Request, origin: str, headers: Mapping[str, str], timeout_s: float
    ) -> Reply:
        """The whole answer to a request, of at most 16 MiB. One refused with 401 is made once more where that can help.

        Raises:
            NotConnected, Broken, NotReadable, TimeoutError: see ``whole_answer``.
            PeerUnavailable: no credential is to be had; nothing was sent.
            Draining: no more requests are made.
        """
        pool = self._sessions.pool(origin, self._tls)
        connect_s = min(self._config.connect_timeout_s, timeout_s / 2)

        shown = await self._credential.show()
        dressed, carried = self._dress(request, headers, shown)
        reply = await pool.ask(dressed, carried, connect_s=connect_s, total_s=timeout_s)
        if reply.status == _UNAUTHORIZED and self._credential.renew(shown):
            dressed, carried = self._dress(request, headers, await self._credential.show())
            reply = await pool.ask(dressed, carried, connect_s=connect_s, total_s=timeout_s)
        return reply

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

    def _send(
        self,
        request: Request,
        origin: str,
        headers: Mapping[str, str],
        timeout_s: float,
        shown: Shown,
    ) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        dressed, carried = self._dress(request, headers, shown)
        return self._sessions.open(origin).request(
            dressed.method,
            dressed.url,
            data=exchange.wrap_body(dressed.body),
            headers=carried,
            timeout=exchange.limit_time(self._config, timeout_s),
            allow_redirects=False,
            ssl=self._tls or True,
        )

    def _dress(
        self, request: Request, headers: Mapping[str, str], shown: Shown
    ) -> tuple[Request, dict[str, str]]:
        """The request with the credential, and everything that it carries on."""
        if shown.query:
            joint = "&" if "?" in request.url else "?"
            request = replace(request, url=f"{request.url}{joint}{shown.query}")
        return request, {**headers, **write_carried(self._config, shown)}


def write_carried(config: PeerConfig, shown: Shown) -> dict[str, str]:
    """Headers that say who calls, and on behalf of what."""
    headers = dict(shown.headers)
    own = AUTHORIZATION.get() if config.forward_auth else None
    if own is not None and HEADER_VALUE.fullmatch(own.get_secret_value()):
        headers["Authorization"] = own.get_secret_value()
    headers |= write_trace()
    return headers


def write_version(version: Version, declared: frozenset[str]) -> dict[str, str]:
    """Headers that say the version, and those of the caller's extensions that the peer declares."""
    # No version means 0.3 (A2A 1.0 section 3.6.2); agents of 0.3 do not know the header.
    headers: dict[str, str] = {"A2A-Version": version} if version != "0.3" else {}
    wanted = EXTENSIONS.get() & declared
    if wanted:
        headers[_EXTENSIONS_HEADER[version]] = ", ".join(sorted(wanted))
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
