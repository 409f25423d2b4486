"""Cleans texts of agents that may contain internal names: error messages, and unreadable statuses.

Known ids are replaced. The rest may be shown if all of it is ordinary: words, small numbers, and known tokens. Anything
else could be an id, a path or an address, so the whole text is replaced by a fixed sentence; the caller of
:func:`clean_text` keeps the original as a reference of the record. A list of id formats would never be complete, so
this module lists what is certainly not an id. It cannot detect an unknown id that is spelled like a word.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Final

from passerelle.a2a_mapping.identity import Relabel
from passerelle.core.frozen import frozen

_TOKEN: Final = re.compile(r"[^\s\"'`()\[\]{}<>,;=|!?]+")
_EDGES: Final = ".:-…"
_ORDINARY: Final = re.compile(
    r"""
    (?: [A-Z]?[a-z]{1,20} | [A-Z]{1,12} )    # word, Word, WORD
    | [a-z]{2,12}-[a-z]{2,12}                # read-only
    | [A-Z]?[a-z]{2,16} (?: [A-Z][a-z]{1,16} ){1,4}   # messageId, TaskNotFoundError
    | [0-9]{1,5}
    | -3[0-9]{4}                             # a JSON-RPC code
    """,
    re.VERBOSE,
)
_PATH: Final = re.compile(r"[.]")
_NUMBERS: Final = 2
"""Numbers in one token: ``1..100``, ``2.5``; more of them are an address."""
_SHORT: Final = re.compile(r"[A-Za-z0-9_~-]+")


@frozen
class CleanText:
    """Text that may be shown; ``replaced``: the whole text was replaced and the original should be kept."""

    text: str
    replaced: bool


def clean_text(text: str, ids: Relabel, sentence: str, own: Collection[str] = ()) -> CleanText:
    """``text`` cleaned for a caller, or ``sentence`` instead.

    ``own`` are further allowed tokens besides the facade ids, such as those that the caller sent.
    """
    cleaned = _SHORT.sub(lambda word: ids.known.get(word[0], word[0]), ids.scrub(text))
    allowed = {ids.task, ids.context, *ids.known.values(), *own}
    if all(is_ordinary(token, allowed) for token in _TOKEN.findall(cleaned)):
        return CleanText(cleaned, replaced=False)
    return CleanText(sentence, replaced=True)


def is_ordinary(token: str, allowed: Collection[str]) -> bool:
    """Whether ``token`` reveals nothing: a word, a small number, a field path, or an allowed token."""
    if token in allowed or token.strip(_EDGES) in allowed:
        return True
    if token.startswith("-3") and _ORDINARY.fullmatch(token.rstrip(_EDGES)):
        return True
    pieces = [piece for piece in _PATH.split(token.strip(_EDGES)) if piece]
    if sum(piece.isdigit() for piece in pieces) > _NUMBERS:
        return False
    return all(piece in allowed or _ORDINARY.fullmatch(piece) for piece in pieces)
