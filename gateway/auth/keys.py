"""API keys: made, hashed, found again.

Keys are kept as SHA-256: they are random and long, so a slow hash would protect nothing. One is looked up by its
digest, and the digest compared in constant time: timing tells neither a key nor whether one exists.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from passerelle.core.credentials import digest_token
from passerelle.core.ids import encode_base32
from passerelle.core.ports.chance import Clock, Ids
from passerelle.core.principal import OWNER, Principal
from passerelle.gateway.auth.principals import make_client_principal
from passerelle.gateway.settings.callers import ClientSettings
from passerelle.runtime.common.clock import SystemClock
from passerelle.runtime.common.secret import Secret

_TOKEN_CHARACTERS: Final = 52


@dataclass(frozen=True, slots=True)
class _KnownKey:
    digest: bytes
    holder: Principal | None
    until_ms: int | None = None


_NOBODY: Final = _KnownKey(bytes(32), None)


class KeyRing:
    """Whose key it is: the tokens of the owner and the keys of clients. A key that has ended is nobody's."""

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
        known = self._known.get(digested, _NOBODY)
        if not hmac.compare_digest(known.digest, digested) or self._has_ended(known):
            return None
        return known.holder

    def has_ended(self, digested: bytes) -> bool:
        """Whether the key with this digest was somebody's, and its end has come."""
        known = self._known.get(digested, _NOBODY)
        return hmac.compare_digest(known.digest, digested) and self._has_ended(known)

    def _has_ended(self, known: _KnownKey) -> bool:
        return known.until_ms is not None and known.until_ms <= self._clock.now_ms()


def _list_keys(client: ClientSettings) -> Iterator[_KnownKey]:
    # One principal for both: whoever is compared with itself stays the same while its key is replaced.
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
    """A new token: 256 bits."""
    return Secret(f"psr_{encode_base32(ids.draw(256), _TOKEN_CHARACTERS)}")


def hash_key(token: Secret) -> str:
    """The form in which a key stands in the configuration."""
    return f"sha256:{digest_token(token.get_secret_value()).hex()}"
