"""What callers make of answers, however they come: fed by hand, so that every piece is known."""

import asyncio
import itertools
from collections.abc import Callable
from math import inf

import pytest

from bench.callers import Caller, Failed, Follower, Subscriber, Turns
from bench.line import Line

pytestmark = pytest.mark.anyio

RIGHT = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ndone"
CLOSING = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\nConnection: close\r\n\r\ndone"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\ndo\r\n2\r\nne\r\n0\r\n\r\n"
STREAM = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
END = b"0\r\n\r\n"


class Sent(asyncio.Transport):
    """Keeps what is written."""

    def __init__(self, line: Line) -> None:
        super().__init__()
        self.written: list[bytes] = []
        line.connection_made(self)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written.append(bytes(data))


def make_caller(deadline: float = inf, within_s: float = inf) -> tuple[Caller, Sent, Turns]:
    """One that has asked once."""
    requests = (b"request %d" % number for number in itertools.count(1))
    turns = Turns(requests, deadline, within_s)
    caller = Caller(turns, b"done")
    sent = Sent(caller)
    caller.ask()
    return caller, sent, turns


def cut(body: bytes) -> bytes:
    """One chunk of a chunked answer."""
    return b"%x\r\n%b\r\n" % (len(body), body)


@pytest.mark.parametrize("answer", [RIGHT, CHUNKED])
async def test_each_right_answer_brings_the_next_request(answer: bytes) -> None:
    caller, sent, turns = make_caller()

    for byte in answer * 2:
        caller.data_received(bytes([byte]))

    assert sent.written == [b"request 1", b"request 2", b"request 3"]
    assert len(turns.took) == 2
    assert not caller.ended.done()


@pytest.mark.parametrize(("answer", "deadline"), [(RIGHT, -inf), (CLOSING, inf)])
async def test_nothing_is_asked_after_the_deadline_or_on_a_line_that_is_about_to_close(
    answer: bytes, deadline: float
) -> None:
    caller, sent, turns = make_caller(deadline)

    caller.data_received(answer)
    caller.connection_lost(None)

    await caller.ended
    assert sent.written == [b"request 1"]
    assert len(turns.took) == 1


async def test_an_answer_that_took_too_long_is_a_wrong_one() -> None:
    caller, sent, turns = make_caller(within_s=0.0)

    caller.data_received(RIGHT)

    with pytest.raises(Failed, match="took more than 0 s"):
        await caller.ended
    assert (sent.written, turns.took) == ([b"request 1"], [])


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (RIGHT.replace(b"done", b"dome"), "200: dome"),
        (RIGHT.replace(b"200 OK", b"503 Busy"), "503: done"),
    ],
)
async def test_an_answer_that_is_not_as_expected_is_told(answer: bytes, told: str) -> None:
    caller, sent, turns = make_caller()

    caller.data_received(answer)

    with pytest.raises(Failed, match=told):
        await caller.ended
    assert (sent.written, turns.took) == ([b"request 1"], [])


async def test_a_connection_that_ends_before_its_answer_is_told() -> None:
    caller, _, _ = make_caller()

    caller.data_received(RIGHT[:-1])
    caller.connection_lost(ConnectionResetError("reset"))

    with pytest.raises(Failed, match="the connection ended before its answer"):
        await caller.ended


async def test_the_chunks_of_a_stream_are_counted_however_its_lines_are_cut() -> None:
    arrived: list[float] = []
    follower = Follower(b'"done"', arrived)
    lines = b'data: {"artifactUpdate": 1}\n\ndata: {"artifactUpdate": 2}\n\ndata: "done"\n\n'

    follower.data_received(STREAM)
    for byte in lines:
        follower.data_received(cut(bytes([byte])))
    assert not follower.ended.done()
    follower.data_received(END)

    await follower.ended
    assert len(arrived) == 2


@pytest.mark.parametrize("make", [Follower, Subscriber])
@pytest.mark.parametrize(
    "answer",
    [
        STREAM + cut(b"data: working\n\ndata: lost\n\n") + END,
        RIGHT.replace(b"200 OK", b"503 Busy"),
    ],
)
async def test_a_stream_that_ends_without_what_is_expected_is_told(
    make: Callable[[bytes, list[float]], Follower], answer: bytes
) -> None:
    follower = make(b"done", [])

    follower.data_received(answer)

    with pytest.raises(Failed, match="a stream ended without done"):
        await follower.ended


async def test_a_subscriber_is_content_before_its_stream_ends() -> None:
    subscriber = Subscriber(b"task", [])

    subscriber.data_received(STREAM + cut(b"data: task\n"))
    subscriber.data_received(cut(b"data: more\n"))
    subscriber.connection_lost(None)

    await subscriber.ended
