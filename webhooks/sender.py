"""Sends one POST to a webhook: no redirect, proxy or cookie; reads status, Retry-After and the first 4 KiB.

Each address is checked again when it is connected to, unless the operator configured it. Screened and trusted addresses
use separate connection pools, so that neither can affect the connections of the other.
"""

from __future__ import annotations

import asyncio
import contextlib
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Final

from aiohttp import ClientConnectorDNSError, ClientError, ClientSSLError, ClientTimeout

from passerelle.peers.sessions import PeerSessions
from passerelle.runtime.common.address_screen import REFUSED_ERRNO, AddressScreen
from passerelle.webhooks.retries import AddressBlocked, ReceiverAnswered, ReceiverUnreached

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aiohttp import ClientResponse
    from aiohttp.abc import AbstractResolver

    from passerelle.core.ports.chance import Clock
    from passerelle.webhooks.addresses import Address
    from passerelle.webhooks.retries import Outcome

TIMEOUT_S: Final = 10.0
ANSWER_BYTES: Final = 4_096
_DAY_S: Final = 86_400


class WebhookSender:
    """Sends requests; ``close`` closes its connections."""

    def __init__(
        self,
        clock: Clock,
        *,
        timeout_s: float = TIMEOUT_S,
        screen: AddressScreen | None = None,
        resolver: AbstractResolver | None = None,
    ) -> None:
        self._clock = clock
        self._timeout = ClientTimeout(total=timeout_s)
        self._screened = PeerSessions(screen=screen or AddressScreen(), resolver=resolver)
        self._trusted = PeerSessions()

    async def post(self, address: Address, headers: Mapping[str, str], body: bytes) -> Outcome:
        """Posts once; returns every failure as a value."""
        sessions = self._trusted if address.trusted else self._screened
        try:
            # One session serves all origins: the configuration does not bound the number of receivers.
            async with sessions.open("webhooks").post(
                address.url,
                data=body,
                headers=headers,
                timeout=self._timeout,
                allow_redirects=False,
            ) as response:
                body = await _read_some(response)
                return ReceiverAnswered(response.status, self._read_retry_after(response), body)
        except TimeoutError:
            return ReceiverUnreached("timeout")
        except (ClientError, OSError, ValueError) as error:
            return _explain(error)

    async def close(self) -> None:
        """Closes every connection."""
        await asyncio.gather(self._screened.close(), self._trusted.close())

    def _read_retry_after(self, response: ClientResponse) -> int:
        text = response.headers.get("Retry-After", "").strip()
        if text.isascii() and text.isdecimal():
            return min(int(text[:9]), _DAY_S) * 1000
        try:
            at_ms = parsedate_to_datetime(text).timestamp() * 1000
        except (TypeError, ValueError, OverflowError):
            return 0
        return max(0, min(round(at_ms) - self._clock.now_ms(), _DAY_S * 1000))


async def _read_some(response: ClientResponse) -> bytes:
    """Reads at most ``ANSWER_BYTES`` of the response: a short body keeps the connection reusable, a long one is cut."""
    said = b""
    with contextlib.suppress(ClientError, TimeoutError, ValueError):
        while len(said) < ANSWER_BYTES:
            chunk = await response.content.read(ANSWER_BYTES - len(said))
            if not chunk:
                break
            said += chunk
    if not response.content.at_eof():
        response.close()
    return said


def _explain(error: Exception) -> Outcome:
    if isinstance(error, OSError) and error.errno == REFUSED_ERRNO:
        return AddressBlocked()
    if isinstance(error, ClientConnectorDNSError):
        return ReceiverUnreached("dns")
    return ReceiverUnreached("tls" if isinstance(error, ClientSSLError) else "connection")
