"""Which protocol extensions a call activates: those that the caller asks for and that are served here.

The set is echoed in the answer. An extension that the agent's card requires is judged where the agent is asked, which
is with a message: what we answer from our own record needs nobody's extension (A2A 1.0 section 3.2.6).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from passerelle.a2a_mapping.errors import ExtensionRequired
from passerelle.a2a_mapping.members import object_at, objects_at, text_at
from passerelle.gateway.a2a.edge import EXTENSIONS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from passerelle.core.json import JsonObject
    from passerelle.core.peer import Peer, PeerCard
    from passerelle.gateway.a2a.incoming import Incoming

HEADER: Final = "A2A-Extensions"
"""Also the name of the query parameter."""
LEGACY_HEADER: Final = "X-A2A-Extensions"
_NAME: Final = HEADER.lower()
_LEGACY_NAME: Final = LEGACY_HEADER.lower()
_NONE: Final = frozenset[str]()
OWN: Final = frozenset(text_at(extension, "uri") for extension in EXTENSIONS)


class Finds(Protocol):
    """Finds agents by name."""

    def find(self, name: str) -> Peer:
        """Raises NotFound for a name that is not configured."""
        ...


class Extensions:
    """Judges the extensions of calls; what a card demands is read once per card."""

    def __init__(self, agents: Finds) -> None:
        self._agents = agents
        self._required: dict[str, tuple[str, frozenset[str]]] = {}

    def activate(self, asked: frozenset[str]) -> frozenset[str]:
        """Those of ``asked`` that are served here; the others are ignored, as the specification says."""
        return asked & OWN if asked else asked

    async def require(self, agent: str, asked: frozenset[str]) -> None:
        """Judges a message before it goes to an agent.

        Raises:
            ExtensionRequired: the card demands one that the caller did not name.
            PeerUnavailable: the agent never had a card.
        """
        if missing := self._find_required(agent, await self._agents.find(agent).describe()) - asked:
            raise ExtensionRequired(min(missing))

    def allow_now(self, agent: str, asked: frozenset[str]) -> bool:
        """Whether ``require`` would raise nothing; False also where the agent had to be asked for its card."""
        card = self._agents.find(agent).fresh
        return card is not None and self._find_required(agent, card) <= asked

    def _find_required(self, agent: str, card: PeerCard) -> frozenset[str]:
        known = self._required.get(agent)
        if known is None or known[0] != card.sha256:
            known = self._required[agent] = (card.sha256, list_required(card.card))
        return known[1]


def list_required(card: JsonObject) -> frozenset[str]:
    """The URIs of the extensions that a card requires."""
    offered = objects_at(object_at(card, "capabilities"), "extensions")
    return frozenset(text_at(item, "uri") for item in offered if item.get("required") is True)


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
    """The header that echoes what is active; none where nothing is."""
    if not active:
        return {}
    names = (HEADER, LEGACY_HEADER) if legacy else (HEADER,)
    return dict.fromkeys(names, ", ".join(sorted(active)))
