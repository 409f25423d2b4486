"""Turns credentials into a principal: an API key, an identity provider's token, a certificate, or no authentication.

A token must be valid if one is sent: an invalid one is rejected, whatever certificate comes with it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from passerelle.core.commands import Authenticator
from passerelle.core.errors import CredentialExpired, Unauthenticated
from passerelle.core.frozen import frozen
from passerelle.core.principal import OWNER
from passerelle.core.wire.record import change
from passerelle.gateway.auth.keys import KeyRing

if TYPE_CHECKING:
    from passerelle.core.credentials import Credentials
    from passerelle.core.principal import Principal
    from passerelle.gateway.auth.credentials import Certificates
    from passerelle.gateway.auth.tokens import Tokens

_UNKNOWN = "the token or API key is not known"


@frozen
class Callers:
    """All known callers as one value; a reload replaces it."""

    keys: KeyRing
    tokens: Tokens | None = None
    certificates: Certificates | None = None


class CachedAuthenticator(Authenticator, Protocol):
    """An authenticator that identifies most callers without waiting."""

    def authenticate_cached(self, credentials: Credentials) -> Principal | None:
        """The principal, if no wait is needed; None if only ``authenticate`` can decide."""
        ...


class KnownCallers:
    """``--auth keys``. Implements ``CachedAuthenticator``."""

    __slots__ = ("callers",)

    def __init__(self, callers: Callers) -> None:
        self.callers = callers

    def authenticate_cached(self, credentials: Credentials) -> Principal | None:
        """The holder of an API key."""
        digest = credentials.digest
        found = None if digest is None else self.callers.keys.find(digest)
        return _name_device(found, credentials) if found and credentials.device else found

    async def authenticate(self, credentials: Credentials) -> Principal:
        if (found := self.authenticate_cached(credentials)) is not None:
            return found
        callers = self.callers
        if credentials.token:
            bearer, digest = credentials.bearer, credentials.digest
            if digest is not None and callers.keys.has_ended(digest):
                raise CredentialExpired("the API key has expired")
            if callers.tokens is not None and bearer and digest is not None:
                found = await callers.tokens.find(bearer, digest)
            if found is None:
                raise Unauthenticated(_UNKNOWN)
        else:
            found = callers.certificates.find(credentials) if callers.certificates else None
            if found is None:
                raise Unauthenticated("a bearer token is required")
        return _name_device(found, credentials)


class OpenAuthenticator:
    """``--auth open``: every caller is the owner. Only allowed on loopback. A ``CachedAuthenticator``."""

    __slots__ = ()

    def authenticate_cached(self, credentials: Credentials) -> Principal:
        return _name_device(OWNER, credentials)

    async def authenticate(self, credentials: Credentials) -> Principal:
        return self.authenticate_cached(credentials)


def _name_device(found: Principal, credentials: Credentials) -> Principal:
    return change(found, device=credentials.device) if credentials.device else found
