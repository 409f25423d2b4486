"""Pipelines on one connection, against a server with scripted answers."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from redis.exceptions import ConnectionError as ConnectionBroken
from redis.exceptions import InvalidResponse, NoScriptError, RedisError

from passerelle.store import pipelined_connection as module
from passerelle.store.connection import RespValue, pack, read_url
from passerelle.store.pipelined_connection import PipelinedConnection
from tests.support.engine import Server
from tests.support.tls import CertificateAuthority
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio
PING = pack("PING")


class Speaker:
    """Answers OK to the handshake, each scripted answer to one pipeline, and closes after the last."""

    def __init__(self, *answers: bytes) -> None:
        self._answers = list(answers)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while self._answers and (asked := await reader.read(4096)):
            writer.write(self._answers.pop(0) if PING in asked else b"+OK\r\n" * asked.count(b"*"))
        await writer.drain()
        writer.close()


@asynccontextmanager
async def talking(folder: Path, *answers: bytes) -> AsyncGenerator[PipelinedConnection]:
    """An open connection to a speaker."""
    async with await asyncio.start_unix_server(Speaker(*answers).serve, folder / "s"):
        connection = PipelinedConnection(read_url(f"unix://{folder / 's'}"))
        await connection.open()
        try:
            yield connection
        finally:
            await connection.close()


async def ask(connection: PipelinedConnection, count: int = 1) -> list[RespValue | RedisError]:
    replies: list[RespValue | RedisError] = []
    await connection.exchange(PING * count, count, replies)
    return replies


async def test_replies_come_in_order_and_errors_are_values_among_them(tmp_path: Path) -> None:
    answer = b"+PONG\r\n-NOSCRIPT gone\r\n*2\r\n:1\r\n$1\r\nx\r\n"
    async with talking(tmp_path, answer, b"$-1\r\n", b"") as connection:
        one, other, last = await ask(connection, 3)
        assert await ask(connection) == [None]
    assert (one, last) == (b"PONG", [1, b"x"])
    assert isinstance(other, NoScriptError)


async def test_data_beyond_the_socket_buffer_arrives_whole(engine_server: Server) -> None:
    connection = PipelinedConnection(read_url(engine_server.url))
    await connection.open()
    texts = [bytes([letter]) * 5_000_000 for letter in b"abc"]
    for text in texts:
        replies: list[RespValue | RedisError] = []
        await connection.exchange(pack("ECHO", text) + pack("ECHO", b"behind it"), 2, replies)
        assert replies == [text, b"behind it"]
    await connection.close()


async def test_replies_received_before_the_end_are_kept(tmp_path: Path) -> None:
    replies: list[RespValue | RedisError] = []
    async with talking(tmp_path, b":1\r\n:2\r\n$5\r\nbro") as connection:
        with pytest.raises(ConnectionBroken, match="closed"):
            await connection.exchange(PING * 3, 3, replies)
        assert not connection.is_open
    assert replies == [1, 2]


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        pytest.param(b"-NOAUTH log in\r\n", ConnectionBroken, id="an error of the connection"),
        pytest.param(b"?what\r\n", InvalidResponse, id="what is no reply"),
    ],
)
async def test_broken_connection_is_not_open(
    tmp_path: Path, answer: bytes, error: type[Exception]
) -> None:
    async with talking(tmp_path, answer, b"") as connection:
        for _ in range(2):
            with pytest.raises(error):
                await ask(connection)
            assert not connection.is_open


@pytest.mark.parametrize("late", [b":1\r\n:2\r\n", b":1\r\n"])
async def test_unsolicited_reply_or_end_closes_the_connection(tmp_path: Path, late: bytes) -> None:
    async with talking(tmp_path, late) as connection:
        assert await ask(connection) == [1]
        await wait_until(lambda: not connection.is_open, 15, "the connection is given up")


async def test_each_pipeline_has_the_full_timeout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ANSWER_S", 0.4)
    now = asyncio.get_running_loop().time
    async with talking(tmp_path, b":1\r\n", b"", b"") as connection:
        begun_s = now()
        assert await ask(connection) == [1]
        await wait_until(lambda: now() - begun_s > 0.2, 15, "the watch over the first is half over")
        begun_s = now()
        with pytest.raises(TimeoutError):
            await ask(connection)
        # The clock of a loop may be that of the start of its iteration.
        assert now() - begun_s > 0.39
        assert not connection.is_open


async def test_idle_connection_is_checked_before_a_write(tmp_path: Path) -> None:
    async with talking(tmp_path, b"+PONG\r\n", b":1\r\n", b"") as connection:
        setattr(connection, "_used_s", -100.0)  # noqa: B010  private to its module
        with pytest.raises(ConnectionBroken):
            await ask(connection)
        assert connection.is_open
        await connection.make_live()
        assert await ask(connection) == [1]


async def test_tls_connection_is_reopened_after_an_end(tmp_path: Path) -> None:
    authority = CertificateAuthority(tmp_path / "tls")
    own = authority.issue("localhost")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(own.cert, own.key)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await Speaker(b":1\r\n").serve(reader, writer)

    async with await asyncio.start_server(serve, "localhost", 0, ssl=context) as server:
        port = server.sockets[0].getsockname()[1]
        connection = PipelinedConnection(
            read_url(f"rediss://localhost:{port}?ssl_ca_certs={authority.root}")
        )
        for _ in range(2):
            await connection.open()
            assert await ask(connection) == [1]
            await wait_until(lambda: not connection.is_open, 15, "the connection is given up")
        await connection.close()
