"""From credentials to a principal: a key, a token of an identity provider, a certificate, or nobody asked at all.

A token that is shown must hold: a wrong one is refused, whatever certificate stands beside it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from passerelle.core.credentials import TOKEN_LIMIT
from passerelle.core.errors import Unauthenticated
from passerelle.core.record import change
from passerelle.gateway.auth.keys import OWNER, KeyRing

if TYPE_CHECKING:
    from collections.abc import Iterable

    from passerelle.core.credentials import Credentials
    from passerelle.core.principal import Principal
    from passerelle.gateway.auth.certificates import Certificates
    from passerelle.gateway.auth.tokens import Tokens
    from passerelle.gateway.secret import Secret
    from passerelle.gateway.settings_callers import ClientSettings

_UNKNOWN = "the token or API key is not known"


@dataclass(frozen=True, slots=True)
class Callers:
    """Everybody who is known, as one value: a reload makes another one."""

    keys: KeyRing
    tokens: Tokens | None = None
    certificates: Certificates | None = None


class KnownCallers:
    """``--auth keys``. Implements ``core.commands.Authenticator``."""

    __slots__ = ("callers",)

    def __init__(self, callers: Callers) -> None:
        self.callers = callers

    async def authenticate(self, credentials: Credentials) -> Principal:
        callers = self.callers
        if token := credentials.token:
            found = callers.keys.find(credentials.digest)
            if found is None and callers.tokens is not None and credentials.bearer:
                found = await callers.tokens.find(credentials.bearer, credentials.digest)
            # A key that was cut to be hashed is no key.
            if found is None or len(token) > TOKEN_LIMIT:
                raise Unauthenticated(_UNKNOWN)
        else:
            found = callers.certificates.find(credentials) if callers.certificates else None
            if found is None:
                raise Unauthenticated("a bearer token is required")
        return change(found, device=credentials.device) if credentials.device else found


class OpenAuthenticator:
    """``--auth open``: everybody is the owner. Settings allow it on loopback only."""

    __slots__ = ()

    async def authenticate(self, credentials: Credentials) -> Principal:
        return change(OWNER, device=credentials.device) if credentials.device else OWNER


def know_keys(owner: Secret, clients: Iterable[ClientSettings]) -> KnownCallers:
    """An authenticator that knows the owner and the keys of clients, and nobody else."""
    return KnownCallers(Callers(KeyRing(owner, clients)))
