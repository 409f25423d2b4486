"""``passerelle check`` and gRPC agents as served by samples of the SDKs: plain text on a separate port."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from passerelle.cli.check import CheckReport, run_check
from passerelle.core.wire.json import JsonObject
from passerelle.gateway.settings.layers import Sources
from passerelle.runtime.common.clock import SystemClock
from tests.support.scripted_peer import ScriptedPeer
from tests.support.sdk_agent import run_sdk_agent

pytestmark = pytest.mark.anyio


async def check(folder: Path, url: str, **more: object) -> CheckReport:
    path = folder / "passerelle.yaml"
    path.write_text(json.dumps({"agents": [{"name": "dialled", "url": url, **more}]}))
    return await run_check(Sources({}, folder), SystemClock())


@pytest.mark.parametrize("kind", ["GRPC/1.0", "GRPC/0.3"])
async def test_error_for_a_refused_address_names_the_setting_that_works(
    tmp_path: Path, kind: str
) -> None:
    async with run_sdk_agent(kind) as agent:
        (fault,) = (await check(tmp_path, agent.url)).faults
        assert "set `grpc: plaintext` or `grpc: tls` for this agent" in fault
        report = await check(tmp_path, agent.url, grpc="plaintext")
        assert report.faults == ()
        version = kind.rpartition("/")[2]
        assert f"reached, a2a/{version}" in report.lines[-1]
        allowed = await check(tmp_path, agent.url, allowed_origins=[agent.dialled])
        assert allowed.faults == ()


async def test_error_for_the_wrong_transport_security_names_the_right_setting(
    tmp_path: Path,
) -> None:
    async with run_sdk_agent("GRPC/1.0") as agent:
        assert agent.dialled is not None
        (fault,) = (await check(tmp_path, agent.url, grpc="tls")).faults
        assert "is plain text, and TLS is expected: set `grpc: plaintext`" in fault
        secure = agent.dialled.replace("http:", "https:")
        (fault,) = (await check(tmp_path, agent.url, allowed_origins=[secure])).faults
        assert f"put {agent.dialled} into allowed_origins instead" in fault


async def test_address_without_a_grpc_server_is_an_error(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
    interface: JsonObject = {
        "url": address,
        "protocolBinding": "GRPC",
        "protocolVersion": "1.0",
    }
    async with ScriptedPeer("scripted") as peer:
        peer.card = {**peer.card, "supportedInterfaces": [interface]}
        (fault,) = (await check(tmp_path, peer.url, grpc="plaintext")).faults
    assert fault == (
        f"agents.dialled: no gRPC connection to {address}, neither in plain text nor over TLS"
    )


async def test_error_for_another_host_names_allowed_origins(tmp_path: Path) -> None:
    interface: JsonObject = {
        "url": "agents.example.com:50051",
        "protocolBinding": "GRPC",
        "protocolVersion": "1.0",
    }
    async with ScriptedPeer("scripted") as peer:
        peer.card = {**peer.card, "supportedInterfaces": [interface]}
        (fault,) = (await check(tmp_path, peer.url, grpc="plaintext")).faults
    assert "http://agents.example.com:50051 (plain text)" in fault
    assert "https://agents.example.com:50051 (TLS) into allowed_origins" in fault
