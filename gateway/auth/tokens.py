"""Tokens of identity providers: JWTs, verified with the keys that the issuer publishes.

A verified token is cached by its digest until it expires, so that its signature is checked once and not per request.
The cache entry is dropped when the issuer's keys change: a withdrawn key invalidates its tokens.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, cast

import jwt

from passerelle.core.errors import CredentialExpired
from passerelle.core.frozen import frozen
from passerelle.core.principal import AccessScope, Principal
from passerelle.gateway.auth.principals import make_principal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from passerelle.core.ports.chance import Clock
    from passerelle.gateway.auth.jwks import KeySet
    from passerelle.gateway.settings.callers import IssuerSettings

Claims = dict[str, Any]

_CACHE_SIZE: Final = 10_000
_LONGEST_MS: Final = 3_600_000
_ID_LIMIT: Final = 256
_DOTS: Final = 2


@frozen
class Issuer:
    """An identity provider: its settings and its keys."""

    settings: IssuerSettings
    keys: KeySet


@frozen
class _Verified:
    principal: Principal
    until_ms: int
    keys: KeySet
    version: int


class Tokens:
    """Verifies tokens of several issuers, and caches the verified ones."""

    def __init__(self, issuers: Sequence[Issuer], clock: Clock) -> None:
        self._issuers = tuple(issuers)
        self._clock = clock
        self._known: dict[bytes, _Verified] = {}

    async def find(self, token: str, digested: bytes) -> Principal | None:
        """The principal of a token; None for anything but a token of a known issuer.

        Raises:
            CredentialExpired: it is valid except that it has expired.
            IssuerUnavailable: the keys to verify it cannot be fetched.
        """
        kept = self._known.get(digested)
        if kept is not None:
            believed = kept.keys.keep_fresh() and kept.version == kept.keys.version
            if believed and self._clock.now_ms() < kept.until_ms:
                return kept.principal
            del self._known[digested]
        if token.count(".") != _DOTS:
            return None
        return await self._verify(token, digested)

    async def _verify(self, token: str, digested: bytes) -> Principal | None:
        try:
            header = jwt.get_unverified_header(token)
            claimed: Claims = jwt.decode(token, options={"verify_signature": False})
        except (jwt.PyJWTError, ValueError, RecursionError):
            return None
        for issuer in self._issuers:
            if claimed.get("iss") != issuer.settings.issuer:
                continue
            claims = await self._check(issuer, token, header)
            if claims is None:
                continue
            principal = read_principal(issuer.settings, claims)
            if principal is not None:
                principal = replace(principal, expires_ms=_read_end_ms(issuer, claims))
                self._remember(issuer, digested, principal)
            return principal
        return None

    async def _check(self, issuer: Issuer, token: str, header: Claims) -> Claims | None:
        settings = issuer.settings
        algorithm = header.get("alg")
        if algorithm not in settings.algorithms:
            return None
        key = await issuer.keys.find(header.get("kid"), algorithm)
        if key is None:
            return None
        try:
            claims: Claims = jwt.decode(
                token,
                key=key,
                algorithms=[algorithm],
                audience=settings.audience,
                issuer=settings.issuer,
                leeway=settings.clock_skew.seconds,
                options={"require": ["exp", "iss", "aud"]},
            )
        except jwt.ExpiredSignatureError:
            raise CredentialExpired("the token has expired") from None
        except (jwt.PyJWTError, ValueError, TypeError):
            return None
        return claims

    def _remember(self, issuer: Issuer, digested: bytes, principal: Principal) -> None:
        if len(self._known) >= _CACHE_SIZE:
            del self._known[next(iter(self._known))]
        now_ms = self._clock.now_ms()
        until_ms = min(principal.expires_ms or 0, now_ms + _LONGEST_MS)
        self._known[digested] = _Verified(principal, until_ms, issuer.keys, issuer.keys.version)


def _read_end_ms(issuer: Issuer, claims: Claims) -> int:
    return int((float(claims["exp"]) + issuer.settings.clock_skew.seconds) * 1000)


def read_principal(settings: IssuerSettings, claims: Claims) -> Principal | None:
    """The principal of verified claims; None if they do not name one.

    Its id starts with the issuer's name: no user there can take the name of a client, or of a user of another issuer.
    """
    names = settings.claims
    identity = claims.get(names.principal)
    tenant = claims.get(names.tenant) if names.tenant else settings.tenant
    if not _is_name(identity) or not _is_name(tenant):
        return None
    whole = make_principal(settings, f"{settings.name}:{identity}", str(tenant))
    agents, scopes = whole.agents, whole.scopes
    if names.agents:
        claimed = _read_names(claims.get(names.agents))
        agents = claimed if agents is None else agents & claimed
    if names.scopes:
        claimed = _read_names(claims.get(names.scopes))
        scopes = frozenset(scope for scope in scopes if scope.value in claimed)
    return Principal(
        id=whole.id,
        tenant=whole.tenant,
        kind=whole.kind,
        scopes=frozenset[AccessScope](scopes),
        agents=agents,
        operations=whole.operations,
    )


def _is_name(value: object) -> bool:
    return isinstance(value, str) and 0 < len(value) <= _ID_LIMIT and value.isprintable()


def _read_names(value: object) -> frozenset[str]:
    if isinstance(value, str):
        return frozenset(value.split())
    if isinstance(value, list):
        words = cast("list[object]", value)
        return frozenset(word for word in words if isinstance(word, str))
    return frozenset()
