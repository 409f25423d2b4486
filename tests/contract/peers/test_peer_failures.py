"""Outcomes when the peer or its connection fails: nothing raises, and an unknown outcome is never hidden."""

from __future__ import annotations

import asyncio
import gzip
import socket
from collections.abc import Callable

import pytest

from passerelle.core.peer import (
    Answered,
    Closed,
    Malformed,
    Peer,
    RefusedByPeer,
    Unknown,
    Unreached,
)
from passerelle.core.wire.json import JsonObject
from passerelle.core.wire.trace import read_trace
from passerelle.peers.assembly import Connections, make_peer
from passerelle.peers.config import PeerConfig
from passerelle.peers.credential import Bearer
from passerelle.peers.sessions import PeerSessions
from passerelle.runtime.common.carried import TRACE
from passerelle.runtime.common.secret import Secret
from tests.contract.peers.conftest import Clients, HandClock
from tests.contract.peers.test_peer_suite import read_all, say, state_of, task_of, texts_of
from tests.support.scripted_behaviours import BIG_ARTIFACT_CHARS, BIG_INTEGER
from tests.support.scripted_peer import ScriptedPeer, ScriptedResponse
from tests.support.scripted_tasks import Turn
from tests.support.tcp_proxy import fault_proxy
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio

Connect = Callable[..., Peer]


async def test_refused_connection_is_unreached(clients: Clients) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    peer = clients.connect(PeerConfig("gone", f"http://127.0.0.1:{port}"))
    assert isinstance(await peer.send(say("hello")), Unreached)
    assert [type(outcome) for outcome in await read_all(peer.stream(say("hello")))] == [Unreached]


async def test_peer_that_stopped_after_its_card_was_read_is_unreached(
    scripted: ScriptedPeer, connect: Connect
) -> None:
    peer = connect()
    await peer.describe()
    await scripted.stop()
    for outcome in (await peer.send(say("hello")), *(await read_all(peer.stream(say("hello"))))):
        assert isinstance(outcome, Unreached)
        assert outcome.reason == "the connection was refused"
    await scripted.start()
    assert isinstance(await peer.send(say("hello")), Answered)


async def test_name_that_does_not_resolve_is_unreached(clients: Clients) -> None:
    peer = clients.connect(PeerConfig("nowhere", "http://no-such-host.invalid"))
    assert isinstance(await peer.send(say("hello")), Unreached)


async def test_tls_towards_a_peer_without_it_is_unreached(
    scripted: ScriptedPeer, clients: Clients
) -> None:
    peer = clients.connect(PeerConfig("plain", scripted.url.replace("http:", "https:")))
    assert isinstance(await peer.send(say("hello")), Unreached)
    assert scripted.requests == []


async def test_listener_that_never_accepts_is_unreached_in_time(clients: Clients) -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener:
        address = listener.getsockname()
        with socket.create_connection(address), socket.socket() as second:
            second.setblocking(False)
            second.connect_ex(address)
            url = f"http://127.0.0.1:{address[1]}"
            peer = clients.connect(PeerConfig("full", url, connect_timeout_s=0.2))
            assert isinstance(await peer.send(say("hello")), Unreached)


async def test_short_budget_leaves_a_failure_to_connect_recognisable(
    scripted: ScriptedPeer, clients: Clients
) -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener:
        address = listener.getsockname()
        with socket.create_connection(address), socket.socket() as second:
            second.setblocking(False)
            second.connect_ex(address)
            url = f"http://127.0.0.1:{address[1]}"
            interface: JsonObject = {
                "url": url,
                "protocolBinding": "JSONRPC",
                "protocolVersion": "1.0",
            }
            scripted.card = {**scripted.card, "supportedInterfaces": [interface]}
            peer = clients.connect(
                PeerConfig("full", scripted.url, allowed_origins=frozenset({url}))
            )
            assert isinstance(await peer.send(say("hello"), timeout_s=0.4), Unreached)


async def test_reset_after_the_request_is_unknown(scripted: ScriptedPeer, connect: Connect) -> None:
    peer = connect()
    assert isinstance(await peer.send(say("drop-first")), Unknown)
    assert scripted.count("SendMessage") == 1


async def test_reply_lost_on_the_way_is_unknown_and_nothing_is_sent_twice(
    scripted: ScriptedPeer, clients: Clients
) -> None:
    async with fault_proxy(scripted.url.removeprefix("http://")) as proxy:
        card = scripted.card
        url = f"http://127.0.0.1:{proxy.port}"
        interface: JsonObject = {
            "url": url,
            "protocolBinding": "JSONRPC",
            "protocolVersion": "1.0",
        }
        scripted.card = {**card, "supportedInterfaces": [interface]}
        peer = clients.connect(PeerConfig("cut", url))
        await peer.describe()
        proxy.swallow = 1
        assert isinstance(await peer.send(say("hello")), Unknown)
        assert scripted.texts == ["hello"]
        await clients.close()


