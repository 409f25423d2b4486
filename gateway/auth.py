"""From a bearer token to a principal: the owner token, API keys of clients, or nobody asked at all.

Keys are kept as SHA-256: they are random and long, so a slow hash would protect nothing. A token is
compared with every known one in constant time, so that timing tells neither a key nor whether one exists.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from passerelle.core.errors import Unauthenticated
from passerelle.core.ids import encode_base32
from passerelle.core.ports import Ids
from passerelle.core.principal import Principal, Scope
from passerelle.gateway.private_file import load_or_mint
from passerelle.gateway.secret import Secret
from passerelle.gateway.settings import EVERY_AGENT, AuthMode, ClientSettings

OWNER: Final = Principal(id="owner", kind="person", scopes=frozenset(Scope))
OWNER_FILE: Final = "owner-token"
TOKEN_LIMIT: Final = 8_192
_TOKEN_CHARACTERS: Final = 52
_SCHEME: Final = "bearer "


@dataclass(frozen=True, slots=True)
class OwnerToken:
    """The owner's token and the file that keeps it; ``minted`` only on the start that made it."""

    secret: Secret
    path: Path
    minted: bool


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

    def authenticate(self, token: str | None, device: str | None = None) -> Principal:
        if not token:
            raise Unauthenticated("a bearer token is required")
        digest = _digest(token[:TOKEN_LIMIT])
        found: Principal | None = None
        for credential in self._credentials:
            if hmac.compare_digest(credential.digest, digest):
                found = credential.principal
        if found is None:
            raise Unauthenticated("the bearer token is not known")
        return replace(found, device=device) if device else found


class OpenAuthenticator:
    """``--auth open``: everybody is the owner. Settings allow it on loopback only."""

    __slots__ = ()

    def authenticate(
        self,
        token: str | None,  # noqa: ARG002  everybody is everybody
        device: str | None = None,
    ) -> Principal:
        return replace(OWNER, device=device) if device else OWNER


def make_authenticator(
    mode: AuthMode, owner: Secret, clients: Iterable[ClientSettings]
) -> KeyAuthenticator | OpenAuthenticator:
    """The authenticator of a mode."""
    return OpenAuthenticator() if mode == "open" else KeyAuthenticator(owner, clients)


def read_bearer(authorization: str | None) -> str | None:
    """The token of an ``Authorization`` header, or None where there is no bearer in it."""
    if authorization is None or authorization[: len(_SCHEME)].lower() != _SCHEME:
        return None
    return authorization[len(_SCHEME) :].strip() or None


def mint_token(ids: Ids) -> Secret:
    """A new token: 256 bits."""
    return Secret(f"psr_{encode_base32(ids.draw(256), _TOKEN_CHARACTERS)}")


def hash_key(token: Secret) -> str:
    """The form in which a key stands in the configuration."""
    return f"sha256:{_digest(token.get_secret_value()).hex()}"


def load_owner_token(data_dir: Path, ids: Ids) -> OwnerToken:
    """Reads the owner token of a data directory, and makes it when there is none.

    Raises:
        ConfigInvalid: the file cannot be read, made or trusted.
    """
    path = data_dir / OWNER_FILE
    kept = load_or_mint(path, lambda: mint_token(ids).get_secret_value())
    return OwnerToken(Secret(kept.text), path, kept.minted)


def _enter(client: ClientSettings) -> Principal:
    agents = None if EVERY_AGENT in client.may_call else frozenset(client.may_call)
    return Principal(
        id=client.name, kind=client.kind, scopes=frozenset(client.scopes), agents=agents
    )


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode(errors="replace")).digest()
