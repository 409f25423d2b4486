"""Where the key set of an identity provider is fetched: at the configured address, or where its discovery leads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, cast
from urllib.parse import urlsplit

import aiohttp
import orjson

from passerelle.core.errors import IssuerUnavailable

if TYPE_CHECKING:
    from passerelle.gateway.settings_callers import IssuerSettings
    from passerelle.peers.sessions import PeerSessions

DISCOVERY: Final = "/.well-known/openid-configuration"
_LIMIT_BYTES: Final = 262_144
_WAIT_S: Final = 5.0
_OK: Final = 200


class HttpKeySource:
    """Implements ``KeySource``. ``trusted`` connects anywhere, ``screened`` where a foreign URL may lead."""

    def __init__(
        self, settings: IssuerSettings, trusted: PeerSessions, screened: PeerSessions
    ) -> None:
        self._settings = settings
        self._trusted = trusted
        self._screened = screened

    async def fetch(self) -> bytes:
        """The key set."""
        settings = self._settings
        if settings.jwks_url is not None:
            return await _get(self._trusted, settings.jwks_url)
        base = settings.issuer.rstrip("/")
        url = read_discovery(await _get(self._trusted, base + DISCOVERY), settings.issuer)
        # The operator wrote the issuer; where its document leads, somebody else wrote.
        own = _origin(url) == _origin(base)
        return await _get(self._trusted if own else self._screened, url)


def read_discovery(body: bytes, issuer: str) -> str:
    """The ``jwks_uri`` of an OpenID configuration (OpenID Connect Discovery 1.0 section 4.3).

    Raises:
        IssuerUnavailable: it is none, it is somebody else's, or its keys would come unencrypted.
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
        raise IssuerUnavailable(f"{url} cannot be read: {type(error).__name__}") from None
    if len(body) > _LIMIT_BYTES:
        raise IssuerUnavailable(f"{url} is larger than {_LIMIT_BYTES} bytes")
    return body


def _read_scheme(url: str) -> str | None:
    """None for what is no URL at all: its host and port are judged as well."""
    try:
        parts = urlsplit(url)
        return parts.scheme if parts.hostname and parts.port != 0 else None
    except ValueError:
        return None


def _origin(url: str) -> str:
    split = urlsplit(url)
    return f"{split.scheme}://{split.netloc}"
