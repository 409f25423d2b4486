"""The cards that we serve: a peer's card made into ours, with what a cache needs to keep it (A2A 1.0 section 8)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from email.utils import formatdate, parsedate_to_datetime
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

import orjson
import structlog

from passerelle.a2a_mapping.card_payload import render_payload
from passerelle.a2a_mapping.cards import (
    EVERY_BINDING,
    Shape,
    choose_shape,
    hash_bytes,
    rewrite_card,
    shape_card,
)
from passerelle.core.errors import InvalidInput
from passerelle.gateway.a2a.edge import KEY_EDGE, make_edge
from passerelle.gateway.a2a.reply import Reply

if TYPE_CHECKING:
    from collections.abc import Mapping

    from passerelle.a2a_mapping.cards import Edge, Place
    from passerelle.core.peer import PeerCard
    from passerelle.core.ports.chance import Clock
    from passerelle.core.wire.json import Json, JsonObject
    from passerelle.gateway.settings import Settings
    from passerelle.runtime.common.signatures import Signer

CACHE_CONTROL: Final = "public, max-age=300, stale-while-revalidate=60"


@dataclass(frozen=True, slots=True)
class CardOptions:
    """What stands on our cards, the shape for readers that name no version, and who signs them."""

    edge: Edge = KEY_EDGE
    shape: Shape = "merged"
    signer: Signer | None = None

    def compose(self, card: JsonObject, place: Place, *, shows_all: bool = False) -> JsonObject:
        """A peer's card as ours, in the form of 1.0, signed where cards are; ``shows_all``: with every interface."""
        edge = replace(self.edge, listed=EVERY_BINDING) if shows_all else self.edge
        return sign_card(rewrite_card(card, place, edge), self.signer)


def make_card_options(
    settings: Settings, signer: Signer | None, *, push: bool = False
) -> CardOptions:
    """The options of the settings; only a card of one version can be signed for strict readers."""
    signs = signer if settings.signing.signs_cards else None
    return CardOptions(
        replace(make_edge(settings), push=push),
        settings.card_shape or ("v1" if signs else "merged"),
        signs,
    )


@dataclass(frozen=True, slots=True)
class _Kept:
    """The last card that was made for an agent; ``since_s``: when the peer's card was first seen."""

    sha256: str
    base_url: str
    since_s: int
    replies: Mapping[Shape, Reply]


class Cards:
    """Renders cards, and keeps the last one of each agent."""

    def __init__(self, options: CardOptions, clock: Clock) -> None:
        self._options = options
        self._clock = clock
        self._kept: dict[tuple[str, bool], _Kept] = {}

    def render(
        self, peer: PeerCard, place: Place, version: str | None, *, shows_all: bool = False
    ) -> Reply:
        """The whole answer for a card; ``version`` is what the reader said in ``A2A-Version``.

        ``shows_all``: the reader has activated the extension that puts every interface on the card.
        """
        key = (place.agent, shows_all)
        kept = self._kept.get(key)
        if kept is None or (kept.sha256, kept.base_url) != (peer.sha256, place.base_url):
            # The host that a caller names changes the bytes, but not when the card changed.
            same = kept is not None and kept.sha256 == peer.sha256
            since_s = kept.since_s if kept is not None and same else self._clock.now_ms() // 1000
            kept = self._kept[key] = self._make(peer, place, since_s, shows_all=shows_all)
        return kept.replies[choose_shape(version, self._options.shape)]

    def _make(self, peer: PeerCard, place: Place, since_s: int, *, shows_all: bool) -> _Kept:
        card = self._options.compose(peer.card, place, shows_all=shows_all)
        shapes: tuple[Shape, ...] = ("v1", "v0.3", "merged")
        replies: dict[Shape, Reply] = {
            shape: _answer(shape_card(card, shape), since_s) for shape in shapes
        }
        return _Kept(peer.sha256, place.base_url, since_s, replies)


def sign_card(card: JsonObject, signer: Signer | None) -> JsonObject:
    """A 1.0 card with one signature for each key that signs (A2A 1.0 section 8.4)."""
    if signer is None:
        return card
    try:
        payload = render_payload(card)
    except InvalidInput as error:
        # The peer wrote something that has no canonical form. Its card is of more use than none.
        name = str(card.get("name"))
        structlog.get_logger().warning("card.unsigned", agent=name, reason=error.reason)
        return card
    signatures: list[Json] = [
        {"protected": made.protected, "signature": made.signature} for made in signer.sign(payload)
    ]
    return {**card, "signatures": signatures}


def shorten(reply: Reply, request: Mapping[str, str]) -> Reply:
    """``reply``, or 304 when the caller has the same: by ETag, else by time (RFC 9110 section 13.2.2)."""
    asked = request.get("if-none-match")
    if asked is not None:
        tags = {tag.strip().removeprefix("W/") for tag in asked.split(",")}
        same = reply.headers["etag"] in tags or "*" in tags
    else:
        same = _is_unchanged(reply.headers["last-modified"], request.get("if-modified-since"))
    if not same:
        return reply
    return replace(reply, status=HTTPStatus.NOT_MODIFIED, body=b"", media_type=None)


def _answer(card: JsonObject, since_s: int) -> Reply:
    body = orjson.dumps(card)
    headers = {
        "etag": f'"{hash_bytes(body)[:32]}"',
        "last-modified": formatdate(since_s, usegmt=True),
        "cache-control": CACHE_CONTROL,
        "vary": "A2A-Version, A2A-Extensions",
    }
    return Reply(HTTPStatus.OK, body, headers=headers)


def _is_unchanged(modified: str, since: str | None) -> bool:
    if since is None:
        return False
    try:
        return parsedate_to_datetime(modified) <= parsedate_to_datetime(since)
    except (ValueError, TypeError):
        # A time that cannot be read is as good as none; one without a zone cannot be compared.
        return False
