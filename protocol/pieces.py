"""Splits text that is too long for one frame into pieces, in both directions."""

from __future__ import annotations

from typing import Final

PIECE_CHARS: Final = 131_072
"""Characters of a piece; in UTF-8, and escaped, it stays below the frame limit."""


def split_text(text: str, size: int) -> list[str]:
    """Pieces of ``size`` characters at most."""
    return [text[at : at + size] for at in range(0, len(text), size)]
