"""The gateway's credential for a peer: fixed values from the configuration, or OAuth2 access tokens.

The credential is the operator's. A caller's own credential is forwarded only if the operator enables ``forward_auth``.
Access tokens come from OAuth2 client credentials: fetched once, cached, and replaced before they expire.
"""

from __future__ import annotations

import asyncio
import base64
import re
from dataclasses import field
from http import HTTPStatus
from typing import TYPE_CHECKING, ClassVar, Final, Literal, Protocol, TypeAlias, assert_never
from urllib.parse import quote, urlencode

import aiohttp

from passerelle.a2a_mapping.members import text_at, whole_at
from passerelle.core.errors import PeerUnavailable
from passerelle.core.frozen import frozen
from passerelle.peers import exchange
from passerelle.peers.answers import NotJson, parse_json
from passerelle.peers.origin import origin_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from passerelle.core.ports.chance import Clock
    from passerelle.core.wire.json import JsonObject
    from passerelle.peers.config import PeerConfig
    from passerelle.peers.sessions import PeerSessions

HEADER_VALUE: Final = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?")
"""CR and LF would let a value add its own header lines."""


class SecretText(Protocol):
    """A secret that is not printed."""

    def get_secret_value(self) -> str:
        """The secret in plain text."""
        ...


@frozen
class Bearer:
    """A fixed token."""

    token: SecretText


@frozen
class ApiKey:
    """A key under ``name`` in headers, query or cookies."""

    place: Literal["header", "query", "cookie"]
    name: str
    key: SecretText


@frozen
class Basic:
    """HTTP basic authentication (RFC 7617)."""

    user: str
    password: SecretText


@frozen
class ClientCredentials:
    """OAuth2 client credentials (RFC 6749 section 4.4): tokens come from ``token_url``."""

    token_url: str
    client_id: str
    secret: SecretText
    scopes: tuple[str, ...] = ()
    audience: str | None = None


Auth: TypeAlias = Bearer | ApiKey | Basic | ClientCredentials


@frozen
class ShownCredential:
    """What a request carries: headers, and an encoded query parameter."""

    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    query: str = ""


class PeerCredential(Protocol):
    """Provides the credential of each request."""

    renews: ClassVar[bool]
    """Whether it can change."""

    @property
    def shown(self) -> ShownCredential | None:
        """The credential of the next request, if it is known without a request."""
        ...

    async def show(self) -> ShownCredential:
        """The credential of the next request.

        Raises:
            PeerUnavailable: there is none, and nothing may be sent.
        """
        ...

    def renew(self, refused: ShownCredential) -> bool:
        """After a 401: whether a retry would send another credential."""
        ...


class Fixed:
    """A credential that never changes."""

    renews: ClassVar[bool] = False

    def __init__(self, shown: ShownCredential) -> None:
        self.shown = shown

    async def show(self) -> ShownCredential:
        return self.shown

    def renew(self, refused: ShownCredential) -> bool:  # noqa: ARG002
        return False


def show_fixed(auth: Bearer | ApiKey | Basic | None) -> ShownCredential:
    """What a fixed credential adds to every request."""
    match auth:
        case None:
            return ShownCredential()
        case Bearer(token=token):
            return ShownCredential({"Authorization": f"Bearer {token.get_secret_value()}"})
        case Basic(user=user, password=password):
            return ShownCredential(
                {"Authorization": encode_basic(user, password.get_secret_value())}
            )
        case ApiKey(place="header", name=name, key=key):
            return ShownCredential({name: key.get_secret_value()})
        case ApiKey(place="cookie", name=name, key=key):
            return ShownCredential({"Cookie": f"{name}={key.get_secret_value()}"})
        case ApiKey(name=name, key=key):
            return ShownCredential(query=f"{quote(name)}={quote(key.get_secret_value(), safe='')}")
        case _:
            assert_never(auth)


def encode_basic(user: str, password: str) -> str:
    """The value of an ``Authorization`` header."""
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


