"""Address screening at the socket: the checked address is the one that is connected to."""

from __future__ import annotations

import socket
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from ipaddress import ip_network
from pathlib import Path
from typing import cast

import pytest
from aiohttp import ClientConnectorError, web
from aiohttp.abc import AbstractResolver, ResolveResult

from passerelle.peers.sessions import PeerSessions
from passerelle.runtime.common.address_screen import REFUSED_ERRNO, AddressScreen
from tests.support.loopback_server import end_runner
from tests.support.tls import CertificateAuthority

pytestmark = pytest.mark.anyio

LOOPBACK = AddressScreen((ip_network("127.0.0.1/32"),))


@dataclass
class ScriptedNames(AbstractResolver):
    """Answers each lookup with the next list of addresses."""

    answers: list[list[str]]
    asked: int = 0

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        addresses = self.answers[min(self.asked, len(self.answers) - 1)]
        self.asked += 1
        return [
            ResolveResult(
                hostname=host,
                host=one,
                port=port,
                family=family,
                proto=0,
                flags=socket.AI_NUMERICHOST,
            )
            for one in addresses
        ]

    async def close(self) -> None:
        """Nothing is open."""


@dataclass
class Receiver:
    """A loopback server that records the ``Host`` of each request."""

    port: int = 0
    hosts: list[str] = field(default_factory=list[str])

    async def answer(self, request: web.Request) -> web.Response:
        self.hosts.append(request.host)
        if request.path == "/moved":
            return web.Response(status=307, headers={"Location": f"http://127.0.0.1:{self.port}/"})
        return web.Response(text="here")


@pytest.fixture
async def receiver(anyio_backend: str) -> AsyncGenerator[Receiver, None]:
    made = Receiver()
    app = web.Application()
    app.router.add_get("/{tail:.*}", made.answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    made.port = cast("tuple[str, int]", runner.addresses[0])[1]
    yield made
    await end_runner(runner)


async def fetch(sessions: PeerSessions, url: str) -> int:
    async with sessions.open(url).get(url, allow_redirects=False) as response:
        return response.status


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::ffff:127.0.0.1]"])
async def test_loopback_is_refused_however_it_is_written(receiver: Receiver, host: str) -> None:
    sessions = PeerSessions(screen=AddressScreen())
    with pytest.raises(ClientConnectorError) as caught:
        await fetch(sessions, f"http://{host}:{receiver.port}/")
    assert caught.value.os_error.errno == REFUSED_ERRNO
    assert "loopback" in str(caught.value.os_error)
    assert receiver.hosts == []
    await sessions.close()


async def test_allowed_network_is_reached_and_unscreened_sessions_reach_everything(
    receiver: Receiver,
) -> None:
    url = f"http://127.0.0.1:{receiver.port}/"
    for sessions in (PeerSessions(screen=LOOPBACK), PeerSessions()):
        assert await fetch(sessions, url) == 200
        await sessions.close()


async def test_name_is_resolved_once_and_keeps_its_place_in_the_host_header(
    receiver: Receiver,
) -> None:
    names = ScriptedNames([["127.0.0.1"], ["10.0.0.1"]])
    sessions = PeerSessions(screen=LOOPBACK, resolver=names)
    host = f"hook.example:{receiver.port}"
    assert await fetch(sessions, f"http://{host}/") == 200
    assert receiver.hosts == [host]
    assert names.asked == 1
    await sessions.close()


async def test_name_with_a_changed_address_is_checked_again(
    receiver: Receiver,
) -> None:
    names = ScriptedNames([["192.0.2.1"], ["127.0.0.1"]])
    for _ in range(2):
        sessions = PeerSessions(screen=AddressScreen(), resolver=names)
        with pytest.raises(ClientConnectorError):
            await fetch(sessions, f"http://hook.example:{receiver.port}/")
        await sessions.close()
    assert names.asked == 2
    assert receiver.hosts == []


async def test_of_several_addresses_only_the_allowed_one_is_connected_to(
    receiver: Receiver,
) -> None:
    names = ScriptedNames([["10.0.0.1", "127.0.0.1", "169.254.169.254"]])
    sessions = PeerSessions(screen=LOOPBACK, resolver=names)
    assert await fetch(sessions, f"http://hook.example:{receiver.port}/") == 200
    await sessions.close()


async def test_redirect_to_a_refused_address_leads_nowhere(receiver: Receiver) -> None:
    names = ScriptedNames([["127.0.0.2"]])
    sessions = PeerSessions(screen=AddressScreen((ip_network("127.0.0.2/32"),)), resolver=names)
    with socket.create_server(("127.0.0.2", 0)) as probe:
        port = probe.getsockname()[1]
    app = web.Application()
    app.router.add_get("/moved", receiver.answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.2", port).start()
    url = f"http://hook.example:{port}/moved"
    assert await fetch(sessions, url) == 307
    with pytest.raises(ClientConnectorError):
        async with sessions.open(url).get(url):
            pytest.fail("the redirect was followed to loopback")
    assert receiver.hosts == [f"hook.example:{port}"] * 2
    await sessions.close()
    await end_runner(runner)


@pytest.mark.kit("AUTH-SERVER-001")
async def test_tls_is_checked_against_the_name_and_not_the_address(
    receiver: Receiver, tmp_path: Path
) -> None:
    authority = CertificateAuthority(tmp_path)
    app = web.Application()
    app.router.add_get("/", receiver.answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=authority.serve("hook.example"))
    await site.start()
    port = cast("tuple[str, int]", runner.addresses[0])[1]
    sessions = PeerSessions(screen=LOOPBACK, resolver=ScriptedNames([["127.0.0.1"]]))
    for host, reached in (("hook.example", True), ("other.example", False)):
        url = f"https://{host}:{port}/"
        try:
            async with sessions.open(url).get(url, ssl=authority.trust()) as response:
                assert reached, "a certificate for another name was taken"
                assert response.status == 200
        except ClientConnectorError:
            assert not reached, "the certificate names the host"
    assert receiver.hosts == [f"hook.example:{port}"]
    await sessions.close()
    await end_runner(runner)
