"""Connecting to an agent: which of its addresses is used, and what is created per connection."""

from __future__ import annotations

import asyncio
import socket
import ssl
from contextlib import ExitStack
from typing import TYPE_CHECKING, cast

import pytest
from aiohttp import web
from aiohttp.abc import AbstractResolver, ResolveResult

from passerelle.peers.connection_pool import trust_public_authorities
from passerelle.peers.request_head import close_head, write_head
from passerelle.peers.sessions import PeerSessions
from passerelle.peers.whole_answer import NotConnected
from tests.support.loopback_server import end_runner
from tests.support.tls import CertificateAuthority

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Generator
    from pathlib import Path

pytestmark = pytest.mark.anyio

GOOD, OTHER, SILENT = "127.0.0.1", "127.0.0.3", "127.0.0.2"


class Names(AbstractResolver):
    """Resolves every name to these addresses, in this order."""

    def __init__(self, *addresses: str) -> None:
        self.addresses = addresses

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        return [
            ResolveResult(
                hostname=host,
                host=one,
                port=port,
                family=family,
                proto=0,
                flags=socket.AI_NUMERICHOST,
            )
            for one in self.addresses
        ]

    async def close(self) -> None:
        """Nothing is open."""


async def _answer(_request: web.Request) -> web.Response:
    return web.Response(text="here")


async def listen(context: ssl.SSLContext | None = None) -> tuple[web.AppRunner, int]:
    app = web.Application()
    app.router.add_get("/", _answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, GOOD, 0, ssl_context=context).start()
    return runner, cast("tuple[str, int]", runner.addresses[0])[1]


@pytest.fixture
async def port(anyio_backend: str) -> AsyncGenerator[int]:
    """The port of a server at the good address."""
    runner, number = await listen()
    yield number
    await end_runner(runner)


@pytest.fixture
def silence(port: int) -> Generator[None]:
    """An address with the same port that never accepts: its connection queue is full."""
    with ExitStack() as stack:
        full = stack.enter_context(socket.socket())
        full.bind((SILENT, port))
        full.listen(0)
        for _ in range(4):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex((SILENT, port))
        yield


async def ask(sessions: PeerSessions, url: str, connect_s: float = 5.0) -> int:
    asked = close_head(write_head("GET", f"{url}/", {"Connection": "close"}), None)
    return (await sessions.pool(url, None).ask(asked, connect_s=connect_s, total_s=10)).status


@pytest.mark.usefixtures("silence")
@pytest.mark.parametrize("addresses", [(SILENT, GOOD), (SILENT, OTHER, GOOD), (GOOD, SILENT)])
async def test_silent_address_delays_the_call_but_does_not_fail_it(
    port: int, addresses: tuple[str, ...]
) -> None:
    sessions = PeerSessions(resolver=Names(*addresses))
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    assert await ask(sessions, f"http://two.example:{port}", connect_s=4) == 200
    assert loop.time() - began_s < 3
    await sessions.close()


@pytest.mark.usefixtures("silence")
async def test_host_without_a_responding_address_is_reported_as_not_connected(port: int) -> None:
    sessions = PeerSessions(resolver=Names(SILENT, OTHER))
    with pytest.raises(NotConnected):
        await ask(sessions, f"http://two.example:{port}", connect_s=0.7)
    await sessions.close()


@pytest.mark.parametrize("order", [(OTHER, GOOD), (GOOD, OTHER)])
async def test_address_with_a_certificate_for_another_name_is_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, order: tuple[str, str]
) -> None:
    authority = CertificateAuthority(tmp_path)
    _trust(monkeypatch, authority)
    runner, port = await listen(authority.serve("hook.example"))
    await web.TCPSite(runner, OTHER, port, ssl_context=authority.serve("somebody.example")).start()
    sessions = PeerSessions(resolver=Names(*order))
    assert await ask(sessions, f"https://hook.example:{port}") == 200
    with pytest.raises(NotConnected):
        await ask(sessions, f"https://nobody.example:{port}")
    await sessions.close()
    await end_runner(runner)


async def test_connections_with_the_same_trust_share_a_context(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = CertificateAuthority(tmp_path)
    _trust(monkeypatch, authority)
    runner, port = await listen(authority.serve("hook.example"))
    made: list[ssl.SSLContext] = []
    make = ssl.create_default_context

    def count() -> ssl.SSLContext:
        made.append(make())
        return made[-1]

    monkeypatch.setattr(ssl, "create_default_context", count)
    sessions = PeerSessions(resolver=Names(GOOD))
    for _ in range(3):
        assert await ask(sessions, f"https://hook.example:{port}") == 200
    assert len(made) == 1
    assert made[0].check_hostname
    await sessions.close()
    await end_runner(runner)


def _trust(monkeypatch: pytest.MonkeyPatch, authority: CertificateAuthority) -> None:
    """Trusts the authority on this machine, for this test."""
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.root))
    monkeypatch.setenv("SSL_CERT_DIR", str(authority.root.parent))
    trust_public_authorities.cache_clear()
