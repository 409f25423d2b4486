r"""Escapes agents' texts for display: characters that control a terminal or change direction become visible.

Control characters, ANSI sequences, zero-width and bidirectional characters are written as ``\u{202e}``. A cut shows how
much it left out: a preview with a hidden end leads people to approve what they never saw.
"""

from __future__ import annotations

import unicodedata
from typing import Final

from passerelle.core.wire.json import Json

TEXT_LIMIT: Final = 8000
SAFE_INTEGER: Final = 2**53
"""From here on a reader that knows only floats loses digits."""
_ESCAPED: Final = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
_LAYOUT: Final = frozenset("\n\t")


def escape_text(text: str, limit: int = TEXT_LIMIT) -> str:
    """``text`` with unsafe characters escaped, and visibly cut after ``limit`` characters."""
    rest = len(text) - limit
    shown = "".join(_escape(letter) for letter in text[:limit])
    return f"{shown} [{rest} more characters]" if rest > 0 else shown


def escape_value(value: Json) -> Json:
    """A copy of ``value`` with every text and name escaped; nothing is cut.

    A whole float is shown as a whole number, as it was before protobuf: 40, not 40.0.
    """
    if isinstance(value, str):
        return escape_text(value, len(value))
    if isinstance(value, dict):
        return {
            escape_text(name, len(name)): escape_value(member) for name, member in value.items()
        }
    if isinstance(value, list):
        return [escape_value(item) for item in value]
    if isinstance(value, float) and value.is_integer() and abs(value) < SAFE_INTEGER:
        return int(value)
    return value


def _escape(letter: str) -> str:
    if letter.isascii() and letter.isprintable():
        return letter
    if letter in _LAYOUT or unicodedata.category(letter) not in _ESCAPED:
        return letter
    return f"\\u{{{ord(letter):x}}}"
