"""Texts of peers that may name what only the peer knows: errors, and statuses that make no sense.

Known ids are replaced. A text that then still holds something that looks like an id, or a URL, and that
is not ours, is replaced as a whole by a sentence of ours; the caller of :func:`clean_text` keeps the
original as a reference of the record. Ordinary words and small numbers pass.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from passerelle.a2a_mapping.identity import TEXT_ID_LENGTH, Relabel

_TOKEN: Final = re.compile(r"[A-Za-z0-9_~.:/@%-]{8,}")
_ID_DIGITS: Final = 2
_SEPARATORS: Final = re.compile(r"[:/@%]")
_SHORT: Final = re.compile(r"[A-Za-z0-9_~-]+")


@dataclass(frozen=True, slots=True)
class CleanText:
    """What may be shown; ``replaced`` says that the whole text is ours and the original should be kept."""

    text: str
    replaced: bool


def clean_text(text: str, ids: Relabel, sentence: str, own: Collection[str] = ()) -> CleanText:
    """``text`` fit for a caller, or ``sentence`` instead.

    ``own`` are further tokens that may stay: the facade ids always may, and so may what the caller sent.
    """
    cleaned = _SHORT.sub(lambda word: ids.known.get(word[0], word[0]), ids.scrub(text))
    allowed = {ids.task, ids.context, *ids.known.values(), *own}
    if any(looks_foreign(token, allowed) for token in _TOKEN.findall(cleaned)):
        return CleanText(sentence, replaced=True)
    return CleanText(cleaned, replaced=False)


def looks_foreign(token: str, allowed: Collection[str]) -> bool:
    """Whether ``token`` looks like an id or an address, and is none of ``allowed``."""
    if "://" in token:
        return True
    return any(
        piece not in allowed
        and len(piece) >= TEXT_ID_LENGTH
        and sum(letter.isdigit() for letter in piece) >= _ID_DIGITS
        for piece in _SEPARATORS.split(token.strip("."))
    )
