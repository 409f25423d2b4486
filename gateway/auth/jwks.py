"""The published keys of an identity provider: fetched on first use, cached, and fetched again for an unknown key id.

The key set is fetched from the configured address, or from the provider's discovery document. Tokens with unknown key
ids cause at most one request in ``PAUSE_MS``, however many arrive. If the keys cannot be fetched again, they stay valid
for a day: an identity provider that is down for an hour logs no caller out.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, Protocol, cast
from urllib.parse import urlsplit

import aiohttp
import jwt
import orjson
import structlog
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

from passerelle.core.errors import IssuerUnavailable
from passerelle.peers.exchange import describe

if TYPE_CHECKING:
    from passerelle.core.ports.chance import Clock
    from passerelle.gateway.settings.callers import IssuerSettings
    from passerelle.peers.sessions import PeerSessions

FRESH_MS: Final = 600_000
PAUSE_MS: Final = 10_000
STALE_MS: Final = 86_400_000
_KEY_LIMIT: Final = 100
_RSA_BITS: Final = 2048
_PRIVATE: Final = frozenset({"d", "k"})


class KeySource(Protocol):
    """The source of one issuer's key set."""

    async def fetch(self) -> bytes:
        """Returns the key set as JSON.

        Raises:
            IssuerUnavailable: it cannot be fetched; the message states why, for the log.
        """
        ...


class KeySet:
    """The keys of one issuer. ``version`` increases when they change."""

    def __init__(self, name: str, source: KeySource, clock: Clock) -> None:
        self._name = name
        self._source = source
        self._clock = clock
        self._raw: list[dict[str, object]] = []
        self._made: dict[tuple[str, str], jwt.PyJWK] = {}
        self._fetched_ms = 0
        self._tried_ms = 0
        self._fetching: asyncio.Task[None] | None = None
        self.version = 0

    async def find(self, key_id: object, algorithm: str) -> jwt.PyJWK | None:
        """The key for a token; None if the issuer has no such key.

        Raises:
            IssuerUnavailable: there are no keys, or they are too old to be trusted.
        """
        now_ms = self._clock.now_ms()
        age_ms = now_ms - self._fetched_ms
        if not self._raw or age_ms > STALE_MS:
            await self._refresh(now_ms)
            if not self._raw or self._clock.now_ms() - self._fetched_ms > STALE_MS:
                raise IssuerUnavailable(
                    f"the keys of {self._name} cannot be fetched", retry_after_s=10
                )
        elif age_ms > FRESH_MS:
            self._start(now_ms)
        found = self._choose(key_id, algorithm)
        if found is None and await self._refresh(self._clock.now_ms()):
            found = self._choose(key_id, algorithm)
        return found

    def keep_fresh(self) -> bool:
        """Refreshes old keys in the background; False if they are too old to trust what they verified."""
        now_ms = self._clock.now_ms()
        age_ms = now_ms - self._fetched_ms
        if age_ms > FRESH_MS:
            self._start(now_ms)
        return age_ms <= STALE_MS

    async def close(self) -> None:
        """Cancels a fetch in progress."""
        if self._fetching is not None:
            self._fetching.cancel()
            await asyncio.wait((self._fetching,))

    async def _refresh(self, now_ms: int) -> bool:
        """Whether the keys were fetched again; False soon after the last attempt."""
        fetching = self._start(now_ms)
        if fetching is None:
            return False
        await asyncio.shield(fetching)
        return True

    def _start(self, now_ms: int) -> asyncio.Task[None] | None:
        if self._fetching is None and now_ms - self._tried_ms >= PAUSE_MS:
            self._tried_ms = now_ms
            self._fetching = asyncio.create_task(self._fetch(), name=f"jwks:{self._name}")
        return self._fetching

    async def _fetch(self) -> None:
        try:
            keys = read_keys(await self._source.fetch())
        except IssuerUnavailable as error:
            structlog.get_logger().warning("jwks.failed", issuer=self._name, reason=error.message)
            return
        finally:
            self._fetching = None
        self._fetched_ms = self._clock.now_ms()
        if keys != self._raw:
            self._raw = keys
            self._made.clear()
            self.version += 1

    def _choose(self, key_id: object, algorithm: str) -> jwt.PyJWK | None:
        """The key with that id; a token without an id matches if there is only one key."""
        if key_id is None and len(self._raw) == 1:
            key_id = self._raw[0].get("kid", "")
        if not isinstance(key_id, str):
            return None
        made = self._made.get((key_id, algorithm))
        if made is None:
            raw = next((one for one in self._raw if one.get("kid", "") == key_id), None)
            made = make_key(raw, algorithm) if raw else None
            if made is not None:
                self._made[key_id, algorithm] = made
        return made


