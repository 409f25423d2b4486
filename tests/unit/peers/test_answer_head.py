"""Which response heads are learned, and which responses match one."""

from __future__ import annotations

import pytest

from passerelle.peers.whole_answer import learn_head

HEAD = b"HTTP/1.1 200 OK\r\nDate: x\r\nContent-Length: %d\r\nServer: y\r\n\r\n"


def answer(body: bytes) -> bytes:
    return HEAD % len(body) + body


@pytest.mark.parametrize("body", [b"[]", b"x" * 9, b""])
@pytest.mark.parametrize("cut", [0, 1])
def test_another_body_of_about_the_same_size_has_the_known_head(body: bytes, cut: int) -> None:
    known = learn_head(answer(b"{}"), 2, len(answer(b"{}")))
    assert known is not None
    assert known.size == len(HEAD % 9)
    data = answer(body)
    assert known.read_length(data[: len(data) - min(cut, len(body))]) == len(body)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        answer(b"x" * 10),
        answer(b"x" * 100)[:-1],
        answer(b"{}").replace(b"Date: x", b"Date: z"),
        answer(b"{}").replace(b"Length: 2", b"Length: +"),
        answer(b"{}").replace(b"200", b"500"),
        (HEAD % 9)[:-1],
        (HEAD % 9).replace(b"Server", b"server"),
    ],
)
def test_other_head_does_not_match_a_learned_one(data: bytes) -> None:
    known = learn_head(answer(b"{}"), 2, len(answer(b"{}")))
    assert known is not None
    assert known.read_length(data) == -1


def test_head_that_comes_before_its_body_is_learned() -> None:
    known = learn_head(HEAD % 2, 2, len(answer(b"{}")))
    assert known == learn_head(answer(b"{}"), 2, len(answer(b"{}")))
    assert known is not None


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{}",
        answer(b""),
        answer(b"[1]"),
        answer(b"{}") + b"x",
        answer(b"{}")[:-1],
        b"HTTP/1.1 200 OK\r\nX-Content-Length: 2\r\n\r\n{}",
        b"HTTP/1.1 200 OK\nContent-Length: 2\n\n{}",
        b"HTTP/1.1 200 OK\r\nX: a\r\n Content-Length: 2\r\n\r\n{}",
        b"HTTP/1.1 100 Continue\r\n\r\n" + answer(b"{}"),
        b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\n{}",
        b"HTTP/1.1 204 No Content\r\nContent-Length: 2\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nContent-Length: 02\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\n\r\ncontent-length: 2\r\n\r\n{}",
    ],
)
def test_head_with_a_length_shorter_than_the_body_is_not_learned(data: bytes) -> None:
    assert learn_head(data, 2, len(data)) is None