def is_writable(auth: Auth) -> bool:
    """Whether the secret is not empty and a request can carry it."""
    match auth:
        case Basic(password=secret) | ClientCredentials(secret=secret):
            return bool(secret.get_secret_value())
        case Bearer(token=secret):
            return HEADER_VALUE.fullmatch(secret.get_secret_value()) is not None
        case ApiKey(place=place, key=secret):
            value = secret.get_secret_value()
            fits = HEADER_VALUE.fullmatch(value) is not None
            return fits and not (place == "cookie" and ";" in value)
        case _:
            assert_never(auth)


_MAX_BODY_BYTES: Final = 64 * 1024
_DEFAULT_LIFE_S: Final = 300
"""If the server does not state a token's lifetime (RFC 6749 section 5.1 allows that)."""
_USED_PERCENT: Final = 80


class TokenSource:
    """The access token of one peer. One request at a time fetches it, however many calls wait."""

    renews: ClassVar[bool] = True

    def __init__(
        self, config: PeerConfig, auth: ClientCredentials, sessions: PeerSessions, clock: Clock
    ) -> None:
        self._config = config
        self._auth = auth
        self._sessions = sessions
        self._clock = clock
        self._asking = asyncio.Lock()
        self._shown: ShownCredential | None = None
        self._fresh_until_ms = 0

    @property
    def shown(self) -> ShownCredential | None:
        """The current token, during the first 80 % of its lifetime."""
        return self._shown if self._clock.now_ms() < self._fresh_until_ms else None

    async def show(self) -> ShownCredential:
        """The token as a header; fetched again after 80 % of its lifetime.

        Raises:
            PeerUnavailable: no token can be fetched.
        """
        if (shown := self.shown) is not None:
            return shown
        async with self._asking:
            if self.shown is None:
                await self._refresh()
        return self._shown or ShownCredential()

    def renew(self, refused: ShownCredential) -> bool:
        """Drops a rejected token, unless another call has replaced it already."""
        if self._shown is refused:
            self._shown = None
        return True

    async def _refresh(self) -> None:
        answer = await self._ask()
        token, kind = text_at(answer, "access_token"), text_at(answer, "token_type")
        if not token or not HEADER_VALUE.fullmatch(token) or kind.lower() != "bearer":
            raise self._report("the answer has no bearer token")
        life_s = whole_at(answer, "expires_in") or _DEFAULT_LIFE_S
        self._fresh_until_ms = self._clock.now_ms() + life_s * 10 * _USED_PERCENT
        self._shown = ShownCredential({"Authorization": f"Bearer {token}"})

    async def _ask(self) -> JsonObject:
        auth, url = self._auth, self._auth.token_url
        form = {"grant_type": "client_credentials"}
        if auth.scopes:
            form["scope"] = " ".join(auth.scopes)
        if auth.audience is not None:
            form["audience"] = auth.audience
        # Both halves are form-encoded before they are joined (RFC 6749 section 2.3.1).
        user, secret = (
            quote(auth.client_id, safe=""),
            quote(auth.secret.get_secret_value(), safe=""),
        )
        try:
            async with self._sessions.open(origin_of(url) or url).post(
                url,
                data=urlencode(form).encode(),
                headers={
                    "Authorization": encode_basic(user, secret),
                    "Accept": "application/json",
                    "Content-Type": "application/x-www-form-urlencoded",
                },
                timeout=exchange.limit_time(self._config, self._config.query_timeout_s),
                allow_redirects=False,
            ) as response:
                raw = await exchange.read_body(response, _MAX_BODY_BYTES)
                status = response.status
        except exchange.TooLong as error:
            raise self._report(str(error)) from error
        except (aiohttp.ClientError, TimeoutError) as error:
            raise self._report(exchange.describe(error)) from error
        if status != HTTPStatus.OK:
            raise self._report(f"HTTP {status}")
        try:
            answer = parse_json(raw)
        except NotJson as fault:
            raise self._report(str(fault)) from None
        return answer if isinstance(answer, dict) else {}

    def _report(self, reason: str) -> PeerUnavailable:
        name, url = self._config.name, self._auth.token_url
        return PeerUnavailable(
            f"peer {name}: no access token from {url}: {reason}", peer=name, url=url, reason=reason
        )
