"""The cards that we serve: a peer's card made into ours, with what a cache needs to keep it (A2A 1.0 section 8)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from email.utils import formatdate, parsedate_to_datetime
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from passerelle.a2a_mapping.cards import rewrite_card
from passerelle.a2a_mapping.extensions import PERMISSION, RESUME
from passerelle.gateway.a2a.reply import Reply

if TYPE_CHECKING:
    from collections.abc import Mapping

    from passerelle.a2a_mapping.cards import EdgeAuth
    from passerelle.core.json import JsonObject
    from passerelle.core.peer import PeerCard
    from passerelle.core.ports import Clock

CACHE_CONTROL: Final = "public, max-age=300, stale-while-revalidate=60"
EXTENSIONS: Final[tuple[JsonObject, ...]] = (
    {
        "uri": PERMISSION,
        "description": "An open decision on a waiting task, and the typed answer to it.",
        "required": False,
    },
    {
        "uri": RESUME,
        "description": "A cursor on every event, and a defined answer to a reader that comes back with one.",
        "required": False,
        "params": {"cursor": "sse-id"},
    },
)


@dataclass(frozen=True, slots=True)
class _Kept:
    """The last card that was made for an agent; ``since_s``: when the peer's card was first seen."""

    sha256: str
    base_url: str
    since_s: int
    reply: Reply


class Cards:
    """Renders cards, and keeps the last one of each agent."""

    def __init__(self, auth: EdgeAuth, clock: Clock) -> None:
        self._auth: EdgeAuth = auth
        self._clock = clock
        self._kept: dict[str, _Kept] = {}

    def render(self, agent: str, peer: PeerCard, card_url: str, base_url: str) -> Reply:
        """The whole answer for a card that was read at ``card_url`` and is served at ``base_url``."""
        kept = self._kept.get(agent)
        if kept is not None and (kept.sha256, kept.base_url) == (peer.sha256, base_url):
            return kept.reply
        # The host that a caller names changes the bytes, but not when the card changed.
        same = kept is not None and kept.sha256 == peer.sha256
        since_s = kept.since_s if kept is not None and same else self._clock.now_ms() // 1000
        served = rewrite_card(peer.card, card_url, base_url, self._auth, EXTENSIONS)
        headers = {
            "etag": served.etag,
            "last-modified": formatdate(since_s, usegmt=True),
            "cache-control": CACHE_CONTROL,
            "vary": "A2A-Version",
        }
        reply = Reply(HTTPStatus.OK, served.body, headers=headers)
        self._kept[agent] = _Kept(peer.sha256, base_url, since_s, reply)
        return reply


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


def _is_unchanged(modified: str, since: str | None) -> bool:
    if since is None:
        return False
    try:
        return parsedate_to_datetime(modified) <= parsedate_to_datetime(since)
    except (ValueError, TypeError):
        # A time that cannot be read is as good as none; one without a zone cannot be compared.
        return False