async def test_no_answer_in_time_is_unknown(scripted: ScriptedPeer, connect: Connect) -> None:
    outcome = await connect().send(say("mute"), timeout_s=0.6)
    assert outcome == Unknown("no answer in time")
    assert scripted.count("SendMessage") == 1


async def test_silent_stream_is_unknown_after_its_idle_time(connect: Connect) -> None:
    *frames, last = await read_all(connect(idle_timeout_s=0.2).stream(say("silent")))
    assert [type(frame) for frame in frames] == [Answered]
    assert isinstance(last, Unknown)


async def test_stream_beyond_the_total_timeout_is_unknown(connect: Connect) -> None:
    *_, last = await read_all(connect(total_timeout_s=0.3).stream(say("silent")))
    assert isinstance(last, Unknown)


async def test_cut_stream_is_unknown(connect: Connect) -> None:
    *frames, last = await read_all(connect().stream(say("drop")))
    assert [type(frame) for frame in frames] == [Answered, Answered]
    assert isinstance(last, Unknown)


@pytest.mark.parametrize("ending", ["drop", "end"])
async def test_stream_cut_inside_an_event_is_unknown_and_gives_no_half_frame(
    scripted: ScriptedPeer, connect: Connect, ending: str
) -> None:
    async def story(turn: Turn) -> None:
        await turn.status("WORKING")
        await turn.write(b'data: {"jsonrpc": "2.0", "id": 1, "res')
        if ending == "drop":
            await turn.drop()

    scripted.next(story)
    *frames, last = await read_all(connect().stream(say("go")))
    assert [type(frame) for frame in frames] == [Answered, Answered]
    assert isinstance(last, Unknown)


async def test_stream_closed_without_a_final_state_is_reported_as_closed_only(
    connect: Connect,
) -> None:
    *frames, last = await read_all(connect().stream(say("close")))
    assert len(frames) == 2
    assert last == Closed()


async def test_malformed_frame_is_reported_with_its_bytes(connect: Connect) -> None:
    *frames, last = await read_all(connect().stream(say("malformed")))
    assert [type(frame) for frame in frames] == [Answered, Answered]
    assert isinstance(last, Malformed)
    assert last.raw == b"{this is not JSON"


async def test_error_inside_a_stream_is_refused(scripted: ScriptedPeer, connect: Connect) -> None:
    async def story(turn: Turn) -> None:
        await turn.status("WORKING")
        await turn.refuse(-32603, "broke down")

    scripted.next(story)
    *_, last = await read_all(connect().stream(say("go")))
    assert last == RefusedByPeer(-32603, "broke down")


async def test_error_before_the_first_event_is_refused(connect: Connect) -> None:
    (refused,) = await read_all(connect().stream(say("refuse")))
    assert isinstance(refused, RefusedByPeer)
    assert refused.code == -32602


@pytest.mark.parametrize("status", [301, 302, 307, 308])
async def test_redirect_is_refused_and_not_followed(
    scripted: ScriptedPeer, connect: Connect, status: int
) -> None:
    scripted.answer_next(ScriptedResponse(status, headers={"Location": scripted.url + "/"}))
    outcome = await connect().send(say("hello"))
    assert isinstance(outcome, RefusedByPeer)
    assert outcome.http_status == status
    assert scripted.count("SendMessage") == 1


async def test_busy_peer_is_refused_with_its_wait(scripted: ScriptedPeer, connect: Connect) -> None:
    scripted.answer_next(ScriptedResponse(503, headers={"Retry-After": "7"}))
    outcome = await connect().send(say("hello"))
    assert outcome == RefusedByPeer(-32603, "HTTP 503", 503, 7, is_bare=True)


async def test_error_of_an_intermediary_is_unknown(
    scripted: ScriptedPeer, connect: Connect
) -> None:
    scripted.answer_next(ScriptedResponse(502, b"<h1>Bad Gateway</h1>"))
    assert await connect().send(say("hello")) == Unknown("HTTP 502", 502)


async def test_agent_that_fails_on_a_message_has_received_it(
    scripted: ScriptedPeer, connect: Connect
) -> None:
    """A query with such an answer may be repeated; the answer means nothing for its task."""
    broken = ScriptedResponse(500, b"<h1>Internal Server Error</h1>")
    scripted.answer_next(broken, broken, broken)
    assert await connect().send(say("hello")) == RefusedByPeer(
        -32603, "HTTP 500", 500, is_bare=True
    )
    (streamed,) = await read_all(connect().stream(say("hello")))
    assert streamed == RefusedByPeer(-32603, "HTTP 500", 500, is_bare=True)
    assert await connect().get("task-1") == Unknown("HTTP 500", 500)


