"""Base64url without padding, the form of every part of a JWS (RFC 7515 section 2)."""

from __future__ import annotations

import base64
import re
from typing import Final

_SEGMENT: Final = re.compile(r"[A-Za-z0-9_-]*")


def encode_segment(content: bytes) -> str:
    """Bytes as base64url without padding."""
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode("ascii")


def decode_segment(text: str) -> bytes | None:
    """The bytes, or None for what is not base64url; padding is not part of the form."""
    if not _SEGMENT.fullmatch(text) or len(text) % 4 == 1:
        return None
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
