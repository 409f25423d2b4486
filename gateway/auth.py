"""From a bearer token to a principal: the owner token, API keys of clients, or nobody asked at all.

Keys are kept as SHA-256: they are random and long, so a slow hash would protect nothing. A token is
compared with every known one in constant time, so that timing tells neither a key nor whether one exists.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from passerelle.core.errors import ConfigInvalid, Unauthenticated
from passerelle.core.ids import encode_base32
from passerelle.core.ports import Ids
from passerelle.core.principal import Principal, Scope
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

    The file comes into being whole and with mode 0600, so a crash or a second process leaves no half token.

    Raises:
        ConfigInvalid: the file cannot be read, made or trusted.
    """
    path = data_dir / OWNER_FILE
    try:
        minted = not path.exists() and _write_once(path, mint_token(ids))
        if path.stat().st_mode & 0o077:
            raise ConfigInvalid(str(path), "others can read it: delete it, and a new one is made")
        token = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigInvalid(str(path), f"cannot be used: {error}") from None
    if not token:
        raise ConfigInvalid(str(path), "is empty: delete it, and a new one is made")
    return OwnerToken(Secret(token), path, minted)


def _write_once(path: Path, token: Secret) -> bool:
    """Whether this process made the file; a link refuses where a rename would replace."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        os.write(descriptor, f"{token.get_secret_value()}\n".encode())
        os.fsync(descriptor)
        os.link(draft, path)
    except FileExistsError:
        return False
    finally:
        os.close(descriptor)
        draft.unlink()
    return True


def _enter(client: ClientSettings) -> Principal:
    agents = None if EVERY_AGENT in client.may_call else frozenset(client.may_call)
    return Principal(
        id=client.name, kind=client.kind, scopes=frozenset(client.scopes), agents=agents
    )


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode(errors="replace")).digest()