def read_keys(body: bytes) -> list[dict[str, object]]:
    """The public signing keys in a key set.

    Raises:
        IssuerUnavailable: it is not a key set, or has too many keys.
    """
    try:
        document: object = orjson.loads(body)
    except orjson.JSONDecodeError:
        raise IssuerUnavailable("the key set is not JSON") from None
    listed = cast("dict[str, object]", document).get("keys") if isinstance(document, dict) else None
    if not isinstance(listed, list) or len(cast("list[object]", listed)) > _KEY_LIMIT:
        raise IssuerUnavailable(f"the key set has no list of at most {_KEY_LIMIT} keys")
    keys = [
        cast("dict[str, object]", one)
        for one in cast("list[object]", listed)
        if isinstance(one, dict)
    ]
    return [one for one in keys if one.get("use", "sig") == "sig" and not _PRIVATE & one.keys()]


def make_key(raw: dict[str, object], algorithm: str) -> jwt.PyJWK | None:
    """The key for one algorithm; None if it is for another one, or too short."""
    if raw.get("alg", algorithm) != algorithm:
        return None
    try:
        key = jwt.PyJWK(raw, algorithm)
    except (jwt.PyJWTError, ValueError, TypeError, KeyError):
        return None
    if isinstance(key.key, RSAPublicKey) and key.key.key_size < _RSA_BITS:
        return None
    return key


DISCOVERY: Final = "/.well-known/openid-configuration"
_LIMIT_BYTES: Final = 262_144
_WAIT_S: Final = 5.0
_OK: Final = 200


class HttpKeySource:
    """Implements ``KeySource``. ``trusted`` may connect anywhere, ``screened`` only where foreign URLs may lead."""

    def __init__(
        self, settings: IssuerSettings, trusted: PeerSessions, screened: PeerSessions
    ) -> None:
        self._settings = settings
        self._trusted = trusted
        self._screened = screened

    async def fetch(self) -> bytes:
        """Fetches the key set."""
        settings = self._settings
        if settings.jwks_url is not None:
            return await _get(self._trusted, settings.jwks_url)
        base = settings.issuer.rstrip("/")
        url = read_discovery(await _get(self._trusted, base + DISCOVERY), settings.issuer)
        # The operator configured the issuer; a third party may control the URL in its document.
        own = _origin(url) == _origin(base)
        return await _get(self._trusted if own else self._screened, url)


def read_discovery(body: bytes, issuer: str) -> str:
    """The ``jwks_uri`` of an OpenID configuration (OpenID Connect Discovery 1.0 section 4.3).

    Raises:
        IssuerUnavailable: it is not valid, is another issuer's, or its keys would be fetched unencrypted.
    """
    try:
        document: object = orjson.loads(body)
    except orjson.JSONDecodeError:
        raise IssuerUnavailable("the OpenID configuration is not JSON") from None
    fields = cast("dict[str, object]", document) if isinstance(document, dict) else {}
    if fields.get("issuer") != issuer:
        raise IssuerUnavailable("the OpenID configuration is that of another issuer")
    url = fields.get("jwks_uri")
    if not isinstance(url, str) or _read_scheme(url) not in {"https", urlsplit(issuer).scheme}:
        raise IssuerUnavailable("the OpenID configuration has no jwks_uri that may be used")
    return url


async def _get(sessions: PeerSessions, url: str) -> bytes:
    try:
        async with sessions.open(_origin(url)).get(
            url,
            timeout=aiohttp.ClientTimeout(total=_WAIT_S),
            allow_redirects=False,
            headers={"Accept": "application/json"},
        ) as response:
            if response.status != _OK:
                raise IssuerUnavailable(f"{url} answered {response.status}")
            body = await response.content.read(_LIMIT_BYTES + 1)
            while len(body) <= _LIMIT_BYTES and (
                piece := await response.content.read(_LIMIT_BYTES)
            ):
                body += piece
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
        raise IssuerUnavailable(f"{url} cannot be read: {describe(error)}") from None
    if len(body) > _LIMIT_BYTES:
        raise IssuerUnavailable(f"{url} is larger than {_LIMIT_BYTES} bytes")
    return body


def _read_scheme(url: str) -> str | None:
    """The scheme; None for anything but a URL with a valid host and port."""
    try:
        parts = urlsplit(url)
        return parts.scheme if parts.hostname and parts.port != 0 else None
    except ValueError:
        return None


def _origin(url: str) -> str:
    split = urlsplit(url)
    return f"{split.scheme}://{split.netloc}"
