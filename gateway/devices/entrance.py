"""How a device that is paired finds the gateway, and knows that it is this one."""

from __future__ import annotations

import hashlib
import ssl
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from passerelle.gateway.settings import Settings


@dataclass(frozen=True, slots=True)
class Entrance:
    """An address, and the SHA-256 of our certificate where we have one of our own."""

    url: str | None = None
    pin: str | None = None


def find_entrance(settings: Settings) -> Entrance:
    """The entrance by the settings; the certificate is read anew, since it may have been renewed."""
    scheme = "https" if settings.tls else "http"
    url = settings.public_url or f"{scheme}://{settings.host}:{settings.port}"
    if settings.tls is None:
        return Entrance(url)
    try:
        chain = settings.tls.cert.read_text(encoding="ascii")
        leaf = chain[: chain.index(_END) + len(_END)]
        own = ssl.PEM_cert_to_DER_cert(leaf[leaf.index(_BEGIN) :])
    except (OSError, ValueError):
        return Entrance(url)
    return Entrance(url, f"sha256:{hashlib.sha256(own).hexdigest()}")


_BEGIN = "-----BEGIN CERTIFICATE-----"
_END = "-----END CERTIFICATE-----"