async def test_wrong_token_is_refused_with_401_and_the_right_one_is_sent(
    scripted: ScriptedPeer, clients: Clients
) -> None:
    scripted.bearer = "right"
    for token, kind in (("wrong", RefusedByPeer), ("right", Answered)):
        peer = clients.connect(PeerConfig("locked", scripted.url, auth=Bearer(Secret(token))))
        assert isinstance(await peer.send(say("hello")), kind)


async def test_web_page_in_place_of_an_answer_is_malformed(
    scripted: ScriptedPeer, connect: Connect
) -> None:
    page = b"<html>" + b"x" * 10_000
    scripted.answer_next(ScriptedResponse(200, page, {"Content-Type": "text/html"}))
    outcome = await connect().send(say("hello"))
    assert isinstance(outcome, Malformed)
    assert outcome.raw == page[:4096]


async def test_body_over_24_mib_is_malformed(scripted: ScriptedPeer, connect: Connect) -> None:
    scripted.answer_next(ScriptedResponse(200, b"[" + b" " * (24 * 1024 * 1024) + b"]"))
    outcome = await connect().send(say("hello"))
    assert isinstance(outcome, Malformed)
    assert "25165824 bytes" in outcome.reason


async def test_decompression_bomb_is_malformed(scripted: ScriptedPeer, connect: Connect) -> None:
    bomb = gzip.compress(b" " * (64 * 1024 * 1024), compresslevel=9)
    assert len(bomb) < 100_000
    scripted.answer_next(ScriptedResponse(200, bomb, {"Content-Encoding": "gzip"}))
    outcome = await connect().send(say("hello"))
    assert isinstance(outcome, Malformed)
    assert len(outcome.raw) <= 4096


async def test_body_that_does_not_unpack_is_malformed(
    scripted: ScriptedPeer, connect: Connect
) -> None:
    scripted.answer_next(ScriptedResponse(200, b"not gzip at all", {"Content-Encoding": "gzip"}))
    assert isinstance(await connect().send(say("hello")), Malformed)


async def test_event_over_24_mib_is_malformed_and_ends_the_stream(connect: Connect) -> None:
    *frames, last = await read_all(connect().stream(say("huge-status")))
    assert [type(frame) for frame in frames] == [Answered]
    assert isinstance(last, Malformed)
    assert "25165824 bytes" in last.reason


async def test_header_block_over_64_kib_is_malformed(
    scripted: ScriptedPeer, connect: Connect
) -> None:
    headers = {f"X-Padding-{number}": "x" * 7000 for number in range(10)}
    scripted.answer_next(ScriptedResponse(200, b"{}", headers))
    assert await connect().send(say("hello")) == Malformed("a header block over 64 KiB", b"")


async def test_answer_that_is_not_http_is_malformed(clients: Clients) -> None:
    async def babble(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"220 ready when you are\r\n\r\n")
        await writer.drain()
        writer.close()

    async with ScriptedPeer("front") as front:
        server = await asyncio.start_server(babble, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        babbler = f"http://127.0.0.1:{port}"
        interface: JsonObject = {
            "url": babbler,
            "protocolBinding": "JSONRPC",
            "protocolVersion": "1.0",
        }
        front.card = {**front.card, "supportedInterfaces": [interface]}
        peer = clients.connect(
            PeerConfig("babbler", front.url, allowed_origins=frozenset({babbler}))
        )
        assert isinstance(await peer.send(say("hello")), Malformed)
        server.close()
        await server.wait_closed()


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"[]",
        b'{"jsonrpc": "2.0", "id": 999, "result": {}}',
        b'{"jsonrpc": "2.0", "id": 1, "result": 7}',
        b'{"jsonrpc": "2.0", "id": 1, "error": {"code": "x"}}',
        b'{"jsonrpc": "1.0", "id": 1, "result": {}}',
        b'{"jsonrpc": "2.0", "id": 1, "result": ' + b'{"a":' * 64 + b"1" + b"}" * 65,
    ],
)
async def test_json_that_does_not_answer_the_request_is_malformed(
    scripted: ScriptedPeer, connect: Connect, body: bytes
) -> None:
    scripted.answer_next(ScriptedResponse(200, body))
    assert isinstance(await connect().send(say("hello")), Malformed)


