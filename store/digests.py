"""Names of content: its SHA-256 in hex."""

from __future__ import annotations

from typing import Final

_HEX: Final = frozenset("0123456789abcdef")
_LENGTH: Final = 64


def is_digest(name: str) -> bool:
    """Whether a name can be that of content; no other one is ever looked for."""
    return len(name) == _LENGTH and _HEX.issuperset(name)
