"""API keys: made, hashed, found again.

Keys are kept as SHA-256: they are random and long, so a slow hash would protect nothing. One is looked up by its
digest, and the digest compared in constant time: timing tells neither a key nor whether one exists.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable
from typing import Final

from passerelle.core.credentials import digest_token
from passerelle.core.ids import encode_base32
from passerelle.core.ports.chance import Ids
from passerelle.core.principal import OWNER, Principal
from passerelle.gateway.auth.principals import enter_client
from passerelle.gateway.settings.callers import ClientSettings
from passerelle.runtime.common.secret import Secret

_TOKEN_CHARACTERS: Final = 52
_NOBODY: Final = (bytes(32), None)


class KeyRing:
    """Whose key it is: the tokens of the owner and the keys of clients."""

    __slots__ = ("_known",)

    def __init__(self, owner: Iterable[Secret], clients: Iterable[ClientSettings]) -> None:
        known: dict[bytes, Principal] = {
            digest_token(token.get_secret_value()): OWNER for token in owner
        }
        for client in clients:
            if client.key_hash is not None:
                known[bytes.fromhex(client.key_hash.removeprefix("sha256:"))] = enter_client(client)
        self._known = {key: (key, principal) for key, principal in known.items()}

    def find(self, digested: bytes) -> Principal | None:
        """The holder of the key with this digest."""
        kept, principal = self._known.get(digested, _NOBODY)
        return principal if hmac.compare_digest(kept, digested) else None


def mint_token(ids: Ids) -> Secret:
    """A new token: 256 bits."""
    return Secret(f"psr_{encode_base32(ids.draw(256), _TOKEN_CHARACTERS)}")


def hash_key(token: Secret) -> str:
    """The form in which a key stands in the configuration."""
    return f"sha256:{digest_token(token.get_secret_value()).hex()}"
