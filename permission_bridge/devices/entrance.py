"""How a device that is paired finds the gateway, and knows that it is this one."""

from __future__ import annotations

import hashlib
import ssl
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class Entrance:
    """An address, and the SHA-256 of our certificate where we have one of our own."""

    url: str | None = None
    pin: str | None = None


def find_entrance(url: str, certificate: Path | None) -> Entrance:
    """The entrance at ``url``; the certificate file is read anew, since it may have been renewed."""
    if certificate is None:
        return Entrance(url)
    try:
        chain = certificate.read_text(encoding="ascii")
        leaf = chain[: chain.index(_END) + len(_END)]
        own = ssl.PEM_cert_to_DER_cert(leaf[leaf.index(_BEGIN) :])
    except (OSError, ValueError):
        return Entrance(url)
    return Entrance(url, f"sha256:{hashlib.sha256(own).hexdigest()}")


_BEGIN = "-----BEGIN CERTIFICATE-----"
_END = "-----END CERTIFICATE-----"
