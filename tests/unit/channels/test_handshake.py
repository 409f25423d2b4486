"""Which web page may open a channel."""

import pytest

from passerelle.channels.handshake import judge_handshake
from passerelle.channels.origins import WebOrigins
from passerelle.protocol.frames import SUBPROTOCOL

DESK = b"https://desk.example"


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ([], None),
        ([(b"origin", DESK)], None),
        ([(b"origin", b"https://us.example"), (b"host", b"us.example")], None),
        ([(b"origin", b"https://us.example"), (b"host", b"other.example")], 403),
        ([(b"origin", b"https://us.example")], 403),
        ([(b"origin", b"https://[us"), (b"host", b"us.example")], 403),
        ([(b"origin", b"null"), (b"host", b"us.example")], 403),
        ([(b"origin", DESK), (b"origin", b"https://evil.example")], 400),
        ([(b"origin", b"https://evil.example"), (b"origin", DESK)], 400),
        ([(b"host", b"us.example"), (b"host", b"us.example")], 400),
    ],
)
def test_the_origin_of_a_handshake_is_listed_or_same_host_and_given_once(
    headers: list[tuple[bytes, bytes]], status: int | None
) -> None:
    scope = {"type": "websocket", "headers": headers, "subprotocols": [SUBPROTOCOL]}
    refused = judge_handshake(scope, WebOrigins({DESK.decode()}))
    assert (refused and refused.status) == status
