"""HTTP requests of commands: the bytes sent, and the errors for failed requests."""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from passerelle.cli.control_client import ControlClient
from passerelle.cli.http_request import HttpAnswer, NoAnswer, UnsendableRequest, ask, split_address
from passerelle.cli.verbs.health import ask_health
from passerelle.core.errors import InvalidInput, RemoteError
from passerelle.core.wire.json import JsonObject
from passerelle.runtime.common.secret import Secret
from tests.support.ports import find_free_port
from tests.support.tls import CertificateAuthority

pytestmark = pytest.mark.anyio

ANSWER = b'HTTP/1.1 200 OK\r\nContent-Length: 12\r\nConnection: close\r\n\r\n{"ok": true}'


@asynccontextmanager
async def answering(
    answer: bytes, tls: ssl.SSLContext | None = None
) -> AsyncGenerator[tuple[str, list[bytes]]]:
    """Sends the same bytes to each client; yields its URL and the received requests."""
    received: list[bytes] = []
    writers: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(
            (one for one in head.split(b"\r\n") if one.startswith(b"Content-Length")), b""
        )
        received.append(head + await reader.readexactly(int(length.partition(b":")[2] or b"0")))
        writer.write(answer)
        await writer.drain()
        if answer:
            writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls) as server:
        port = server.sockets[0].getsockname()[1]
        yield f"{'https' if tls else 'http'}://localhost:{port}", received
        for writer in writers:
            writer.close()


async def get(url: str, timeout_s: float = 20.0, tls: ssl.SSLContext | None = None) -> HttpAnswer:
    return await asyncio.to_thread(ask, "GET", url, headers={}, timeout_s=timeout_s, tls=tls)


async def test_parameters_and_path_are_encoded() -> None:
    async with answering(ANSWER) as (url, received):
        answer = await asyncio.to_thread(
            ask,
            "GET",
            f"{url}/base/a%2Fb/ü",
            headers={"Authorization": "Bearer t"},
            params={"many": ["a b", "c&d"], "yes": True, "no": None, "count": 5},
            timeout_s=20.0,
        )
    assert answer == HttpAnswer("localhost", 200, b'{"ok": true}')
    assert answer.read_object() == {"ok": True}
    first, *headers = received[0].decode("ascii").split("\r\n")
    assert first == ("GET /base/a%2Fb/%C3%BC?many=a%20b&many=c%26d&yes=true&no=&count=5 HTTP/1.1")
    assert "Authorization: Bearer t" in headers


async def test_body_is_json_in_utf_8() -> None:
    body: JsonObject = {"text": "où", "none": None}
    async with answering(ANSWER) as (url, received):
        await asyncio.to_thread(ask, "POST", url, headers={}, body=body, timeout_s=20.0)
    head, _, content = received[0].partition(b"\r\n\r\n")
    assert head.startswith(b"POST / HTTP/1.1")
    assert b"Content-Type: application/json" in head
    assert content == '{"text":"où","none":null}'.encode()


@pytest.mark.parametrize(
    ("answer", "status", "found"),
    [
        (b"HTTP/1.1 302 Found\r\nLocation: /x\r\nContent-Length: 0\r\n\r\n", 302, None),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]", 200, None),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n\xff", 200, None),
        (b"HTTP/1.1 404 No\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n", 404, {}),
    ],
)
async def test_response_is_returned_as_received_and_redirects_are_not_followed(
    answer: bytes, status: int, found: JsonObject | None
) -> None:
    async with answering(answer) as (url, received):
        reply = await get(url)
    assert (reply.status, reply.is_success, reply.read_object()) == (status, status == 200, found)
    assert len(received) == 1


@pytest.mark.parametrize("early", [b"100 Continue", b"102 Processing", b"103 Early Hints"])
async def test_informational_responses_are_skipped(early: bytes) -> None:
    hint = b"HTTP/1.1 " + early + b"\r\nLink: </style.css>\r\n\r\n"
    async with answering(hint * 3 + ANSWER) as (url, _):
        reply = await get(url)
    assert (reply.status, reply.read_object()) == (200, {"ok": True})


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (
            b"HTTP/1.1 301 Moved\r\nLocation: https://a.example/\x1b[2Jx\r\nContent-Length: 2\r\n\r\n{}",
            "is no gateway: it responded with HTTP 301, redirect to https://a.example/\\u{1b}[2Jx",
        ),
        (
            b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 6\r\n\r\n<html>",
            "is no gateway: it responded with HTTP 502",
        ),
    ],
)
async def test_error_for_the_response_of_a_proxy_names_status_and_redirect(
    answer: bytes, words: str
) -> None:
    async with answering(answer) as (url, _):
        client = ControlClient(url, None)
        with pytest.raises(RemoteError, match=re.escape(words)):
            await asyncio.to_thread(client.get, "/v1/tasks")
        with pytest.raises(RemoteError, match=re.escape(words)):
            await asyncio.to_thread(ask_health, f"{url}/readyz", 20.0, None)


