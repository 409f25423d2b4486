"""A keep-alive connection with a cached request head is served like a new connection."""

from __future__ import annotations

import asyncio
import re
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit

import orjson
import pytest

from passerelle.gateway.a2a.heads import CachedHeadApp
from passerelle.gateway.auth.authenticator import Callers, KnownCallers
from passerelle.gateway.auth.keys import KeyRing
from passerelle.gateway.edges import FaceRouter
from passerelle.gateway.http.site import make_site
from passerelle.gateway.settings.model import Settings
from passerelle.runtime.common.clock import SystemIds
from passerelle.runtime.common.secret import Secret
from passerelle.runtime.observability.logs import Requests
from tests.integration.a2a.rig import OWNER

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from passerelle.core.wire.json import Json, JsonObject
    from passerelle.gateway.a2a.face import Face
    from tests.integration.a2a.rig import Rig

pytestmark = pytest.mark.anyio
WITHIN_S = 20.0
CONTENT_TYPE_NOT_SUPPORTED = -32005


@dataclass
class KeptConnection:
    """One connection. All requests on it have the same head, so their bodies have equal length."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def ask(self, body: bytes, media_type: str = "application/json") -> tuple[int, bytes]:
        """Sends the request in one piece; returns the status and the body of the response."""
        head = (
            f"POST /agents/echo HTTP/1.1\r\nHost: x\r\nContent-Type: {media_type}\r\n"
            "A2A-Version: 1.0\r\n"
            f"Authorization: Bearer {OWNER}\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        self.writer.write(head.encode() + body)
        answered = await self.reader.readuntil(b"\r\n\r\n")
        length = re.search(rb"content-length: ([0-9]+)", answered)
        status = int(answered.split()[1])
        if length is None:
            return status, await self.reader.readuntil(b"0\r\n\r\n")
        return status, await self.reader.readexactly(int(length[1]))


@asynccontextmanager
async def connect(rig: Rig) -> AsyncGenerator[KeptConnection]:
    async with asyncio.timeout(WITHIN_S):
        url = urlsplit(rig.url)
        reader, writer = await asyncio.open_connection(url.hostname, url.port)
        try:
            yield KeptConnection(reader, writer)
        finally:
            writer.close()


@pytest.fixture
def called(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The paths of requests whose head was parsed; those with a cached head bypass it."""
    paths: list[str] = []
    real = type(rig.face).__call__

    def note(self: Face, scope: Any, receive: Any, send: Any) -> Any:  # noqa: ANN401  as ASGI has it
        paths.append(scope["path"])
        return real(self, scope, receive, send)

    monkeypatch.setattr(type(rig.face), "__call__", note)
    return paths


def write(rig: Rig, text: str, rpc_id: Json, method: str = "SendMessage") -> bytes:
    params: JsonObject = rig.message(text)
    return orjson.dumps({"jsonrpc": "2.0", "id": rpc_id, "method": method, "params": params})


def read(body: bytes) -> Any:  # noqa: ANN401  an answer
    return orjson.loads(body)


async def test_each_call_is_answered_with_its_own_id_and_its_own_content(
    rig: Rig, called: list[str]
) -> None:
    async with connect(rig) as kept:
        for rpc_id, text in ((1, "one"), (2, "two"), (3, "six")):
            status, body = await kept.ask(write(rig, text, rpc_id))
            assert status == 200
            assert read(body)["id"] == rpc_id
            assert text in body.decode()
    assert len(called) == 1


async def test_calls_with_a_cached_head_are_checked_individually(
    rig: Rig, called: list[str]
) -> None:
    good = write(rig, "one", 1)
    size = len(good)
    unknown = orjson.dumps({"jsonrpc": "2.0", "id": "seven", "method": "No"})
    async with connect(rig) as kept:
        assert (await kept.ask(good))[0] == 200
        for body in (b"{", b"[]", unknown):
            _, answered = await kept.ask(body.ljust(size))
            assert "error" in read(answered)
        _, answered = await kept.ask(write(rig, "two", 2))
        assert read(answered)["id"] == 2
    assert len(called) == 1


async def test_unsupported_content_type_is_refused_each_time(rig: Rig, called: list[str]) -> None:
    async with connect(rig) as kept:
        for _ in range(3):
            _, answered = await kept.ask(write(rig, "one", 1), "text/plain")
            assert read(answered)["error"]["code"] == CONTENT_TYPE_NOT_SUPPORTED
    assert len(called) == 1
    assert rig.counted() == 0


async def test_stream_and_unary_calls_share_a_cached_head(rig: Rig, called: list[str]) -> None:
    longest = len(write(rig, "one", 1, "SendStreamingMessage"))
    async with connect(rig) as kept:
        for method in ("SendMessage", "SendStreamingMessage", "SendMessage"):
            status, body = await kept.ask(write(rig, "one", 1, method).ljust(longest))
            assert status == 200
            assert (b"data: " in body) is (method == "SendStreamingMessage")
    assert len(called) == 1


async def test_key_that_was_revoked_between_two_calls_is_refused(
    rig: Rig, called: list[str]
) -> None:
    async with connect(rig) as kept:
        assert (await kept.ask(write(rig, "one", 1)))[0] == 200
        authenticator = cast("KnownCallers", rig.face.parts.authenticator)
        authenticator.callers = Callers(KeyRing((Secret("another"),), []))
        assert (await kept.ask(write(rig, "two", 2)))[0] == 401
    assert len(called) == 1


async def test_agent_removed_between_two_calls_is_unknown(rig: Rig, called: list[str]) -> None:
    async with connect(rig) as kept:
        assert (await kept.ask(write(rig, "one", 1)))[0] == 200
        rig.peers.replace([])
        assert (await kept.ask(write(rig, "two", 2)))[0] == 404
    assert len(called) == 1


def test_head_cache_is_off_when_middleware_guards_the_face(rig: Rig) -> None:
    def wrap(rest: Any) -> FaceRouter:  # noqa: ANN401  an ASGI application
        return FaceRouter(rig.face, rest, Requests(SystemIds()))

    assert isinstance(make_site([], Settings(), wrap), CachedHeadApp)
    guarded = Settings.model_validate({"auth": "open"})
    assert not isinstance(make_site([], guarded, wrap), CachedHeadApp)
