"""Credentials of a caller as an edge read them, before they are verified."""

from __future__ import annotations

import hashlib
from dataclasses import field
from typing import Final

from passerelle.core.frozen import frozen

TOKEN_LIMIT: Final = 8_192
"""Characters; no valid token is longer, and a longer one is cut before it is hashed."""


@frozen
class Credentials:
    """Everything an authenticator may read; secrets stay out of ``repr``.

    ``certificate`` is the identity that a proxy wrote into its header after it verified the caller's certificate. Any
    client can send that header: it counts only together with ``address``, the peer address of the socket itself (never
    a forwarding header). ``device`` is a name the caller chose, and proves nothing. ``origin`` is that of the web page,
    if there is one.
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
        """The bearer token or the API key; empty if there is neither."""
        return self.bearer or self.api_key or ""

    @property
    def digest(self) -> bytes | None:
        """The hash of the token; None if there is no token, or one that is too long to be hashed whole.

        Cached, since requests on one connection mostly repeat their credentials.
        """
        known = self._digest
        if known is None and 0 < len(self.token) <= TOKEN_LIMIT:
            known = digest_token(self.token)
            object.__setattr__(self, "_digest", known)
        return known


def digest_token(token: str) -> bytes:
    """The SHA-256 under which a token is stored and looked up."""
    return hashlib.sha256(token[:TOKEN_LIMIT].encode(errors="replace")).digest()
