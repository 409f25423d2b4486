"""Signatures of webhooks as Standard Webhooks has them: HMAC-SHA256 over id, timestamp and body."""

from __future__ import annotations

import base64
import hashlib
import hmac

from passerelle.webhooks.kinds import Parcel


def sign_parcel(secret: bytes | None, body: bytes, delivery: str, sent_s: int) -> Parcel:
    """A request with its headers; without a secret it is not signed."""
    headers = {
        "Content-Type": "application/json",
        "webhook-id": delivery,
        "webhook-timestamp": str(sent_s),
    }
    if secret is not None:
        signed = b".".join((delivery.encode(), str(sent_s).encode(), body))
        made = base64.b64encode(hmac.new(secret, signed, hashlib.sha256).digest()).decode()
        headers["webhook-signature"] = f"v1,{made}"
    return Parcel(body, delivery, headers)
