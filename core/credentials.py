"""What a caller shows of itself, as an edge read it and before anybody believed it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Final

TOKEN_LIMIT: Final = 8_192
"""Characters; no token is longer, and what is longer is cut before it is hashed."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """Everything an authenticator may look at; secrets stay out of ``repr``.

    ``certificate`` is the identity that a proxy wrote into its header after it had checked the caller's certificate.
    Anybody can write that header: it means something only beside ``address``, the other end of the socket itself
    (never what a forwarding header says). ``device`` is a name the caller chose, and proves nothing.
    ``origin`` is that of the web page, where it is one.
    """

    bearer: str | None = field(default=None, repr=False)
    api_key: str | None = field(default=None, repr=False)
    certificate: str | None = None
    address: str | None = None
    device: str | None = None
    origin: str | None = None
    _digest: bytes | None = field(default=None, init=False, repr=False, compare=False)

    @property
    def token(self) -> str:
        """The bearer token or the API key; empty where there is neither."""
        return self.bearer or self.api_key or ""

    @property
    def digest(self) -> bytes | None:
        """What the token is known by; None where there is none, and for one that would be cut to be hashed.

        Requests of one connection mostly show the same credentials: it is made once.
        """
        known = self._digest
        if known is None and 0 < len(self.token) <= TOKEN_LIMIT:
            known = digest_token(self.token)
            object.__setattr__(self, "_digest", known)
        return known


def digest_token(token: str) -> bytes:
    """The SHA-256 by which a token is kept and looked up."""
    return hashlib.sha256(token[:TOKEN_LIMIT].encode(errors="replace")).digest()
