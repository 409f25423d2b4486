"""When a card changed, and who has it already."""

from dataclasses import dataclass, replace

import pytest

from passerelle.core.json import JsonObject
from passerelle.core.peer import PeerCard
from passerelle.gateway.a2a.cards import Cards, shorten

CARD: JsonObject = {"name": "echo", "version": "1", "skills": []}
PEER = PeerCard({**CARD}, "sha-1", "http://peer:1/", streaming=True, protocol="a2a/1.0")


@dataclass
class HandClock:
    """A clock that a test moves."""

    ms: int = 1_000_000

    def now_ms(self) -> int:
        return self.ms


def test_card_changed_when_the_card_of_the_peer_did_whatever_host_is_asked() -> None:
    clock = HandClock()
    cards = Cards("open", clock)

    def render(peer: PeerCard, host: str) -> dict[str, str]:
        reply = cards.render("echo", peer, "http://peer:1/card", f"http://{host}/agents/echo")
        return dict(reply.headers)

    first = render(PEER, "a")
    assert first["last-modified"] == "Thu, 01 Jan 1970 00:16:40 GMT"
    clock.ms += 60_000
    other = render(PEER, "b")
    assert other["last-modified"] == first["last-modified"]
    assert other["etag"] != first["etag"]
    assert render(PEER, "a") == first
    changed = render(replace(PEER, card={**CARD, "version": "2"}, sha256="sha-2"), "a")
    assert changed["last-modified"] == "Thu, 01 Jan 1970 00:17:40 GMT"
    assert changed["etag"] != first["etag"]


@pytest.mark.parametrize(
    ("asked", "status"),
    [
        ({}, 200),
        ({"if-modified-since": "Thu, 01 Jan 1970 00:16:40 GMT"}, 304),
        ({"if-modified-since": "Thu, 01 Jan 1970 00:16:41 GMT"}, 304),
        ({"if-modified-since": "Thu, 01 Jan 1970 00:16:39 GMT"}, 200),
        ({"if-modified-since": "Thu, 01 Jan 1970 00:16:40"}, 200),
        ({"if-modified-since": ""}, 200),
        ({"if-none-match": ""}, 200),
        ({"if-none-match": '"x", *'}, 304),
    ],
)
def test_caller_that_has_the_card_is_told_so(asked: dict[str, str], status: int) -> None:
    reply = Cards("open", HandClock()).render("echo", PEER, "http://peer:1/card", "http://a")
    assert shorten(reply, asked).status == status
