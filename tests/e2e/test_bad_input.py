"""Bad input at every edge of a running gateway: each gets a typed error, and nothing is written."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import AsyncGenerator
from urllib.parse import urlsplit

import httpx
import pytest

from passerelle.core.wire.json import JsonObject
from passerelle.demo.processes import GatewayProcess
from tests.e2e.conftest import UNREACHABLE
from tests.support.processes import AGENT, Caller, count_stored, open_caller
from tests.support.raw_channel import RawChannel, open_channel

NO_SUCH_TASK = "task_1201m7x0p6c5ear95srfgfw8rn1r"

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
async def nothing_written(gateway: GatewayProcess) -> AsyncGenerator[None]:
    """After each test the store has the same sessions, tasks and events as before."""
    before = count_stored(gateway)
    yield
    assert count_stored(gateway) == before


@pytest.fixture
async def stranger(gateway: GatewayProcess) -> AsyncGenerator[Caller]:
    """The owner, for tests without a peer."""
    async with open_caller(gateway) as opened:
        yield opened


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"{", -32700),
        (b'{"jsonrpc":"2.0","id":1}', -32600),
        (b'{"jsonrpc":"2.0","id":1,"method":"Surprise","params":{}}', -32601),
        (b'{"jsonrpc":"2.0","id":1,"method":"SendMessage","params":{"message":{}}}', -32602),
        (
            b'{"jsonrpc":"2.0","id":1,"method":"GetTask","params":{"id":"%s"}}'
            % NO_SUCH_TASK.encode(),
            -32001,
        ),
        (b'{"jsonrpc":"2.0","id":1,"method":"GetTask","params":{"id":"nonsense"}}', -32001),
        (b'{"jsonrpc":"2.0","id":1,"method":"CancelTask","params":{"id":"nonsense"}}', -32001),
        (b'{"jsonrpc":"2.0","id":1,"method":"SubscribeToTask","params":{"id":"x"}}', -32001),
    ],
)
async def test_malformed_and_unknown_calls_get_the_error_of_the_protocol(
    stranger: Caller, body: bytes, code: int
) -> None:
    answer = await stranger.http.post(
        f"/agents/{AGENT}", content=body, headers={"Content-Type": "application/json"}
    )
    assert answer.status_code == 200
    assert answer.json()["error"]["code"] == code
    assert "result" not in answer.json()


async def test_call_without_a_protocol_version_is_refused_by_name(stranger: Caller) -> None:
    del stranger.http.headers["A2A-Version"]
    answer = await stranger.ask("SendMessage", stranger.write("hello"))
    assert answer["error"]["code"] == -32009


async def test_unreachable_peer_is_a_typed_error_that_names_no_address(stranger: Caller) -> None:
    stranger.agent = UNREACHABLE
    answer = await stranger.ask("SendMessage", stranger.write("hello"))
    assert answer["error"]["code"] < 0
    assert "127.0.0.1" not in str(answer["error"])


@pytest.mark.parametrize(
    ("path", "status", "code"),
    [
        (f"/v1/tasks/{NO_SUCH_TASK}", 404, "not_found"),
        ("/v1/approvals/act_nonsense", 404, "not_found"),
        ("/v1/approvals?limit=many", 400, "invalid_input"),
        ("/v1/nothing", 404, "not_found"),
    ],
)
async def test_control_plane_answers_bad_reads_with_a_problem(
    stranger: Caller, path: str, status: int, code: str
) -> None:
    answer = await stranger.http.get(path)
    assert (answer.status_code, answer.json()["code"]) == (status, code)
    assert answer.headers["Content-Type"].startswith("application/problem+json")


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"agent": AGENT}, "message"),
        ({"agent": AGENT, "text": "hello", "sesion": "x"}, "sesion"),
        ({"text": "hello"}, "agent"),
    ],
)
async def test_control_plane_names_the_field_that_is_wrong(
    stranger: Caller, body: JsonObject, field: str
) -> None:
    answer = await stranger.http.post("/v1/turns", json=body)
    assert answer.status_code == 400
    assert answer.json()["field"] == field


async def test_body_over_the_limit_is_refused_unread(stranger: Caller) -> None:
    answer = await stranger.http.post("/v1/turns", content=b" " * 2_000_000)
    assert (answer.status_code, answer.json()["code"]) == (413, "too_large")


async def test_stranger_reads_nothing(gateway: GatewayProcess) -> None:
    async with httpx.AsyncClient(base_url=gateway.url) as http:
        for path in ("/v1/approvals", f"/v1/tasks/{NO_SUCH_TASK}"):
            assert (await http.get(path)).status_code == 401


async def open_greeted(channel: RawChannel, gateway: GatewayProcess) -> RawChannel:
    await channel.greet(gateway.token)
    return channel


async def test_invalid_cursor_is_refused_by_name(gateway: GatewayProcess) -> None:
    async with open_channel(gateway.url) as opened:
        channel = await open_greeted(opened, gateway)
        await channel.send({"t": "sub", "s": "inbox", "c": "nonsense"})
        assert (await channel.expect("error"))["code"] == "bad_cursor"


async def test_cursor_of_another_history_is_answered_with_a_gap(gateway: GatewayProcess) -> None:
    async with open_channel(gateway.url) as opened:
        channel = await open_greeted(opened, gateway)
        await channel.send({"t": "sub", "s": "inbox", "c": "00000000.1.00000000"})
        assert (await channel.expect("gap"))["why"] == "epoch"
        assert (await channel.expect("snap"))["d"]["pending"] == []


async def test_unknown_stream_is_not_found(gateway: GatewayProcess) -> None:
    async with open_channel(gateway.url) as opened:
        channel = await open_greeted(opened, gateway)
        await channel.send({"t": "sub", "s": "session:se_12kgxjfjts05dv41w5tqg7pjatrt"})
        assert (await channel.expect("error"))["code"] == "not_found"


async def test_frame_over_the_limit_closes_permanently(gateway: GatewayProcess) -> None:
    async with open_channel(gateway.url) as opened:
        channel = await open_greeted(opened, gateway)
        await channel.send_text("x" * 70_000)
        assert await channel.read_close() in {1009, 4513}


async def test_invalid_frame_closes_permanently(gateway: GatewayProcess) -> None:
    async with open_channel(gateway.url) as opened:
        channel = await open_greeted(opened, gateway)
        await channel.send_text("{this is not JSON")
        assert await channel.read_close() == 4501


@pytest.mark.requirement("CHN-11")
async def test_turn_on_a_socket_without_a_hello_writes_nothing(gateway: GatewayProcess) -> None:
    turn: JsonObject = {
        "t": "rpc",
        "id": "1",
        "m": "submit_turn",
        "idem": "k1",
        "d": {"agent": AGENT, "parts": [{"text": "hello"}]},
    }
    async with open_channel(gateway.url) as channel:
        await channel.send(turn)
        assert 4500 <= await channel.read_close() < 5000
    async with open_channel(gateway.url) as channel:
        await channel.send({"t": "hello", "v": 1, "device": "d", "role": "ui", "token": "psr_no"})
        await channel.send(turn)
        assert await channel.read_close() == 4500


async def test_busy_port_is_reported_before_anything_is_started(gateway: GatewayProcess) -> None:
    data_dir = gateway.folder / "elsewhere"
    flags = ["--port", str(gateway.port), "--data-dir", str(data_dir)]
    done = subprocess.run(
        [sys.executable, "-m", "passerelle", "serve", *flags],
        cwd=gateway.folder,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 2
    assert f"port: {gateway.port} on 127.0.0.1 is in use" in done.stderr
    assert "set another with --port, PASSERELLE_PORT or port in the configuration" in done.stderr
    assert not (data_dir / "appendonlydir").exists()


async def test_refused_socket_and_aborted_body_are_no_server_errors(
    gateway: GatewayProcess,
) -> None:
    address = urlsplit(gateway.url).netloc.split(":")
    upgrade = (
        b"GET /v1/channel HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    )
    with socket.create_connection((address[0], int(address[1])), timeout=5) as refused:
        refused.sendall(upgrade)
        assert b" 400 " in refused.recv(4_096)
    head = f"HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {gateway.token}\r\n".encode()
    head += b"Content-Type: application/json\r\nContent-Length: 1000\r\n\r\n{"
    for path in (b"/v1/turns", f"/agents/{AGENT}".encode()):
        with socket.create_connection((address[0], int(address[1])), timeout=5) as leaving:
            leaving.sendall(b"POST " + path + b" " + head)
    async with open_caller(gateway) as caller:
        assert (await caller.http.get("/v1/agents")).status_code == 200
    assert gateway.child is not None
    lines = gateway.child.stderr_file.read_text("utf-8").splitlines()
    assert [line for line in lines if '"level":"error"' in line] == []