@pytest.mark.parametrize("nested", [b"[", b'{"a":'])
async def test_response_nested_too_deeply_is_no_object(nested: bytes) -> None:
    content = nested * 100_000
    head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(content)}\r\n\r\n".encode()
    async with answering(head + content) as (url, _):
        assert (await get(url)).read_object() is None


async def test_response_sent_before_the_whole_body_is_read() -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\n\r\n{}")
        await writer.drain()
        # Unread bytes make the system reset the connection; the response arrives before.
        writer.close()

    body: JsonObject = {"text": "x" * 30_000_000}
    async with await asyncio.start_server(refuse, "127.0.0.1", 0, limit=1024) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        reply = await asyncio.to_thread(ask, "POST", url, headers={}, body=body, timeout_s=20.0)
    assert (reply.status, reply.read_object()) == (413, {})


async def test_response_timeout_is_late_and_a_cut_response_is_not() -> None:
    async with answering(b"") as (url, _):
        with pytest.raises(NoAnswer) as silent:
            await get(url, timeout_s=0.2)
    assert silent.value.is_late
    half = b"HTTP/1.1 200 OK\r\nContent-Length: 20\r\n\r\n{"
    async with answering(half) as (url, _):
        with pytest.raises(NoAnswer, match="without sending complete message body") as cut:
            await get(url)
    assert not cut.value.is_late


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("ftp://127.0.0.1", "https:// or http://"),
        ("127.0.0.1:8080", "no host"),
        ("http://:80", "no host"),
        ("http://127.0.0.1:port", "port"),
        ("http://[::1", "IPv6"),
        ("http://127.0.0.1:99999", "0-65535"),
        ("http://nowhere.invalid", "^[^\\[]*not known"),
        ("http://.example:80", "is not a valid name"),
        (f"http://{'a' * 70}.example", "is not a valid name"),
        ("http://ann:secret@127.0.0.1:1", "must not have a user"),
        ("http://127.0.0.1:1/?a=b", "must not have a user"),
        ("http://127.0.0.1:1/#a", "must not have a user"),
    ],
)
async def test_invalid_address_is_refused_with_its_reason(url: str, reason: str) -> None:
    with pytest.raises(NoAnswer, match=reason):
        await get(url)


async def test_refused_connection_has_the_error_of_the_system() -> None:
    with pytest.raises(NoAnswer, match=r"^Connection refused$"):
        await get(f"http://127.0.0.1:{find_free_port()}")


@pytest.mark.parametrize("token", ["psr_a\nb", "psr_\u2603"])
async def test_token_invalid_in_a_header_is_not_printed(token: str) -> None:
    async with answering(ANSWER) as (url, received):
        with pytest.raises(NoAnswer) as refused:
            await asyncio.to_thread(
                ask, "GET", url, headers={"Authorization": f"Bearer {token}"}, timeout_s=20.0
            )
    assert "psr_" not in refused.value.reason
    assert received == []


async def test_error_for_an_oversized_header_does_not_name_the_token() -> None:
    answer = b"HTTP/1.1 200 OK\r\nX: " + b"a" * 300_000 + b"\r\n\r\n"
    async with answering(answer) as (url, _):
        with pytest.raises(NoAnswer, match="Receive buffer too long") as refused:
            await get(url)
    assert "token" not in refused.value.reason


@pytest.mark.parametrize("key", ["a\nb", "\u2603", "a\x00"])
async def test_error_for_a_key_invalid_in_a_header_names_the_key(key: str) -> None:
    async with answering(ANSWER) as (url, received):
        client = ControlClient(url, Secret("psr_x"))
        with pytest.raises(InvalidInput, match=r"^key: has characters"):
            await asyncio.to_thread(client.send, "POST", "/v1/tasks", {}, key)
        away = ControlClient(url.replace("//", "//ann:secret@"), None)
        with pytest.raises(InvalidInput, match=r"^url: ") as reply:
            await asyncio.to_thread(away.get, "/v1/tasks")
    assert "secret" not in reply.value.message
    assert received == []


@pytest.mark.parametrize("url", ["http://[::1", "https://ann:secret@h", "ftp://h", "http://h/?a"])
async def test_invalid_address_is_refused_before_a_request(url: str) -> None:
    with pytest.raises(UnsendableRequest):
        split_address(url)


async def test_certificate_is_verified(tmp_path: Path) -> None:
    authority = CertificateAuthority(tmp_path)
    async with answering(ANSWER, authority.serve("localhost")) as (url, _):
        with pytest.raises(NoAnswer, match="CERTIFICATE_VERIFY_FAILED"):
            await get(url)
        assert (await get(url, tls=authority.trust())).is_success
