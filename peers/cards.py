"""Discovery: the card of one peer, read over HTTP and cached as long as the peer allows."""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, Protocol

import aiohttp
import structlog

from passerelle.core.errors import PeerUnavailable, RemoteError
from passerelle.peers import exchange
from passerelle.peers.call import PeerRequest
from passerelle.peers.card import KnownCard, read_card, reject_card
from passerelle.peers.origin import origin_of
from passerelle.peers.signatures import CardJudge

if TYPE_CHECKING:
    from passerelle.core.ports.chance import Clock
    from passerelle.peers.config import PeerConfig
    from passerelle.peers.http_client import HttpClient
    from passerelle.peers.interface import Choice

MAX_CARD_BYTES: Final = 1024 * 1024
_DEFAULT_AGE_S: Final = 600
_MIN_AGE_S: Final = 60
_MAX_AGE_S: Final = 86_400
# While a peer is away its last card is used, and not every call waits for another connection attempt.
_RETRY_AFTER_MS: Final = 10_000

_MAX_AGE: Final = re.compile(r"(?:^|[,\s])max-age\s*=\s*\"?(\d{1,9})", re.IGNORECASE)
_NO_CACHE: Final = re.compile(r"(?:^|[,\s])no-(?:cache|store)\b", re.IGNORECASE)


class Cards(Protocol):
    """The card of one peer, from any source."""

    @property
    def known(self) -> KnownCard | None:
        """The last valid card."""
        ...

    @property
    def fresh(self) -> KnownCard | None:
        """The card, if ``load`` needs no request for it."""
        ...

    async def load(self) -> KnownCard:
        """Loads the card. Raises RemoteError if there has never been a valid one."""
        ...

    def expire(self) -> None:
        """Makes the next ``load`` fetch the card again."""
        ...


class CardCache:
    """The card of one peer. One request at a time fetches it, however many callers wait."""

    def __init__(
        self,
        config: PeerConfig,
        client: HttpClient,
        clock: Clock,
        kinds: tuple[Choice, ...],
    ) -> None:
        """``kinds`` of interfaces that are supported, the preferred one first."""
        self._config = config
        self._kinds = kinds
        self._client = client
        self._clock = clock
        self._judge = CardJudge(config.trust, client.read_public, clock)
        self._asking = asyncio.Lock()
        self._attempts = 0
        self._failure: RemoteError | None = None
        self._known: KnownCard | None = None
        self._fresh_until_ms = 0
        self._validators: dict[str, str] = {}

    @property
    def known(self) -> KnownCard | None:
        """The last valid card."""
        return self._known

    @property
    def fresh(self) -> KnownCard | None:
        """The card, if it is fresh."""
        return self._known if self._clock.now_ms() < self._fresh_until_ms else None

    async def load(self) -> KnownCard:
        """The card: from memory while fresh, else fetched again, else the last valid one marked stale.

        Raises:
            PeerUnavailable: it cannot be read, and has never been.
            InvalidAgentResponse: it was read and is invalid, and there has never been a valid one.
        """
        if (fresh := self.fresh) is not None:
            return fresh
        seen = self._attempts
        async with self._asking:
            if self._attempts == seen:
                await self._refresh()
        if self._known is not None:
            return self._known
        raise self._failure or PeerUnavailable("no card", peer=self._config.name)

    def expire(self) -> None:
        """Makes the next ``load`` ask the peer: an answer of it did not match its card."""
        self._fresh_until_ms = 0

    async def _refresh(self) -> None:
        try:
            self._known, age_s = await self._fetch()
            self._failure = None
            self._fresh_until_ms = self._clock.now_ms() + age_s * 1000
        except RemoteError as error:
            self._failure = error
            if self._known is not None:
                self._known = replace(self._known, card=replace(self._known.card, stale=True))
                self._fresh_until_ms = self._clock.now_ms() + _RETRY_AFTER_MS
        # Not counted if the caller left: then the next one in line fetches.
        self._attempts += 1

    async def _fetch(self) -> tuple[KnownCard, int]:
        config = self._config
        headers = {"A2A-Version": "1.0", "Accept": "application/json"}
        if self._known is not None:
            headers.update(self._validators)
        origin = origin_of(config.url) or config.url
        asked = PeerRequest("GET", config.card_url)
        try:
            async with self._client.request(
                asked, origin, headers, config.query_timeout_s
            ) as response:
                return await self._read(response), _read_age_s(response)
        except (aiohttp.ClientError, TimeoutError) as error:
            raise self._report(exchange.explain_failure(error).reason) from error

    async def _read(self, response: aiohttp.ClientResponse) -> KnownCard:
        if response.status == HTTPStatus.NOT_MODIFIED and self._known is not None:
            return replace(self._known, card=replace(self._known.card, stale=False))
        if response.status != HTTPStatus.OK:
            raise self._report(f"HTTP {response.status}")
        try:
            raw = await exchange.read_body(response, MAX_CARD_BYTES)
        except exchange.TooLong as fault:
            raise reject_card(self._config, "the body", str(fault)) from None
        read = read_card(self._config, self._kinds, raw)
        known = await verify_card(self._config, self._judge, read)
        pairs = (("If-None-Match", "ETag"), ("If-Modified-Since", "Last-Modified"))
        self._validators = {
            ask: response.headers[given] for ask, given in pairs if given in response.headers
        }
        return known

    def _report(self, reason: str) -> PeerUnavailable:
        config = self._config
        return PeerUnavailable(
            f"peer {config.name}: its card at {config.card_url} cannot be read: {reason}",
            peer=config.name,
            url=config.card_url,
            reason=reason,
        )


async def verify_card(config: PeerConfig, judge: CardJudge, known: KnownCard) -> KnownCard:
    """The card with the result of its signature check.

    Raises:
        InvalidAgentResponse: its signature is required and not valid; such a card is not used.
    """
    verdict = await judge.judge(known.card.card)
    if verdict.standing not in {"unchecked", "verified"}:
        structlog.get_logger().warning(
            "peer.card_signature",
            peer=config.name,
            standing=verdict.standing,
            reason=verdict.reason,
        )
        if config.trust.policy == "require":
            reason = f"{verdict.standing}: {verdict.reason}"
            raise reject_card(config, "signatures", reason)
    return replace(known, card=replace(known.card, signature=verdict.standing))


def _read_age_s(response: aiohttp.ClientResponse) -> int:
    """How long the card is fresh: as the peer states, between a minute and a day."""
    control = ", ".join(response.headers.getall("Cache-Control", ()))
    if _NO_CACHE.search(control):
        return _MIN_AGE_S
    max_age = _MAX_AGE.search(control)
    return min(max(int(max_age[1]), _MIN_AGE_S), _MAX_AGE_S) if max_age else _DEFAULT_AGE_S
