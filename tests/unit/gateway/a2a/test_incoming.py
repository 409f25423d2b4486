"""The head and the body of a request."""

import pytest
from starlette.types import Message

from passerelle.core.errors import ContentTypeNotSupported, Limited, TooLarge
from passerelle.gateway.a2a.bindings import choose_media_type, refuse_verb
from passerelle.gateway.a2a.http_request import FREE_BYTES, CallerLeftError, Incoming
from passerelle.runtime.memory.budget import Budget
from passerelle.runtime.memory.room import MemoryDraw, MemoryRoom

ROOM = MemoryDraw(MemoryRoom().bind("body", "caller:ada"))


def make(headers: dict[str, str] | None = None, query: str = "") -> Incoming:
    return Incoming(
        {
            "type": "http",
            "method": "POST",
            "path": "/agents/echo",
            "scheme": "http",
            "server": ("127.0.0.1", 8080),
            "headers": [(k.encode(), v.encode("latin-1")) for k, v in (headers or {}).items()],
            "query_string": query.encode(),
        }
    )


class Pieces:
    """A body in pieces; then, if asked on, the end of the connection."""

    def __init__(self, *pieces: bytes, more: bool = False) -> None:
        self.left = list(pieces)
        self.more = more

    async def receive(self) -> Message:
        if not self.left:
            return {"type": "http.disconnect"}
        piece = self.left.pop(0)
        return {
            "type": "http.request",
            "body": piece,
            "more_body": bool(self.left) or self.more,
        }


@pytest.mark.anyio
async def test_body_is_read_whole() -> None:
    assert await make().read_body(Pieces(b"ab", b"", b"c").receive, 3, ROOM) == b"abc"


@pytest.mark.anyio
async def test_body_over_the_limit_is_refused_before_it_is_read_to_its_end() -> None:
    pieces = Pieces(b"ab", b"cd", b"ef")
    with pytest.raises(TooLarge):
        await make().read_body(pieces.receive, 3, ROOM)
    assert pieces.left == [b"ef"]


@pytest.mark.anyio
@pytest.mark.parametrize("length", ["4", "9" * 400])
async def test_announced_length_over_the_limit_is_refused_unread(length: str) -> None:
    pieces = Pieces(b"ab")
    with pytest.raises(TooLarge):
        await make({"content-length": length}).read_body(pieces.receive, 3, ROOM)
    assert pieces.left == [b"ab"]


@pytest.mark.anyio
async def test_caller_that_leaves_in_the_middle_of_a_body_is_not_answered() -> None:
    with pytest.raises(CallerLeftError):
        await make().read_body(Pieces(b"ab", more=True).receive, 3, ROOM)


def test_content_type_counts_without_its_parameters() -> None:
    incoming = make({"content-type": " Application/JSON ; charset=utf-8"})
    incoming.require_media_type({"application/json"}, optional=False)
    with pytest.raises(ContentTypeNotSupported):
        incoming.require_media_type({"text/plain"}, optional=True)
    make().require_media_type({"application/json"}, optional=True)
    with pytest.raises(ContentTypeNotSupported):
        make().require_media_type({"application/json"}, optional=False)


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("agents.example.com", "http://agents.example.com"),
        ("localhost:9000", "http://localhost:9000"),
        ("[::1]:9000", "http://[::1]:9000"),
        ("", "http://127.0.0.1:8080"),
        ("a b", "http://127.0.0.1:8080"),
        ("user@host", "http://127.0.0.1:8080"),
        ("host/path", "http://127.0.0.1:8080"),
    ],
)
def test_own_url_is_that_of_the_host_that_was_asked(host: str, url: str) -> None:
    assert make({"host": host}).own_url == url


def test_query_is_read_once_and_decoded() -> None:
    assert make(query="a=1&b=%7B&c=").query == {"a": "1", "b": "{", "c": ""}
    assert make().query == {}


@pytest.mark.parametrize(
    ("sent", "accept", "chosen"),
    [
        ("application/json", "application/a2a+json", "application/json"),
        ("application/a2a+json", "application/json", "application/a2a+json"),
        ("", "application/json;q=0.9", "application/json"),
        ("", "", "application/a2a+json"),
        ("", "text/html, */*", "application/a2a+json"),
        ("text/plain", "application/json", "application/json"),
    ],
)
def test_type_of_a_success(sent: str, accept: str, chosen: str) -> None:
    assert choose_media_type(make({"content-type": sent, "accept": accept})) == chosen


def test_refused_verb_names_those_that_are_there() -> None:
    reply = refuse_verb(make(), {"POST": 1, "GET": 2})
    assert (reply.status, reply.headers["allow"]) == (405, "GET, POST")
    assert b'"code":405' in reply.body


@pytest.mark.anyio
async def test_large_bodies_share_the_room_until_it_is_closed() -> None:
    # Of a budget one has half.
    room, large = MemoryRoom(Budget(6)).bind("body", "caller:ada"), b"x" * (FREE_BYTES + 2)
    limit = len(large)
    first, second = MemoryDraw(room), MemoryDraw(room)
    assert await make().read_body(Pieces(large).receive, limit, first) == large
    assert room.room.budget.held == 2
    with pytest.raises(Limited):
        await make().read_body(Pieces(b"x", large[:-1], b"x").receive, limit, second)
    first.close()
    with pytest.raises(CallerLeftError):
        await make().read_body(Pieces(large, more=True).receive, limit, second)
    second.close()
    assert not room.room.budget.held
