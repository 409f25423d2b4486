"""What callers make of answers, however they come: fed by hand, so that every piece is known."""

import asyncio
import itertools
from math import inf

import pytest

from bench.callers import LoadCaller, RequestSchedule, StreamSubscriber, UnexpectedAnswer
from bench.http_connection import HttpConnection
from bench.steps import NUMBER, CallerProgress, PreparedRequest, RequestStep

pytestmark = pytest.mark.anyio

STEPS = ("first", "second")
TASK = b'{"task":{"id":"t1","contextId":"c1","status":"done"}}'
RIGHT = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(TASK), TASK)
CLOSING = RIGHT.replace(b"200 OK", b"200 OK\r\nConnection: close")
HALVES = (TASK[:9], TASK[9:])
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%b0\r\n\r\n" % b"".join(
    b"%x\r\n%b\r\n" % (len(half), half) for half in HALVES
)
STREAM = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
END = b"0\r\n\r\n"


class Sent(asyncio.Transport):
    """Keeps what is written."""

    def __init__(self, line: HttpConnection) -> None:
        super().__init__()
        self.written: list[bytes] = []
        line.connection_made(self)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written.append(bytes(data))


def make_caller(
    deadline: float = inf, within_s: float = inf, *, progress: CallerProgress | None = None
) -> tuple[LoadCaller, Sent, RequestSchedule]:
    """One that has asked the first of two steps, whose requests end with the step and its turn."""
    steps = [RequestStep(f"{name} {NUMBER}", "done", teaches=name == "second") for name in STEPS]
    requests = [PreparedRequest("http://agent/", step) for step in steps]
    turns = RequestSchedule(requests, itertools.repeat(""), deadline, within_s)
    caller = LoadCaller(turns, progress or CallerProgress())
    sent = Sent(caller)
    caller.ask()
    return caller, sent, turns


def name_steps(sent: Sent) -> list[str]:
    """The steps that were asked, in order."""
    return [one.rpartition(b"\r\n\r\n")[2].split()[0].decode() for one in sent.written]


def cut(body: bytes) -> bytes:
    """One chunk of a chunked answer."""
    return b"%x\r\n%b\r\n" % (len(body), body)


@pytest.mark.parametrize("answer", [RIGHT, CHUNKED])
async def test_each_right_answer_brings_the_next_request(answer: bytes) -> None:
    caller, sent, turns = make_caller()

    for byte in answer * 2:
        caller.data_received(bytes([byte]))

    assert name_steps(sent) == ["first", "second", "first"]
    assert len(set(sent.written)) == 3
    assert len(turns.took) == 2
    assert not caller.ended.done()


async def test_a_pass_is_carried_out_to_its_end_after_the_deadline() -> None:
    caller, sent, turns = make_caller(deadline=-inf)

    caller.data_received(RIGHT)
    assert not caller.ended.done()
    caller.data_received(RIGHT)
    caller.connection_lost(None)

    await caller.ended
    assert name_steps(sent) == ["first", "second"]
    assert len(turns.took) == 2


async def test_nothing_is_asked_on_a_line_that_is_about_to_close() -> None:
    progress = CallerProgress()
    caller, sent, turns = make_caller(progress=progress)

    caller.data_received(CLOSING)

    await caller.ended
    assert name_steps(sent) == ["first"]
    assert not turns.are_over(progress)
    assert name_steps(make_caller(progress=progress)[1]) == ["second"]


async def test_ids_are_taken_from_the_answers_that_teach_them() -> None:
    progress = CallerProgress()
    caller, _, _ = make_caller(progress=progress)

    caller.data_received(RIGHT)
    assert (progress.context, progress.task) == ("", "")
    caller.data_received(RIGHT)

    assert (progress.context, progress.task) == ("c1", "t1")


async def test_an_answer_that_took_too_long_is_a_wrong_one() -> None:
    caller, sent, turns = make_caller(within_s=0.0)

    caller.data_received(RIGHT)

    with pytest.raises(UnexpectedAnswer, match="took more than 0 s"):
        await caller.ended
    assert (name_steps(sent), turns.took) == (["first"], [])


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (RIGHT.replace(b"done", b"dome"), '200: .*"status":"dome"'),
        (RIGHT.replace(b"200 OK", b"503 Busy"), "503: "),
    ],
)
async def test_an_answer_that_is_not_as_expected_is_told(answer: bytes, told: str) -> None:
    caller, sent, turns = make_caller()

    caller.data_received(answer)

    with pytest.raises(UnexpectedAnswer, match=told):
        await caller.ended
    assert (name_steps(sent), turns.took) == (["first"], [])


async def test_a_connection_that_ends_before_its_answer_is_told() -> None:
    caller, _, _ = make_caller()

    caller.data_received(RIGHT[:-1])
    caller.connection_lost(ConnectionResetError("reset"))

    with pytest.raises(UnexpectedAnswer, match="the connection ended before its answer"):
        await caller.ended


@pytest.mark.parametrize(
    "answer",
    [
        STREAM + cut(b"data: working\n\ndata: lost\n\n") + END,
        RIGHT.replace(b"200 OK", b"503 Busy"),
    ],
)
async def test_a_stream_that_ends_without_what_is_expected_is_told(
    answer: bytes,
) -> None:
    subscriber = StreamSubscriber("done")

    subscriber.data_received(answer)

    with pytest.raises(UnexpectedAnswer, match="a stream ended without done"):
        await subscriber.ended


async def test_a_subscriber_is_content_before_its_stream_ends() -> None:
    subscriber = StreamSubscriber("task")

    subscriber.data_received(STREAM + cut(b"data: task\n"))
    subscriber.data_received(cut(b"data: more\n"))
    subscriber.connection_lost(None)

    await subscriber.ended
