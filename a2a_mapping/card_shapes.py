"""The shapes in which one card is served: of 1.0, of 0.3, or of both merged, for whoever does not say a version."""

from __future__ import annotations

from typing import Literal, TypeAlias, assert_never

from passerelle.a2a_mapping.v0_3.cards import CARD_VERSION as LEGACY
from passerelle.a2a_mapping.v0_3.cards import list_addresses, lower_card
from passerelle.core.wire.json import JsonObject

Shape: TypeAlias = Literal["v1", "v0.3", "merged"]


def choose_shape(version: str | None, unset: Shape) -> Shape:
    """The shape for what a reader says in ``A2A-Version``; a card is read before versions are agreed on.

    So a version that is not served is no error here: the card is what says which ones are.
    """
    asked = (version or "").strip()
    if not asked:
        return unset
    return "v0.3" if asked == LEGACY or asked.startswith(f"{LEGACY}.") else "v1"


def shape_card(card: JsonObject, shape: Shape) -> JsonObject:
    """A 1.0 card of ours in a shape. Where no interface of 0.3 is served all shapes are that of 1.0."""
    match shape:
        case "v1":
            return card
        case "v0.3":
            return lower_card(card) or card
        case "merged":
            addresses = list_addresses(card)
            return card if addresses is None else {**_without_signatures(card), **addresses}
        case _:
            assert_never(shape)


def _without_signatures(card: JsonObject) -> JsonObject:
    """They cover the card without what is merged into it."""
    return {name: value for name, value in card.items() if name != "signatures"}
