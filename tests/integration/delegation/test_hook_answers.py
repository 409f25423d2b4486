"""Responses of a hook endpoint: each invalid one is a failure with its code, and blocks no later call."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import AsyncGenerator

import pytest

from passerelle.core.facts import ErrorDetail
from passerelle.core.payloads.governance import HookPoint
from passerelle.permission_bridge.hook_terms import HookTerms
from passerelle.permission_bridge.hooks.caller import ANSWER_LIMIT_BYTES, HookAnswer, HookCaller
from tests.support.ports import find_free_port

pytestmark = pytest.mark.anyio

DENIES = b'{"verdict":"deny","reason":"no"}'
GZIPPED = gzip.compress(DENIES)
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"


def whole(body: bytes, head: bytes = HEAD) -> bytes:
    return head + b"Content-Length: %d\r\n\r\n%b" % (len(body), body)


class Endpoint:
    """Reads whole requests, and responds with the bytes that the test sets; None: no response."""

    def __init__(self) -> None:
        self.answer: bytes | None = whole(DENIES)
        self.closes = False
        self.heads: list[str] = []
        self.connections = 0
        self.url = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                self.heads.append(head)
                length = int(head.lower().partition("content-length: ")[2].split("\r\n")[0])
                await reader.readexactly(length)
                if self.answer is None:
                    await reader.read()
                    return
                writer.write(self.answer)
                await writer.drain()
                if self.closes:
                    return
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        finally:
            writer.close()


@pytest.fixture
async def endpoint(anyio_backend: str) -> AsyncGenerator[Endpoint]:
    made = Endpoint()
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    made.url = f"http://127.0.0.1:{port}/judge?v=1"
    async with server:
        yield made


@pytest.fixture
async def caller(anyio_backend: str) -> AsyncGenerator[HookCaller]:
    made = HookCaller()
    yield made
    await made.close()


def terms(endpoint: Endpoint, timeout_ms: int = 5_000, key_env: str | None = None) -> HookTerms:
    points = frozenset[HookPoint]({"before_delegate"})
    return HookTerms("remote", points, url=endpoint.url, timeout_ms=timeout_ms, key_env=key_env)


@pytest.mark.requirement("PRS-4")
@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (whole(DENIES), "deny"),
        (whole(b"{}"), "silent"),
        (b"HTTP/1.1 204 No Content\r\n\r\n", "silent"),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n20\r\n" + DENIES + b"\r\n0\r\n\r\n", "deny"),
        (whole(GZIPPED, HEAD + b"Content-Encoding: gzip\r\n"), "deny"),
        (whole(b"[]"), "bad_answer"),
        (whole(b"not json"), "bad_answer"),
        (whole(b'{"verdict":"perhaps"}'), "bad_answer"),
        (whole(b"x" * (ANSWER_LIMIT_BYTES + 1)), "bad_answer"),
        (whole(DENIES, b"HTTP/1.1 500 Oh\r\n"), "bad_answer"),
        (b"HTTP/1.1 302 Found\r\nLocation: /elsewhere\r\nContent-Length: 0\r\n\r\n", "bad_answer"),
        (b"SSH-2.0-OpenSSH\r\n\r\n", "bad_answer"),
    ],
)
async def test_response_is_parsed_or_a_failure_with_its_code(
    endpoint: Endpoint, caller: HookCaller, answer: bytes, expected: str
) -> None:
    endpoint.answer = answer
    found = await caller.call(terms(endpoint), {"message": {}})
    assert expected == (found.verdict if isinstance(found, HookAnswer) else found.code)
    endpoint.answer = whole(DENIES)
    after = await caller.call(terms(endpoint), {"message": {}})
    assert isinstance(after, HookAnswer), "the next one is not affected"


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (whole(b"[]"), "its answer should be an object"),
        (whole(b"<html>"), "its answer is not JSON: "),
        (whole(b'{"verdict":"perhaps"}'), "its answer: verdict: should be "),
        (whole(DENIES, b"HTTP/1.1 500 Oh\r\n"), "its answer: status: is 500"),
    ],
)
async def test_failure_says_what_is_wrong_with_the_response(
    endpoint: Endpoint, caller: HookCaller, answer: bytes, why: str
) -> None:
    endpoint.answer = answer
    found = await caller.call(terms(endpoint), {})
    assert isinstance(found, ErrorDetail)
    assert found.message.startswith(f"the hook remote: {why}")


async def test_timeout_and_closed_connection_are_failures(
    endpoint: Endpoint, caller: HookCaller
) -> None:
    endpoint.answer = None
    late = await caller.call(terms(endpoint, timeout_ms=100), {})
    assert isinstance(late, ErrorDetail)
    assert late.code == "timeout"
    endpoint.answer, endpoint.closes = HEAD + b"Content-Length: 500\r\n\r\n{", True
    cut = await caller.call(terms(endpoint), {})
    assert isinstance(cut, ErrorDetail)
    assert cut.code == "unreachable"


async def test_hook_that_is_down_fails_with_the_reason(caller: HookCaller) -> None:
    gone = Endpoint()
    gone.url = f"http://127.0.0.1:{find_free_port()}"
    found = await caller.call(terms(gone), {})
    assert isinstance(found, ErrorDetail)
    assert found.message == "the hook remote: the connection was refused"


async def test_calls_share_a_connection_and_send_the_key(
    endpoint: Endpoint, caller: HookCaller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOOK_KEY", "s3cret")
    for _ in range(3):
        await caller.call(terms(endpoint, key_env="HOOK_KEY"), {"message": {}})
    assert endpoint.connections == 1
    assert {head.split("\r\n")[0] for head in endpoint.heads} == {"POST /judge?v=1 HTTP/1.1"}
    assert all("Authorization: Bearer s3cret\r\n" in head for head in endpoint.heads)
