r"""Formats text for people: counts, and foreign text with every character escaped that is unsafe or invisible.

Control characters, ANSI sequences, zero-width, bidirectional and other invisible characters become ``\u{202e}``.
Escaping is idempotent. Nothing is cut here: a caller that cuts must show it.
"""

from __future__ import annotations

import unicodedata
from typing import Final

from passerelle.core.wire.json import Json

_UNSAFE: Final = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
_LAYOUT: Final = frozenset("\n\t")
_INVISIBLE: Final = frozenset(
    map(
        chr,
        (
            0x034F,  # combining grapheme joiner
            0x115F,  # Hangul fillers
            0x1160,
            0x3164,
            0xFFA0,
            0x17B4,  # Khmer inherent vowels
            0x17B5,
            0x180B,  # Mongolian variation selectors
            0x180C,
            0x180D,
            0x180F,
            0x2800,  # blank Braille pattern
            *range(0xFE00, 0xFE0E),  # variation selectors, but not those for text and emoji style
            *range(0xE0100, 0xE01F0),
        ),
    )
)


def escape_text(text: str) -> str:
    """``text`` with every unsafe or invisible character escaped."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(_escape(letter) for letter in text)


def escape_line(text: str) -> str:
    """``text`` on one line: line breaks and tabs become spaces."""
    return escape_text(" ".join(text.split()))


def explain_error(error: BaseException) -> str:
    """The text of an error; of one of the system without its number and path."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def escape_value(value: Json) -> Json:
    """A copy of ``value`` in which every text and every name is escaped."""
    if isinstance(value, str):
        return escape_text(value)
    if isinstance(value, dict):
        return {escape_text(name): escape_value(member) for name, member in value.items()}
    if isinstance(value, list):
        return [escape_value(item) for item in value]
    return value


def _escape(letter: str) -> str:
    if letter in _LAYOUT:
        return letter
    if letter in _INVISIBLE or unicodedata.category(letter) in _UNSAFE:
        return f"\\u{{{ord(letter):x}}}"
    return letter


def format_count(count: int, one: str, several: str | None = None) -> str:
    """``1 task``, ``2,000 tasks``; ``several`` is the plural if it is not formed with an s."""
    return f"{count:,} {one if count == 1 else several or f'{one}s'}"
