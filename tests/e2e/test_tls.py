"""A gateway with a certificate: HTTP and gRPC over TLS only, its own command line, and a renewal."""

from __future__ import annotations

import signal
import socket
import ssl
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import grpc
import grpc.aio
import httpx
import pytest
import yaml
from a2a.types import a2a_pb2 as a2a
from google.protobuf.json_format import MessageToDict, ParseDict
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidMessage, InvalidStatus
from websockets.typing import Origin, Subprotocol

from passerelle.a2a_mapping.extensions import INTERFACES
from passerelle.demo.processes import Child, read_port, start
from passerelle.peers.grpc.methods import V1
from passerelle.protocol.frames import SUBPROTOCOL
from tests.support.ports import find_free_port
from tests.support.processes import AGENT
from tests.support.scripted_peer import ScriptedPeer
from tests.support.tls import CertificateAuthority, weaken
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio
HOST: Final = "localhost"


def write_config(
    folder: Path, peer: ScriptedPeer, authority: CertificateAuthority, grpc_port: int
) -> Path:
    own = authority.issue(HOST)
    config = folder / "passerelle.yaml"
    settings = {
        "port": 0,
        "auth": "open",
        "data_dir": str(folder / "data"),
        "tls": {"cert": str(own.cert), "key": str(own.key)},
        "grpc": {"port": grpc_port, "default_agent": AGENT},
        "channels": {"port": 0},
        "agents": [{"name": AGENT, "url": peer.url}],
    }
    config.write_text(yaml.safe_dump(settings), encoding="utf-8")
    return config


async def ask_grpc(channel: grpc.aio.Channel) -> str:
    message = {"messageId": "m-1", "role": "ROLE_USER", "parts": [{"text": "hello"}]}
    request = ParseDict({"message": message}, a2a.SendMessageRequest())
    metadata = (("a2a-version", "1.0"),)
    row = V1.rows["SendMessage"]
    send = channel.unary_unary(
        f"/{V1.name}/SendMessage",
        request_serializer=row.request.SerializeToString,
        response_deserializer=row.response.FromString,
    )
    answer = MessageToDict(await send(request, metadata=metadata, timeout=10))
    return str(answer["task"]["status"]["state"])


@pytest.mark.kit("AUTH-TLS-001")
@pytest.mark.kit("AUTH-TLS-002")
@pytest.mark.kit("GRPC-SVC-003")
async def test_every_port_uses_tls_only_and_serves_the_renewed_certificate(
    tmp_path: Path,
) -> None:
    authority = CertificateAuthority(tmp_path / "ca")
    async with ScriptedPeer(AGENT) as peer:
        grpc_port = find_free_port()
        config = write_config(tmp_path, peer, authority, grpc_port)
        child = start("gateway", ("passerelle", "serve", "--config", str(config)), tmp_path)
        try:
            announced = await child.read_line("passerelle ")
            assert " at https://127.0.0.1:" in announced
            port = read_port(announced)
            channels = (await child.read_line("channels at ")).split()[-1]
            ports = (port, grpc_port, urlsplit(channels).port or 0)
            await check_http(port, authority)
            await check_grpc(grpc_port, authority)
            await check_channels(channels, authority)
            check_command_line(config, port)
            check_versions(ports, authority)
            await check_renewal(child, authority, ports)
        finally:
            await child.stop()


async def check_http(port: int, authority: CertificateAuthority) -> None:
    card = f"/agents/{AGENT}/.well-known/agent-card.json"
    base = f"https://{HOST}:{port}"
    async with httpx.AsyncClient(base_url=base, verify=authority.trust()) as http:
        faces = (await http.get(card)).json()["supportedInterfaces"]
        assert {face["url"] for face in faces} == {f"{base}/agents/{AGENT}"}
        asked = await http.get(card, headers={"A2A-Extensions": INTERFACES})
        every = {face["url"] for face in asked.json()["supportedInterfaces"]}
        assert f"{base.replace('https', 'wss', 1)}/agents/{AGENT}/ws" in every
    async with httpx.AsyncClient() as http:
        with pytest.raises(httpx.HTTPError):
            await http.get(f"http://{HOST}:{port}{card}")


async def check_grpc(port: int, authority: CertificateAuthority) -> None:
    trusting = grpc.ssl_channel_credentials(authority.root.read_bytes())
    async with grpc.aio.secure_channel(f"{HOST}:{port}", trusting) as channel:
        assert await ask_grpc(channel) == "TASK_STATE_COMPLETED"
    async with grpc.aio.insecure_channel(f"{HOST}:{port}") as channel:
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await ask_grpc(channel)
    assert failed.value.code() is grpc.StatusCode.UNAVAILABLE


async def check_channels(url: str, authority: CertificateAuthority) -> None:
    assert url.startswith("wss://")
    url = url.replace("127.0.0.1", HOST)
    asked = partial(connect, subprotocols=[Subprotocol(SUBPROTOCOL)], proxy=None)
    async with asked(url, ssl=authority.trust()) as socket:
        await socket.send('{"t":"hello","v":1,"device":"phone","role":"ui"}')
        assert '"welcome"' in str(await socket.recv())
    with pytest.raises((InvalidMessage, ConnectionError)):
        async with asked(url.replace("wss", "ws", 1)):
            pytest.fail("plain text is spoken")
    page = Origin("https://elsewhere.example")
    with pytest.raises(InvalidStatus) as refused:
        async with asked(url, ssl=authority.trust(), origin=page):
            pytest.fail("a page of any origin is allowed without a token")
    assert refused.value.response.status_code == 403


def check_command_line(config: Path, port: int) -> None:
    """The command gets the real port, and trusts the certificate through the configuration."""
    settings = yaml.safe_load(config.read_text())
    config.with_name("told.yaml").write_text(yaml.safe_dump({**settings, "port": port}))

    def ask(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            (sys.executable, "-m", "passerelle", *words, "--config", "told.yaml"),
            cwd=config.parent,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )

    reported = ask("agents")
    assert AGENT in reported.stdout, reported.stderr
    # Over a channel, which is another connection: the call reports an unknown task.
    watched = ask("tasks", "watch", "task_none")
    assert "there is no task 'task_none'" in watched.stderr


def check_versions(ports: tuple[int, ...], authority: CertificateAuthority) -> None:
    """No port accepts TLS versions before 1.2 (A2A 1.0 section 7.1)."""
    outdated = weaken(authority.trust())
    for port in ports:
        with (
            socket.create_connection((HOST, port)) as plain,
            pytest.raises((ssl.SSLError, ConnectionError)),
        ):
            outdated.wrap_socket(plain, server_hostname=HOST)


async def check_renewal(
    child: Child, authority: CertificateAuthority, ports: tuple[int, ...]
) -> None:
    first = {ssl.get_server_certificate((HOST, port)) for port in ports}
    assert len(first) == 1
    renewed = authority.issue(HOST).cert.read_text()
    assert {renewed} != first
    child.process.send_signal(signal.SIGHUP)

    def shows_it() -> bool:
        return {ssl.get_server_certificate((HOST, port)) for port in ports} == {renewed}

    assert await wait_until(shows_it, 10, "every port shows the renewed certificate")
