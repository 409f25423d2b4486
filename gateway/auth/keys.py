"""From a bearer token to a principal: the owner token, API keys of clients, or nobody asked at all.

Keys are kept as SHA-256: they are random and long, so a slow hash would protect nothing. A token is
compared with every known one in constant time, so that timing tells neither a key nor whether one exists.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from passerelle.core.credentials import Credentials
from passerelle.core.errors import Unauthenticated
from passerelle.core.ids import encode_base32
from passerelle.core.ports import Ids
from passerelle.core.principal import Principal, Scope
from passerelle.gateway.secret import Secret
from passerelle.gateway.settings import EVERY_AGENT, AuthMode, ClientSettings

OWNER: Final = Principal(id="owner", kind="person", scopes=frozenset(Scope))
TOKEN_LIMIT: Final = 8_192
_TOKEN_CHARACTERS: Final = 52


@dataclass(frozen=True, slots=True)
class _Credential:
    digest: bytes
    principal: Principal


class KeyAuthenticator:
    """``--auth keys``: whoever holds a known token. Implements ``core.commands.Authenticator``."""

    __slots__ = ("_credentials",)

    def __init__(self, owner: Secret, clients: Iterable[ClientSettings]) -> None:
        self._credentials = (
            _Credential(_digest(owner.get_secret_value()), OWNER),
            *(
                _Credential(bytes.fromhex(client.key_hash.removeprefix("sha256:")), _enter(client))
                for client in clients
            ),
        )

    async def authenticate(self, credentials: Credentials) -> Principal:
        token = credentials.bearer
        if not token:
            raise Unauthenticated("a bearer token is required")
        digest = _digest(token[:TOKEN_LIMIT])
        found: Principal | None = None
        for credential in self._credentials:
            if hmac.compare_digest(credential.digest, digest):
                found = credential.principal
        if found is None:
            raise Unauthenticated("the bearer token is not known")
        return replace(found, device=credentials.device) if credentials.device else found


class OpenAuthenticator:
    """``--auth open``: everybody is the owner. Settings allow it on loopback only."""

    __slots__ = ()

    async def authenticate(self, credentials: Credentials) -> Principal:
        return replace(OWNER, device=credentials.device) if credentials.device else OWNER


def make_authenticator(
    mode: AuthMode, owner: Secret, clients: Iterable[ClientSettings]
) -> KeyAuthenticator | OpenAuthenticator:
    """The authenticator of a mode."""
    return OpenAuthenticator() if mode == "open" else KeyAuthenticator(owner, clients)


def mint_token(ids: Ids) -> Secret:
    """A new token: 256 bits."""
    return Secret(f"psr_{encode_base32(ids.draw(256), _TOKEN_CHARACTERS)}")


def hash_key(token: Secret) -> str:
    """The form in which a key stands in the configuration."""
    return f"sha256:{_digest(token.get_secret_value()).hex()}"


def _enter(client: ClientSettings) -> Principal:
    agents = None if EVERY_AGENT in client.may_call else frozenset(client.may_call)
    return Principal(
        id=client.name, kind=client.kind, scopes=frozenset(client.scopes), agents=agents
    )


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode(errors="replace")).digest()
