"""TLS of the gateway: versions, plain text, and invalid certificates."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from passerelle.cli.check import run_check
from passerelle.core.errors import ConfigInvalid
from passerelle.gateway.server import Listener, Server, bind
from passerelle.gateway.server_tls import ServerTls, trust_own_certificate
from passerelle.gateway.settings.layers import Sources
from passerelle.gateway.settings.section import TlsSettings
from passerelle.runtime.common.clock import SystemClock
from tests.support.tls import CertificateAuthority, weaken

pytestmark = pytest.mark.anyio
HOST: Final = "localhost"


def certify(authority: CertificateAuthority, host: str = HOST) -> TlsSettings:
    own = authority.issue(host)
    return TlsSettings(cert=own.cert, key=own.key)


@asynccontextmanager
async def serving(tls: ServerTls) -> AsyncGenerator[Listener]:
    async def answer(request: Request) -> PlainTextResponse:
        return PlainTextResponse(request.url.scheme)

    listener, stop = bind("127.0.0.1", 0, "https"), asyncio.Event()
    server = Server(Starlette(routes=[Route("/", answer)]), listener, tls=tls.context)
    task = asyncio.create_task(server.serve(stop))
    try:
        yield listener
    finally:
        stop.set()
        await task


async def do_handshake(port: int, context: ssl.SSLContext) -> tuple[str, str]:
    """TLS version and cipher of a connection."""
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname=HOST)
    secure = writer.get_extra_info("ssl_object")
    writer.close()
    assert isinstance(secure, ssl.SSLObject)
    cipher = secure.cipher()
    assert cipher is not None
    return secure.version() or "", cipher[0]


@pytest.mark.kit("AUTH-TLS-002")
async def test_tls_1_3_is_used_and_versions_before_1_2_are_refused(tmp_path: Path) -> None:
    authority = CertificateAuthority(tmp_path)
    async with serving(ServerTls(certify(authority))) as listener:
        assert (await do_handshake(listener.port, authority.trust()))[0] == "TLSv1.3"
        older = authority.trust()
        older.maximum_version = ssl.TLSVersion.TLSv1_2
        version, cipher = await do_handshake(listener.port, older)
        assert (version, cipher[:6]) == ("TLSv1.2", "ECDHE-")
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await do_handshake(listener.port, weaken(authority.trust()))


@pytest.mark.kit("AUTH-TLS-001")
async def test_plain_text_is_refused_with_tls(tmp_path: Path) -> None:
    authority = CertificateAuthority(tmp_path)
    async with serving(ServerTls(certify(authority))) as listener:
        async with httpx.AsyncClient(verify=authority.trust()) as http:
            assert (await http.get(f"https://{HOST}:{listener.port}/")).text == "https"
        assert listener.url == f"https://127.0.0.1:{listener.port}"
        async with httpx.AsyncClient() as http:
            with pytest.raises(httpx.HTTPError):
                await http.get(f"http://{HOST}:{listener.port}/")


async def test_renewed_certificate_is_served_and_an_invalid_one_refused(
    tmp_path: Path,
) -> None:
    before, after = CertificateAuthority(tmp_path / "old"), CertificateAuthority(tmp_path / "new")
    tls = ServerTls(certify(before))
    async with serving(tls) as listener:
        assert not tls.renew()
        unreadable = tmp_path / "not.pem"
        unreadable.write_text("not a certificate")
        for bad in (
            TlsSettings(cert=unreadable),
            TlsSettings(cert=certify(after).cert, key=certify(before).key),
        ):
            with pytest.raises(ConfigInvalid, match="tls"):
                tls.renew(bad)
        await do_handshake(listener.port, before.trust())
        assert tls.renew(certify(after))
        await do_handshake(listener.port, after.trust())
        with pytest.raises(ssl.SSLError):
            await do_handshake(listener.port, before.trust())


async def test_commands_trust_only_the_certificate_of_their_configuration(tmp_path: Path) -> None:
    authority = CertificateAuthority(tmp_path)
    ours, other = certify(authority, "gateway.example"), certify(authority, "other.example")
    async with serving(ServerTls(ours)) as listener:
        await do_handshake(listener.port, trust_own_certificate(ours.cert))
        with pytest.raises(ssl.SSLError):
            await do_handshake(listener.port, trust_own_certificate(other.cert))


async def test_check_names_an_unusable_certificate(tmp_path: Path) -> None:
    (tmp_path / "passerelle.yaml").write_text("tls: {cert: nowhere.pem}\n", encoding="utf-8")
    report = await run_check(Sources({}, tmp_path), SystemClock())
    (fault,) = report.faults
    assert fault.startswith("tls: ")
    assert "nowhere.pem" in fault