async def test_big_artifact_and_big_integers_come_through_unchanged(connect: Connect) -> None:
    peer = connect()
    big = task_of(await peer.send(say("big")))
    assert texts_of(big) == ["x" * BIG_ARTIFACT_CHARS]
    numbers = task_of(await peer.send(say("numbers")))
    assert f"'count': {BIG_INTEGER}" in str(numbers["artifacts"])
    assert "newInSomeLaterVersion" in str(numbers["artifacts"])


async def test_big_message_reaches_the_peer_whole(scripted: ScriptedPeer, connect: Connect) -> None:
    text = "y" * 3_000_000
    assert state_of(task_of(await connect().send(say(text)))) == "TASK_STATE_COMPLETED"
    assert scripted.texts == [text]


async def test_unknown_state_of_the_peer_is_passed_on(connect: Connect) -> None:
    outcomes = await read_all(connect().stream(say("unknown-state")))
    assert any("TASK_STATE_DREAMING" in str(outcome) for outcome in outcomes)
    assert outcomes[-1] == Closed()


async def test_cancelled_reader_returns_the_connection(
    scripted: ScriptedPeer, connect: Connect
) -> None:
    peer = connect()
    reading = asyncio.create_task(read_all(peer.stream(say("silent"))))
    await wait_until(lambda: scripted.tasks, 10, "the peer has the task")
    reading.cancel()
    assert isinstance((await asyncio.gather(reading, return_exceptions=True))[0], BaseException)
    assert isinstance(await peer.get("scripted-task-1"), Answered)


@pytest.mark.requirement("ENV-8")
async def test_current_trace_reaches_the_peer(scripted: ScriptedPeer, connect: Connect) -> None:
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    peer = connect()
    for value in (trace, "no trace\r\nX-Evil: 1", None):
        token = TRACE.set(read_trace(value))
        await peer.send(say("hello"))
        TRACE.reset(token)
    sent = [request.headers.get("traceparent") for request in scripted.requests]
    assert sent == [trace, None, None]
    assert all(request.headers["a2a-version"] == "1.0" for request in scripted.requests)
    assert not any("cookie" in request.headers for request in scripted.requests)


async def test_cookie_of_a_peer_is_not_kept(scripted: ScriptedPeer, clients: Clients) -> None:
    # A host name: most clients drop cookies of IP addresses anyway.
    url = scripted.url.replace("127.0.0.1", "localhost")
    interface: JsonObject = {"url": url, "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}
    scripted.card = {**scripted.card, "supportedInterfaces": [interface]}
    peer = clients.connect(PeerConfig("scripted", url))
    scripted.answer_next(ScriptedResponse(503, headers={"Set-Cookie": "session=1; Path=/"}))
    await peer.send(say("hello"))
    await peer.send(say("hello"))
    assert "cookie" not in scripted.requests[-1].headers


async def test_proxy_of_the_environment_is_not_used(
    scripted: ScriptedPeer, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    assert isinstance(await connect().send(say("hello")), Answered)


async def test_idle_connection_is_used_again_and_then_dropped(
    scripted: ScriptedPeer, anyio_backend: str
) -> None:
    sessions = PeerSessions(idle_s=0.1)
    config = PeerConfig("scripted", scripted.url)
    peer = make_peer(config, Connections(sessions), HandClock())
    await peer.describe()
    await wait_until(lambda: scripted.open_connections == 0, 10, "that of the card is gone")
    assert isinstance(await peer.send(say("hello")), Answered)
    assert scripted.open_connections == 1
    assert isinstance(await peer.send(say("hello")), Answered)
    assert scripted.open_connections == 1
    await wait_until(lambda: scripted.open_connections == 0, 10, "the idle connection is gone")
    await sessions.close()


async def test_closed_registry_makes_no_calls(scripted: ScriptedPeer, clients: Clients) -> None:
    peer = clients.connect(PeerConfig("scripted", scripted.url))
    await peer.describe()
    await clients.close()
    assert isinstance(await peer.send(say("hello")), Unreached)
    assert scripted.requests == []


@pytest.mark.parametrize("status", [201, 202])
async def test_answer_and_stream_are_read_under_any_status_of_success(
    scripted: ScriptedPeer, connect: Connect, status: int
) -> None:
    peer = connect()
    await peer.describe()
    task = b'{"task":{"id":"t","status":{"state":"TASK_STATE_COMPLETED"}}}'
    said = [b'{"jsonrpc":"2.0","id":%d,"result":%b}' % (number, task) for number in (1, 2)]
    stream = ScriptedResponse(
        status, b"data: %b\n\n" % said[1], {"Content-Type": "text/event-stream"}
    )
    scripted.answer_next(ScriptedResponse(status, said[0]), stream)
    assert isinstance(await peer.send(say("hello")), Answered)
    read = await read_all(peer.stream(say("hello")))
    assert [type(outcome) for outcome in read] == [Answered, Closed]
