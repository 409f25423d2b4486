"""The interface of a card that a call uses, when the next one is tried, and when never."""

from __future__ import annotations

import socket
from collections.abc import AsyncGenerator

import pytest

from passerelle.core.peer import Answered, Closed, RefusedByPeer, Unknown, Unreached
from passerelle.core.wire.json import Json
from passerelle.peers.config import PeerConfig
from passerelle.runtime.common.breaker import FAILURES, PAUSE_MS
from tests.contract.peers.conftest import Clients
from tests.contract.peers.test_peer_suite import read_all, say
from tests.support.scripted_peer import ScriptedPeer, ScriptedResponse
from tests.support.scripted_tasks import Turn

pytestmark = pytest.mark.anyio

OLD_VERSION = ScriptedResponse(
    200, b'{"jsonrpc":"2.0","id":1,"error":{"code":-32009,"message":"not that one"}}'
)


@pytest.fixture
async def second(anyio_backend: str) -> AsyncGenerator[ScriptedPeer, None]:
    async with ScriptedPeer("second") as peer:
        yield peer


def offer(*urls: str) -> list[Json]:
    return [
        {"url": url + "/", "protocolBinding": "JSONRPC", "protocolVersion": "1.0"} for url in urls
    ]


def offer_both(scripted: ScriptedPeer, second: ScriptedPeer) -> PeerConfig:
    scripted.card = {**scripted.card, "supportedInterfaces": offer(scripted.url, second.url)}
    return PeerConfig("both", scripted.url, allowed_origins=frozenset({second.url}))


async def test_unreachable_interface_is_skipped_for_the_next(
    scripted: ScriptedPeer, clients: Clients
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        gone = f"http://127.0.0.1:{listener.getsockname()[1]}"
    scripted.card = {**scripted.card, "supportedInterfaces": offer(gone, scripted.url)}
    peer = clients.connect(PeerConfig("scripted", scripted.url, allowed_origins=frozenset({gone})))
    assert isinstance(await peer.send(say("hello")), Answered)
    assert (await read_all(peer.stream(say("hello"))))[-1] == Closed()
    assert scripted.texts == ["hello", "hello"]


@pytest.mark.parametrize("answer", [OLD_VERSION, ScriptedResponse(404), ScriptedResponse(405)])
async def test_interface_that_contradicts_its_card_is_skipped_from_then_on(
    scripted: ScriptedPeer, second: ScriptedPeer, clients: Clients, answer: ScriptedResponse
) -> None:
    peer = clients.connect(offer_both(scripted, second))
    scripted.answer_next(answer)
    assert isinstance(await peer.send(say("one")), Answered)
    assert scripted.card_reads == [200, 304], "the card is read again, once"
    assert (await read_all(peer.stream(say("two"))))[-1] == Closed()
    assert second.texts == ["one", "two"]
    assert scripted.count("SendMessage") == 1
    assert (await peer.describe()).endpoint == second.url + "/"


async def test_new_card_makes_a_skipped_interface_usable_again(
    scripted: ScriptedPeer, second: ScriptedPeer, clients: Clients
) -> None:
    peer = clients.connect(offer_both(scripted, second))
    scripted.answer_next(OLD_VERSION)
    await peer.send(say("one"))
    scripted.card = {**scripted.card, "description": "A new version."}
    clients.clock.ms += 600_000
    assert isinstance(await peer.send(say("two")), Answered)
    assert scripted.texts == ["one", "two"]
    assert second.texts == ["one"]


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (ScriptedResponse(502), Unknown),
        (ScriptedResponse(503), RefusedByPeer),
        (ScriptedResponse(401), RefusedByPeer),
        (
            ScriptedResponse(
                200, b'{"jsonrpc":"2.0","id":null,"error":{"code":-32602,"message":"x"}}'
            ),
            RefusedByPeer,
        ),
    ],
)
async def test_possibly_delivered_or_answered_call_is_never_sent_to_the_next(
    scripted: ScriptedPeer,
    second: ScriptedPeer,
    clients: Clients,
    answer: ScriptedResponse,
    kind: type[object],
) -> None:
    peer = clients.connect(offer_both(scripted, second))
    scripted.answer_next(answer, answer)
    assert isinstance(await peer.send(say("hello")), kind)
    assert isinstance((await read_all(peer.stream(say("hello"))))[-1], kind)
    assert second.requests == []


async def test_stream_that_breaks_after_its_first_frame_is_not_restarted(
    scripted: ScriptedPeer, second: ScriptedPeer, clients: Clients
) -> None:
    peer = clients.connect(offer_both(scripted, second))
    assert isinstance((await read_all(peer.stream(say("drop"))))[-1], Unknown)
    assert second.requests == []


