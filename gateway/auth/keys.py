"""API keys: minted, hashed, looked up.

Keys are stored as SHA-256: they are random and long, so a slow hash would add nothing. A key is looked up by its
digest, and the digest is compared in constant time: timing reveals neither a key nor whether one exists.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Iterator
from typing import Final

from passerelle.core.credentials import digest_token
from passerelle.core.frozen import frozen
from passerelle.core.ids import encode_base32
from passerelle.core.ports.chance import Clock, Ids
from passerelle.core.principal import OWNER, Principal
from passerelle.gateway.auth.principals import make_client_principal
from passerelle.gateway.settings.callers import ClientSettings
from passerelle.runtime.common.clock import SystemClock
from passerelle.runtime.common.secret import Secret

_TOKEN_CHARACTERS: Final = 52


@frozen
class _KnownKey:
    digest: bytes
    holder: Principal | None
    until_ms: int | None = None


_UNKNOWN_KEY: Final = _KnownKey(bytes(32), None)


class KeyRing:
    """Maps keys to principals: the owner's tokens and the keys of clients. An expired key has no principal."""

    __slots__ = ("_clock", "_known")

    def __init__(
        self,
        owner: Iterable[Secret],
        clients: Iterable[ClientSettings],
        clock: Clock | None = None,
    ) -> None:
        listed = [_KnownKey(digest_token(token.get_secret_value()), OWNER) for token in owner]
        for client in clients:
            listed += _list_keys(client)
        self._known = {key.digest: key for key in listed}
        self._clock = clock or SystemClock()

    def find(self, digested: bytes) -> Principal | None:
        """The holder of the key with this digest."""
        known = self._known.get(digested, _UNKNOWN_KEY)
        if not hmac.compare_digest(known.digest, digested) or self._has_ended(known):
            return None
        return known.holder

    def has_ended(self, digested: bytes) -> bool:
        """Whether the key with this digest was valid, and has expired."""
        known = self._known.get(digested, _UNKNOWN_KEY)
        return hmac.compare_digest(known.digest, digested) and self._has_ended(known)

    def _has_ended(self, known: _KnownKey) -> bool:
        return known.until_ms is not None and known.until_ms <= self._clock.now_ms()


def _list_keys(client: ClientSettings) -> Iterator[_KnownKey]:
    # One principal for both keys: ``is`` comparisons keep working while a key is replaced.
    holder = make_client_principal(client)
    keys = (
        (client.key_hash, client.key_until),
        (client.old_key_hash, client.old_key_until),
    )
    for written, until in keys:
        if written is not None:
            until_ms = None if until is None else round(until.timestamp() * 1000)
            yield _KnownKey(bytes.fromhex(written.removeprefix("sha256:")), holder, until_ms)


def mint_token(ids: Ids) -> Secret:
    """Mints a token of 256 random bits."""
    return Secret(f"psr_{encode_base32(ids.draw(256), _TOKEN_CHARACTERS)}")


def hash_key(token: Secret) -> str:
    """The form of a key in the configuration."""
    return f"sha256:{digest_token(token.get_secret_value()).hex()}"
