"""The event parser: the rules of the format, in any chunking."""

from __future__ import annotations

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from passerelle.core.wire.sse import SseParser, escape_breaks, hold_begun

LIMIT = 1000


def read_whole(content: bytes, limit: int = LIMIT) -> tuple[list[bytes], bool, bool]:
    parser = SseParser(limit)
    return parser.feed(content), parser.overflowed, parser.in_event


@pytest.mark.parametrize(
    ("content", "payloads"),
    [
        (b"data: one\n\n", [b"one"]),
        (b"data:one\n\n", [b"one"]),
        (b"data:  one \n\n", [b" one "]),
        (b"data: one\r\n\r\ndata: two\r\n\r\n", [b"one", b"two"]),
        (b"data: one\r\rdata: two\r\r", [b"one", b"two"]),
        (b"data: one\r\n\rdata: two\n\r\n", [b"one", b"two"]),
        (b"data: a\ndata: b\ndata\n\n", [b"a\nb\n"]),
        (b"\xef\xbb\xbfdata: one\n\n", [b"one"]),
        (b"\n\xef\xbb\xbfdata: one\n\n", []),
        (b": ping\n\ndata: one\n: ping\n\n", [b"one"]),
        (b"event: x\nid: 7\nretry: 5\ndata: one\n\nid: 8\n\n", [b"one"]),
        (b"database: one\n\n data: two\n\n", []),
        (b"data\n\n", [b""]),
        (b"\n\n\n", []),
        (b"data: cut\n", []),
        (b"", []),
    ],
)
def test_events_are_read_by_the_rules_of_the_format(content: bytes, payloads: list[bytes]) -> None:
    assert read_whole(content)[0] == payloads


@pytest.mark.parametrize(
    ("content", "inside"),
    [
        (b"", False),
        (b"data: one\n\n", False),
        (b"data: one\n", True),
        (b"data: o", True),
        (b"da", True),
        (b"data: one\n\n: ping", False),
        (b"data: one\r\n\r", False),
        (b"id: 7\n", False),
    ],
)
def test_end_inside_an_event_is_known(content: bytes, *, inside: bool) -> None:
    assert read_whole(content)[2] is inside


def test_event_before_an_oversized_one_is_given_and_none_after() -> None:
    parser = SseParser(10)
    assert parser.feed(b"data: 1234567890\n\ndata: 12345678901\n\n") == [b"1234567890"]
    assert parser.overflowed
    assert parser.feed(b"data: more\n\n") == []


def test_unfinished_line_does_not_grow_past_the_limit() -> None:
    parser = SseParser(LIMIT)
    for _ in range(LIMIT + 7):
        assert not parser.overflowed
        parser.feed(b"x")
    assert parser.overflowed


def test_comments_without_end_are_no_oversized_event() -> None:
    parser = SseParser(LIMIT)
    for _ in range(LIMIT):
        assert parser.feed(b": still here\n") == []
    assert parser.feed(b"data: one\n\n") == [b"one"]
    assert not parser.overflowed


def test_many_small_data_lines_count_together() -> None:
    assert read_whole(b"data: 0123456789\n" * 100, limit=500)[1]


@pytest.mark.parametrize("newline", [b"\n", b"\r", b"\r\n"])
def test_every_single_cut_gives_the_same_events(newline: bytes) -> None:
    lines = [
        b"\xef\xbb\xbfdata: a",
        b"data: b",
        b"",
        b": ping",
        b"id: 7",
        b"data: \xc3\xa9",
        b"",
        b"",
    ]
    content = newline.join(lines)
    for cut in range(len(content) + 1):
        parser = SseParser(LIMIT)
        events = parser.feed(content[:cut]) + parser.feed(content[cut:])
        assert events == [b"a\nb", b"\xc3\xa9"]
    parser = SseParser(LIMIT)
    bytewise = [event for byte in content for event in parser.feed(bytes([byte]))]
    assert bytewise == [b"a\nb", b"\xc3\xa9"]


pieces = st.sampled_from(
    [
        b"\n",
        b"\r",
        b"\r\n",
        b"\n\n",
        b"data",
        b":",
        b" ",
        b"data: ",
        b"data: x\n\n",
        b": ping\n",
        b"id: 1\n",
        b"\xef\xbb\xbf",
        b"\xc3\xa9",
        b"x" * 30,
    ]
)


@given(st.lists(pieces, max_size=40).map(b"".join), st.data())
def test_any_cut_of_the_bytes_gives_the_same_events(content: bytes, data: st.DataObject) -> None:
    cuts = data.draw(st.lists(st.integers(0, len(content)), max_size=12).map(sorted))
    limit = data.draw(st.sampled_from([20, 40, LIMIT]))
    parser = SseParser(limit)
    events: list[bytes] = []
    for start, end in zip([0, *cuts], [*cuts, len(content)], strict=True):
        events += parser.feed(content[start:end])
    assert (events, parser.overflowed) == read_whole(content, limit)[:2]
    if not parser.overflowed:
        assert parser.in_event == read_whole(content, limit)[2]


@given(st.lists(st.lists(st.text(alphabet="ab: {}é", max_size=8), min_size=1, max_size=4)))
def test_events_written_line_by_line_are_read_back(events: list[list[str]]) -> None:
    lines = [[line.encode() for line in event] for event in events]
    for newline in (b"\n", b"\r\n", b"\r"):
        stream = b"".join(
            b"".join(b"data: " + line + newline for line in event) + newline for event in lines
        )
        assert read_whole(stream, 10_000)[0] == [b"\n".join(event) for event in lines]


texts = st.text(
    alphabet='a\\"é \x85\u2028\u2029\u0080\u2027\u202a\u2000\x0b\x0c\x1c\x1e\r\n💡', max_size=30
)


@given(st.recursive(texts, lambda inner: st.dictionaries(texts, inner, max_size=3)), st.data())
def test_json_that_is_written_as_data_is_one_line_to_every_reader(
    value: object, data: st.DataObject
) -> None:
    written = orjson.dumps(value)
    escaped = escape_breaks(written)
    assert orjson.loads(escaped) == value
    assert len(escaped.decode().splitlines()) == 1
    cuts = data.draw(st.lists(st.integers(0, len(written)), max_size=8).map(sorted))
    pieces, begun = list[bytes](), b""
    for start, end in zip([0, *cuts], [*cuts, len(written)], strict=True):
        piece, begun = hold_begun(begun + written[start:end])
        pieces.append(escape_breaks(piece))
    assert b"".join(pieces) + begun == escaped