async def test_open_breaker_blocks_calls_to_a_failing_peer_and_probes_its_card(
    scripted: ScriptedPeer, clients: Clients, capsys: pytest.CaptureFixture[str]
) -> None:
    peer = clients.connect(PeerConfig("scripted", scripted.url))
    scripted.answer_next(*[ScriptedResponse(502)] * FAILURES)
    for _ in range(FAILURES):
        assert isinstance(await peer.send(say("hello")), Unknown)
    held_back = await peer.send(say("hello"))
    assert isinstance(held_back, Unreached)
    assert held_back.retry_after_s == 5
    assert scripted.count("SendMessage") == FAILURES
    assert capsys.readouterr().out.count("peer.breaker_open") == 1
    clients.clock.ms += PAUSE_MS
    assert isinstance(await peer.send(say("hello")), Answered)
    assert capsys.readouterr().out.count("peer.breaker_closed") == 1
    assert scripted.card_reads == [200, 304], "something harmless went before the send"
    assert isinstance(await peer.send(say("hello")), Answered)


async def test_failed_probe_sends_no_call(scripted: ScriptedPeer, clients: Clients) -> None:
    peer = clients.connect(PeerConfig("scripted", scripted.url))
    scripted.answer_next(*[ScriptedResponse(502)] * FAILURES)
    for _ in range(FAILURES):
        await peer.send(say("hello"))
    await scripted.stop()
    clients.clock.ms += PAUSE_MS
    held_back = await peer.send(say("hello"))
    assert isinstance(held_back, Unreached)
    assert held_back.retry_after_s == 10
    assert scripted.count("SendMessage") == FAILURES


async def test_query_passes_an_open_breaker_and_its_answer_closes_it(
    scripted: ScriptedPeer, clients: Clients
) -> None:
    peer = clients.connect(PeerConfig("scripted", scripted.url))
    scripted.answer_next(*[ScriptedResponse(502)] * FAILURES)
    for _ in range(FAILURES):
        await peer.send(say("hello"))
    assert isinstance(await peer.get("no-such-task"), RefusedByPeer)
    assert isinstance(await peer.send(say("hello")), Answered)


async def test_errors_of_an_agent_that_answers_open_no_breaker(
    scripted: ScriptedPeer, clients: Clients
) -> None:
    peer = clients.connect(PeerConfig("scripted", scripted.url))
    for _ in range(FAILURES * 2):
        assert isinstance(await peer.get("no-such-task"), RefusedByPeer)
    assert isinstance(await peer.send(say("hello")), Answered)


RAISED = b'{"jsonrpc":"2.0","id":null,"error":{"code":-32603,"message":"the tool broke"}}'


async def test_an_agent_whose_program_raises_each_time_is_not_paused(
    scripted: ScriptedPeer, clients: Clients
) -> None:
    """It answers 500 with its error: the next caller's message may well succeed."""
    peer = clients.connect(PeerConfig("scripted", scripted.url))
    scripted.answer_next(*[ScriptedResponse(500, RAISED)] * (FAILURES * 2))
    for _ in range(FAILURES):
        refused = await peer.send(say("hello"))
        assert isinstance(refused, RefusedByPeer)
        assert (refused.code, refused.message) == (-32603, "the tool broke")
        (streamed,) = await read_all(peer.stream(say("hello")))
        assert isinstance(streamed, RefusedByPeer)


@pytest.mark.parametrize("words", [0, 1])
async def test_an_agent_whose_streams_break_off_is_not_paused(
    scripted: ScriptedPeer, clients: Clients, words: int
) -> None:
    """Libraries of 0.3 break a stream off when the program raises: it was reached all the same."""

    async def raise_at_work(turn: Turn) -> None:
        for _ in range(words):
            await turn.status("WORKING")
        await turn.drop()

    peer = clients.connect(PeerConfig("scripted", scripted.url))
    for _ in range(FAILURES):
        scripted.next(raise_at_work)
        *_, last = await read_all(peer.stream(say("hello")))
        assert isinstance(last, Unknown)
    assert isinstance(await peer.send(say("hello")), Answered)


@pytest.mark.parametrize("body", [b"", b"Internal Server Error", b"<html>"])
async def test_a_bare_500_is_a_failure_of_the_interface(
    scripted: ScriptedPeer, clients: Clients, body: bytes
) -> None:
    """Nothing says that the agent wrote it."""
    peer = clients.connect(PeerConfig("scripted", scripted.url))
    scripted.answer_next(*[ScriptedResponse(500, body)] * FAILURES)
    for _ in range(FAILURES):
        assert isinstance(await peer.send(say("hello")), RefusedByPeer)
    assert isinstance(await peer.send(say("hello")), Unreached)


async def test_missing_path_for_subscriptions_alone_does_not_exclude_an_interface(
    scripted: ScriptedPeer, second: ScriptedPeer, clients: Clients
) -> None:
    peer = clients.connect(offer_both(scripted, second))
    await peer.describe()
    scripted.answer_next(ScriptedResponse(404))
    (refused,) = await read_all(peer.subscribe("scripted-task-1"))
    assert isinstance(refused, RefusedByPeer)
    assert scripted.card_reads == [200]
    assert isinstance(await peer.send(say("hello")), Answered)
    assert scripted.texts == ["hello"]
