"""Cleans texts of agents that may contain internal names: error messages and their details.

Known ids are replaced. Of the rest, ordinary tokens are shown: words, small numbers, media types, and known tokens.
Anything else could be an id, a path or an address, so an ellipsis stands in its place: the words around it still say
what is wrong. A list of id formats would never be complete, so this module lists what is certainly not an id. It cannot
detect an unknown id that is spelled like a word.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Final

from passerelle.a2a_mapping.identity import Relabel
from passerelle.core.frozen import frozen

_TOKEN: Final = re.compile(r"[^\s\"'`()\[\]{}<>,;=|!?]+")
_EDGES: Final = ".:-…"
_HIDDEN: Final = "…"
_ORDINARY: Final = re.compile(
    r"""
    (?: [A-Z]?[a-z]{1,20} | [A-Z]{1,12} )    # word, Word, WORD
    | [a-z]{2,12}-[a-z]{2,12}                # read-only
    | [A-Z]?[a-z]{2,16} (?: [A-Z][a-z]{1,16} ){1,4}   # messageId, TaskNotFoundError
    | [0-9]{1,5}
    | [0-9]{1,5} (?: % | ms | [smhd] | [kKMG]i?B )   # 20s, 10MB
    | -3[0-9]{4}                             # a JSON-RPC code
    | A2A
    """,
    re.VERBOSE,
)
_MEDIA_TYPE: Final = re.compile(
    r"""
    (?: \* | application | audio | font | image | message | model | multipart | text | video )
    / (?: \* | [a-z]{1,16} [0-9]{0,2} (?: [.+-] [a-z]{1,16} [0-9]{0,2} ){0,5} )
    """,
    re.VERBOSE,
)
"""Errors name the types that an agent takes. A path of two words passes too, if the first word is such a type."""
_PATH: Final = re.compile(r"[.]")
_NUMBERS: Final = 2
"""Numbers in one token: ``1..100``, ``2.5``; more of them are an address."""
_SHORT: Final = re.compile(r"[A-Za-z0-9_~-]+")


@frozen
class CleanText:
    """Text that may be shown: ``whole`` if nothing of it is hidden. It is empty if no word would be left."""

    text: str
    whole: bool


def clean_text(text: str, ids: Relabel, own: Collection[str] = ()) -> CleanText:
    """``text`` cleaned for a caller.

    ``own`` are further allowed tokens besides the facade ids, such as those that the caller sent.
    """
    cleaned = _SHORT.sub(lambda word: ids.known.get(word[0], word[0]), ids.scrub(text))
    allowed = {ids.task, ids.context, *ids.known.values(), *own}
    tokens = _TOKEN.findall(cleaned)
    shown = [token for token in tokens if is_ordinary(token, allowed)]
    if len(shown) == len(tokens):
        return CleanText(cleaned, whole=True)
    if not any(token.strip(_EDGES) for token in shown):
        return CleanText("", whole=False)
    masked = _TOKEN.sub(lambda one: one[0] if is_ordinary(one[0], allowed) else _HIDDEN, cleaned)
    return CleanText(masked, whole=False)


def is_ordinary(token: str, allowed: Collection[str]) -> bool:
    """Whether ``token`` reveals nothing: a word, a small number, a field path, a media type, or an allowed token."""
    bare = token.strip(_EDGES)
    if token in allowed or bare in allowed or _MEDIA_TYPE.fullmatch(bare):
        return True
    if token.startswith("-3") and _ORDINARY.fullmatch(token.rstrip(_EDGES)):
        return True
    pieces = [piece for piece in _PATH.split(bare) if piece]
    if sum(piece.isdigit() for piece in pieces) > _NUMBERS:
        return False
    return all(piece in allowed or _ORDINARY.fullmatch(piece) for piece in pieces)
