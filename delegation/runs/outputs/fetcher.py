"""One file that an agent named by its address: who may be asked, how much is read, and what came of it.

Agents write these addresses, so each one is screened like that of a webhook: by the allow-list, and again at the moment
of the connection. A redirect leads to an address that is judged anew. No cookie, no credential and no proxy go along.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, TypeAlias

from aiohttp import ClientError, ClientTimeout
from yarl import URL

from passerelle.core.errors import InvalidInput
from passerelle.peers.sessions import PeerSessions
from passerelle.runtime.common.screening import REFUSED_ERRNO, Screen

if TYPE_CHECKING:
    from aiohttp import ClientResponse
    from aiohttp.abc import AbstractResolver

    from passerelle.webhooks.addresses import Address, WebhookRules

_REDIRECTS: Final = 3
_CHUNK: Final = 65_536
_MOVED: Final = frozenset({301, 302, 303, 307, 308})
_LATER: Final = frozenset({HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS})
_SERVER_FAULT: Final = 500


@dataclass(frozen=True, slots=True)
class Fetched:
    """The file, or its beginning. ``size`` is that of the whole, as far as the server said it."""

    content: bytes
    media_type: str
    size: int
    is_cut: bool


@dataclass(frozen=True, slots=True)
class Gone:
    """It is not to be had there, now or later."""

    reason: str


@dataclass(frozen=True, slots=True)
class Away:
    """It was not to be had now."""

    reason: str


FetchOutcome: TypeAlias = Fetched | Gone | Away


@dataclass(frozen=True, slots=True)
class _Moved:
    to: str


class Fetcher:
    """Fetches files; ``close`` ends its connections."""

    def __init__(
        self,
        rules: WebhookRules,
        max_bytes: int,
        timeout_s: float,
        *,
        screen: Screen | None = None,
        resolver: AbstractResolver | None = None,
    ) -> None:
        self._rules = rules
        self.limit(max_bytes, timeout_s)
        self._screened = PeerSessions(screen=screen or Screen(), resolver=resolver)
        self._trusted = PeerSessions()

    def limit(self, max_bytes: int, timeout_s: float) -> None:
        """Other limits, from the next file on."""
        self._max_bytes = max_bytes
        self._timeout = ClientTimeout(total=timeout_s)

    async def fetch(self, url: str) -> FetchOutcome:
        """The file at ``url``; every failure is a value."""
        for _ in range(_REDIRECTS + 1):
            try:
                address = self._rules.judge(url)
            except InvalidInput as error:
                return Gone(error.reason)
            outcome = await self._ask(address)
            if not isinstance(outcome, _Moved):
                return outcome
            url = outcome.to
        return Gone("too many redirects")

    async def close(self) -> None:
        """Closes every connection."""
        await asyncio.gather(self._screened.close(), self._trusted.close())

    async def _ask(self, address: Address) -> FetchOutcome | _Moved:
        sessions = self._trusted if address.trusted else self._screened
        try:
            async with sessions.open("outputs").get(
                address.url,
                headers={"Accept-Encoding": "identity"},
                timeout=self._timeout,
                allow_redirects=False,
            ) as response:
                return await self._read(address, response)
        except TimeoutError:
            return Away("no answer in time")
        except (ClientError, OSError, ValueError) as error:
            if isinstance(error, OSError) and error.errno == REFUSED_ERRNO:
                return Gone("its address is not allowed")
            return Away("no connection")

    async def _read(self, address: Address, response: ClientResponse) -> FetchOutcome | _Moved:
        status = response.status
        if status in _MOVED and "Location" in response.headers:
            return _Moved(str(address.url.join(URL(response.headers["Location"]))))
        if status in _LATER or status >= _SERVER_FAULT:
            return Away(f"HTTP {status}")
        if status != HTTPStatus.OK:
            return Gone(f"HTTP {status}")
        content = bytearray()
        while len(content) <= self._max_bytes and (chunk := await response.content.read(_CHUNK)):
            content += chunk
        is_cut = len(content) > self._max_bytes
        if is_cut:
            response.close()
        kept = bytes(content[: self._max_bytes])
        size = max(response.content_length or 0, len(content))
        return Fetched(kept, response.content_type, size, is_cut)
