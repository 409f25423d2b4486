"""Which protocol extensions a call activates: requested ones that are served here, or by the agent.

The answer echoes them: ours at once, the agent's if it was called for this answer and confirmed them. Extensions that
the agent's card requires are checked where a message becomes a run (``delegation/runs/plan.py``): answers from our own
record need no extension (A2A 1.0 section 3.2.6).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from passerelle.a2a_mapping.members import text_at
from passerelle.gateway.a2a.cards import EXTENSIONS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from passerelle.gateway.a2a.http_request import Incoming

HEADER: Final = "A2A-Extensions"
"""Also the name of the query parameter."""
LEGACY_HEADER: Final = "X-A2A-Extensions"
_NAME: Final = HEADER.lower()
_LEGACY_NAME: Final = LEGACY_HEADER.lower()
_NONE: Final = frozenset[str]()
OWN: Final = frozenset(text_at(extension, "uri") for extension in EXTENSIONS)


def activate(asked: frozenset[str]) -> frozenset[str]:
    """Those of ``asked`` that are served here; the others are the agent's, or ignored."""
    return asked & OWN if asked else asked


def read_extensions(incoming: Incoming, *, legacy: bool = False) -> frozenset[str]:
    """The extensions that a request names, in its header or in the query; ``legacy`` reads the name of 0.3 too."""
    named = read_metadata(incoming.headers, legacy=legacy)
    if not incoming.query:
        return named
    query = {name.lower(): value for name, value in incoming.query.items()}
    return named | read_metadata(query, legacy=legacy)


def read_metadata(headers: Mapping[str, str], *, legacy: bool = False) -> frozenset[str]:
    """The extensions that headers or gRPC metadata name; the names of ``headers`` are lower case."""
    text = headers.get(_NAME, "")
    if legacy:
        text = f"{text},{headers.get(_LEGACY_NAME, '')}"
    return frozenset(filter(None, map(str.strip, text.split(",")))) if text else _NONE


def write_active(active: frozenset[str], *, legacy: bool = False) -> dict[str, str]:
    """The header that echoes the active extensions; empty without any."""
    if not active:
        return {}
    names = (HEADER, LEGACY_HEADER) if legacy else (HEADER,)
    return dict.fromkeys(names, ", ".join(sorted(active)))
