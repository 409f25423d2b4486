"""The headers of a push notification: what it is, and that it comes from us (A2A 1.0 section 13.2).

Credentials of the config go into ``Authorization`` as they were given. A config with the scheme Bearer and no
credentials gets a token that we sign, over the digest of the body, for receivers that verify by our JWKS.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from passerelle.core.ports.chance import Clock
    from passerelle.core.push import PushConfig
    from passerelle.runtime.common.signing.signer import Signer
    from passerelle.webhooks.addresses import Address

TOKEN: Final = "X-A2A-Notification-Token"  # noqa: S105  the name of a header
DELIVERY: Final = "X-Passerelle-Delivery"
CURSOR: Final = "X-Passerelle-Cursor"
SIGNATURE: Final = "X-Passerelle-Signature"
TOKEN_LIFETIME_S: Final = 300
_MEDIA_TYPES: Final = {"1.0": "application/a2a+json", "0.3": "application/json"}


@dataclass(frozen=True, slots=True)
class Authority:
    """Signs deliveries in the name of ``issuer``, where the JWKS is."""

    signer: Signer
    issuer: str
    clock: Clock

    def sign_body(self, body: bytes) -> str:
        """Detached signatures over a body, one by each key that signs."""
        return ", ".join(signature.detached for signature in self.signer.sign(body))

    def make_token(self, audience: str, delivery: str, body: bytes) -> str:
        """A JWT for one delivery to one origin."""
        now_s = self.clock.now_ms() // 1000
        return self.signer.sign_token(
            {
                "iss": self.issuer,
                "aud": audience,
                "iat": now_s,
                "exp": now_s + TOKEN_LIFETIME_S,
                "jti": delivery,
                "request_body_sha256": hashlib.sha256(body).hexdigest(),
            }
        )


def compose_headers(
    config: PushConfig,
    address: Address,
    body: bytes,
    delivery: str,
    cursor: str,
    authority: Authority | None,
) -> dict[str, str]:
    """The headers of one delivery."""
    headers = {
        "Content-Type": _MEDIA_TYPES[config.dialect],
        DELIVERY: delivery,
        CURSOR: cursor,
    }
    if config.token is not None:
        headers[TOKEN] = config.token
    if config.scheme is not None and config.credentials is not None:
        headers["Authorization"] = f"{config.scheme} {config.credentials}"
    if authority is not None:
        headers[SIGNATURE] = authority.sign_body(body)
        if config.credentials is None and (config.scheme or "").lower() == "bearer":
            token = authority.make_token(address.origin, delivery, body)
            headers["Authorization"] = f"Bearer {token}"
    return headers
