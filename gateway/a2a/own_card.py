"""The card of the gateway's own agent: the public one names no agent, the extended one lists what its agents can do."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from importlib.resources import files
from typing import TYPE_CHECKING, Final

import orjson

from passerelle.a2a_mapping.cards import hash_bytes
from passerelle.a2a_mapping.extensions import PROFILE
from passerelle.a2a_mapping.members import as_list, objects_at, read_object, text_at, texts_at
from passerelle.a2a_mapping.v0_3.cards import lift_card
from passerelle.core.peer import PeerCard
from passerelle.runtime.common.version import VERSION

if TYPE_CHECKING:
    from collections.abc import Iterable

    from passerelle.a2a_mapping.cards import PublicEdge
    from passerelle.core.wire.json import JsonObject

PROFILE_EXTENSION: Final[JsonObject] = {
    "uri": PROFILE,
    "description": "Requirements for the agent that gets a message: tier, skills, tags, media types, latency, budget.",
    "required": False,
}
_MODES: Final = ("defaultInputModes", "defaultOutputModes")


def add_profile(edge: PublicEdge) -> PublicEdge:
    """The edge for the gateway's own card."""
    return replace(edge, extensions=(*edge.extensions, PROFILE_EXTENSION))


@lru_cache(1)
def read_own_card() -> PeerCard:
    """The card as packaged, with the version of this program."""
    packed = files("passerelle.agent_cards").joinpath("gateway.json").read_bytes()
    card: JsonObject = {**read_object(packed), "version": VERSION, "supportedInterfaces": []}
    sha256 = hash_bytes(orjson.dumps(card))
    return PeerCard(card, sha256, "", streaming=True, protocol="a2a/1.0")


def merge_cards(cards: Iterable[JsonObject]) -> JsonObject:
    """The own card with the skills and media types of others; of skills with the same id the first one is listed."""
    own = read_own_card().card
    skills = {text_at(one, "id"): one for one in objects_at(own, "skills")}
    modes = {name: dict.fromkeys(texts_at(own, name)) for name in _MODES}
    for card in map(lift_card, cards):
        for skill in objects_at(card, "skills"):
            skills.setdefault(text_at(skill, "id"), skill)
        for name, known in modes.items():
            known.update(dict.fromkeys(texts_at(card, name)))
    return {
        **own,
        "skills": as_list(list(skills.values())),
        **{name: [*known] for name, known in modes.items()},
    }
