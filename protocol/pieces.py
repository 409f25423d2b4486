"""What is too long for one frame goes ahead in pieces of text, in both directions."""

from __future__ import annotations

from typing import Final

PIECE_CHARS: Final = 131_072
"""Of a call that is too long for one frame; in UTF-8, and escaped, a piece stays below a frame's limit."""


def split_text(text: str, size: int) -> list[str]:
    """Pieces of ``size`` characters at most."""
    return [text[at : at + size] for at in range(0, len(text), size)]
