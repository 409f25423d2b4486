"""A connection for whole answers: every HTTP/1.1 framing, and bytes that must not be read as an answer."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncGenerator, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Protocol

import pytest

from passerelle.core.errors import Draining
from passerelle.peers.call import AgentReply
from passerelle.peers.request_head import close_head, write_head
from passerelle.peers.sessions import PeerSessions
from passerelle.peers.whole_answer import ConnectionLost, NotConnected, NotReadable, PeerConnection
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio


@dataclass
class Speaker:
    """Answers each request with the next of ``answers``; None closes the connection instead."""

    answers: list[bytes | None]
    origin: str = ""
    connections: int = 0
    heads: list[bytes] = field(default_factory=list[bytes])
    pools: PeerSessions = field(default_factory=PeerSessions)
    writers: list[asyncio.StreamWriter] = field(default_factory=list[asyncio.StreamWriter])

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.writers.append(writer)
        try:
            while self.answers:
                self.heads.append(await reader.readuntil(b"\r\n\r\n"))
                await reader.readexactly(2)
                answer = self.answers.pop(0)
                if answer is None:
                    break
                writer.write(answer)
                await writer.drain()
            if not self.answers:
                await reader.read()
        except asyncio.IncompleteReadError:
            return
        finally:
            writer.close()


class Ask(Protocol):
    """Sends a request to the speaker; the answer must be complete within ``total_s``."""

    def __call__(self, total_s: float = 2.0) -> Coroutine[None, None, AgentReply]: ...


@asynccontextmanager
async def serve_answers(*answers: bytes | None) -> AsyncGenerator[tuple[Speaker, Ask]]:
    speaker = Speaker(list(answers))
    server = await asyncio.start_server(speaker.serve, "127.0.0.1", 0)
    speaker.origin = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    sessions = speaker.pools
    asked = close_head(write_head("POST", f"{speaker.origin}/a?b=c", {"A": "b"}), b"{}")

    async def ask(total_s: float = 2.0) -> AgentReply:
        pool = sessions.pool(speaker.origin, None)
        return await pool.ask(asked, connect_s=1.0, total_s=total_s)

    try:
        yield speaker, ask
    finally:
        await sessions.close()
        server.close()


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n{\r\n1\r\n}\r\n0\r\n\r\n"
SIZED = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"
PACKED = zlib.compress(b"{}")


@pytest.mark.parametrize(
    "answer",
    [
        SIZED,
        CHUNKED,
        b"HTTP/1.1 100 Continue\r\n\r\n" + SIZED,
        b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + CHUNKED,
        b"HTTP/1.1 200 OK\r\nContent-Encoding: deflate\r\nContent-Length: %d\r\n\r\n%b"
        % (len(PACKED), PACKED),
    ],
)
async def test_answer_is_read_whole_and_the_connection_reused(answer: bytes) -> None:
    async with serve_answers(answer, answer) as (speaker, ask):
        for _ in range(2):
            whole = await ask()
            assert (whole.status, whole.raw) == (200, b"{}")
        assert speaker.connections == 1
        assert speaker.heads[0].startswith(b"POST /a?b=c HTTP/1.1\r\nHost: 127.0.0.1:")


async def test_answer_without_a_length_ends_with_its_connection() -> None:
    async with serve_answers(b"HTTP/1.0 200 OK\r\n\r\n{}", SIZED) as (speaker, ask):
        answers = asyncio.create_task(ask())
        await wait_until(lambda: speaker.heads, 10, "the request is there")
        speaker.writers[0].write_eof()
        assert (await answers).raw == b"{}"
        assert (await ask()).raw == b"{}"
        assert speaker.connections == 2


async def test_connection_closed_by_the_peer_is_not_reused() -> None:
    last = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}"
    async with serve_answers(last, SIZED) as (speaker, ask):
        assert (await ask()).raw == b"{}"
        assert (await ask()).raw == b"{}"
        assert speaker.connections == 2


async def test_unsolicited_answer_is_not_taken_for_the_next_one() -> None:
    async with serve_answers(SIZED + SIZED.replace(b"{}", b"[]"), SIZED) as (_, ask):
        assert (await ask()).raw == b"{}"
        assert (await ask()).raw == b"{}"


@pytest.mark.parametrize("more", [SIZED, SIZED[:1], SIZED[:-1]])
async def test_connection_with_extra_bytes_is_not_reused(more: bytes) -> None:
    """The extra bytes would be read as the answer to the next request."""
    async with serve_answers(SIZED + more, SIZED) as (speaker, ask):
        assert (await ask()).raw == b"{}"
        assert (await ask()).raw == b"{}"
        assert speaker.connections == 2


async def test_short_timeout_holds_on_a_connection_used_with_a_longer_one() -> None:
    async with serve_answers(SIZED, b"HTTP/1.1 200 OK\r\n") as (speaker, ask):
        assert (await ask(60.0)).raw == b"{}"
        with pytest.raises(TimeoutError):
            await ask(0.05)
        assert speaker.connections == 1


async def test_timeout_does_not_end_with_that_of_the_previous_call() -> None:
    async with serve_answers(SIZED, b"HTTP/1.1 200 OK\r\n") as (speaker, ask):
        assert (await ask(0.2)).raw == b"{}"
        asking = asyncio.create_task(ask(60.0))
        await wait_until(lambda: len(speaker.heads) == 2, 10, "the second request is there")
        done, _ = await asyncio.wait((asking,), timeout=0.3)
        assert not done
        asking.cancel()


async def test_late_answer_is_not_taken_for_the_next_one() -> None:
    async with serve_answers(SIZED, SIZED) as (speaker, ask):
        assert (await ask()).raw == b"{}"
        speaker.writers[0].write(SIZED.replace(b"{}", b"[]"))
        await speaker.writers[0].drain()
        await wait_until(speaker.writers[0].is_closing, 10, "the connection was closed at once")
        assert (await ask()).raw == b"{}"
        assert speaker.connections == 2


@pytest.mark.parametrize("first", [SIZED, None])
async def test_connection_that_dies_before_the_answer_leaves_the_outcome_open(
    first: bytes | None,
) -> None:
    """Also on a reused connection: this layer never sends a request twice."""
    answers = [None] if first is None else [first, None]
    async with serve_answers(*answers, SIZED) as (speaker, ask):
        if first is not None:
            await ask()
        with pytest.raises(ConnectionLost):
            await ask()
        assert speaker.connections == 1


async def test_answer_cut_short_leaves_the_outcome_open() -> None:
    async with serve_answers(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{}", SIZED) as (
        speaker,
        ask,
    ):
        asking = asyncio.create_task(ask())
        await wait_until(lambda: speaker.heads, 10, "the request is there")
        speaker.writers[0].close()
        with pytest.raises(ConnectionLost):
            await asking


async def test_endless_head_is_aborted() -> None:
    endless = b"HTTP/1.1 200 OK\r\n" + b"".join(
        b"X-%d: %b\r\n" % (n, b"x" * 900) for n in range(99)
    )
    async with serve_answers(endless) as (_, ask):
        with pytest.raises(NotReadable, match="64 KiB"):
            await ask()


@pytest.mark.parametrize(
    "start",
    [
        b"HTTP/1.1 200 OK\r\nX: ",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n{\r\n0\r\nX: ",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1;x=",
    ],
)
async def test_endless_header_is_aborted_before_it_fills_the_memory(start: bytes) -> None:
    """Without an end the parser would keep the header, and copy it with every chunk, until the timeout."""
    async with serve_answers(start + b"x" * 200_000) as (_, ask):
        with pytest.raises(NotReadable, match="64 KiB"):
            await ask()


async def test_large_answer_is_not_taken_for_a_long_header() -> None:
    body = b"x" * 900_000
    sized = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
    async with serve_answers(sized, sized) as (speaker, ask):
        assert [(await ask()).raw for _ in range(2)] == [body, body]
        assert speaker.connections == 1


def size(body: bytes, more: bytes = b"") -> bytes:
    return b"HTTP/1.1 200 OK\r\n%bContent-Length: %d\r\nServer: x\r\n\r\n%b" % (
        more,
        len(body),
        body,
    )


@pytest.mark.parametrize(
    "answers",
    [
        [size(b"{}"), size(b"[]"), size(b"[1]"), size(b"x" * 9), size(b"y" * 10), size(b"z" * 10)],
        [size(b"{}"), size(b"[]", b"Retry-After: 7\r\n"), size(b"{}"), size(b"[]")],
        [size(b"{}", b"Date: 1\r\n"), size(b"[]", b"Date: 2\r\n"), size(b"{}", b"Date: 2\r\n")],
        [size(b"{}"), CHUNKED, size(b"[]"), CHUNKED],
        [size(b"{}"), b"HTTP/1.1 100 Continue\r\n\r\n" + size(b"[]"), size(b"{}")],
        [size(b"{}"), size(b""), size(b"[]")],
        [SIZED.replace(b"200", b"500"), SIZED.replace(b"200", b"500"), SIZED, SIZED],
    ],
)
async def test_answers_with_different_heads_are_distinguished(answers: list[bytes]) -> None:
    """State learned from one answer must not change how the next one is read."""
    async with serve_answers(*answers) as (speaker, ask):
        for answer in answers:
            reply = await ask()
            assert reply.raw == (b"{}" if answer == CHUNKED else answer.rpartition(b"\r\n\r\n")[2])
            assert reply.status == (500 if b" 500 " in answer else 200)
            assert reply.retry_after == ("7" if b"Retry-After" in answer else None)
        assert speaker.connections == 1


async def test_known_head_with_close_ends_the_connection() -> None:
    last = size(b"{}", b"Connection: close\r\n")
    async with serve_answers(last, last, size(b"{}"), last) as (speaker, ask):
        assert [(await ask()).raw for _ in range(4)] == [b"{}"] * 4
        assert speaker.connections == 3


@pytest.mark.parametrize("more", [SIZED, SIZED[:1], b"x"])
async def test_more_than_the_answer_with_a_known_head_ends_the_connection(more: bytes) -> None:
    async with serve_answers(SIZED, SIZED + more, SIZED) as (speaker, ask):
        assert [(await ask()).raw for _ in range(3)] == [b"{}"] * 3
        assert speaker.connections == 2


class Taking:
    """A connection that is fed chunk by chunk; no socket decides the boundaries."""

    def __init__(self, limit_bytes: int = 1 << 20) -> None:
        self.connection = PeerConnection(limit_bytes, asyncio.get_running_loop())
        self.connection.connection_made(Wire())

    async def read(self, *pieces: bytes) -> bytes:
        answer = self.connection.ask(b"", asyncio.get_running_loop().time() + 5)
        for piece in pieces:
            self.connection.data_received(piece)
        return (await answer).raw


class Wire(asyncio.Transport):
    """A transport without an arrival."""

    def is_closing(self) -> bool:
        return False

    def write(self, data: object) -> None:
        """Drops the data."""

    def abort(self) -> None:
        """Notifies no reader."""


@pytest.mark.parametrize("answer", [SIZED, size(b"{}" * 60), CHUNKED])
async def test_answer_with_a_known_head_may_come_in_pieces(answer: bytes) -> None:
    """A chunk that begins with the head is not the whole answer, and a later one is no separate answer."""
    body = b"{}" if answer == CHUNKED else answer.rpartition(b"\r\n\r\n")[2]
    taking = Taking()
    for cut in range(1, len(answer)):
        assert await taking.read(answer) == body
        assert await taking.read(answer[:cut], answer[cut:]) == body
        assert (
            await taking.read(
                answer[:cut], *(answer[at : at + 1] for at in range(cut, len(answer)))
            )
            == body
        )
        assert taking.connection.keeps_alive


@pytest.mark.parametrize("more", [SIZED, b"x"])
async def test_extra_bytes_after_the_body_of_a_known_head_are_dropped(more: bytes) -> None:
    taking, answer = Taking(), size(b"[1, 2]")
    assert await taking.read(answer) == b"[1, 2]"
    assert await taking.read(answer[:-3], answer[-3:] + more) == b"[1, 2]"
    assert not taking.connection.keeps_alive


async def test_connection_that_ends_within_the_body_behind_a_known_head_leaves_the_outcome_open() -> (
    None
):
    taking, answer = Taking(), size(b"[1, 2]")
    assert await taking.read(answer) == b"[1, 2]"
    waiting = taking.connection.ask(b"", asyncio.get_running_loop().time() + 5)
    taking.connection.data_received(answer[:-3])
    taking.connection.eof_received()
    taking.connection.connection_lost(None)
    with pytest.raises(ConnectionLost):
        await waiting


async def test_body_that_ends_like_a_whole_answer_is_no_separate_answer() -> None:
    taking, inner = Taking(), size(b"[]")
    outer = size(b"x" + inner)
    assert await taking.read(inner) == b"[]"
    assert await taking.read(outer[: -len(inner)], inner) == b"x" + inner
    assert await taking.read(inner) == b"[]"


async def test_known_head_does_not_bypass_the_body_limit() -> None:
    taking = Taking(limit_bytes=300)
    assert await taking.read(size(b"x" * 300)) == b"x" * 300
    with pytest.raises(NotReadable, match="over 300 bytes"):
        await taking.read(size(b"x" * 301))


def test_header_that_would_inject_another_one_is_not_sent() -> None:
    with pytest.raises(NotConnected):
        write_head("POST", "http://a.example/", {"A": "b\r\nEvil: 1"})


async def test_connection_opened_after_the_end_sends_nothing() -> None:
    async with serve_answers(SIZED) as (speaker, ask):
        asking = asyncio.create_task(ask())
        await asyncio.sleep(0)
        speaker.pools.pool(speaker.origin, None).close()
        with pytest.raises(Draining):
            await asking
        assert speaker.heads == []
