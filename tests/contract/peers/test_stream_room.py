"""Large events of agents use the memory budget of the process while they arrive, until they are released."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import cast

import orjson
import pytest
from aiohttp import web

from passerelle.core.peer import Answered, Peer, StreamOutcome, Unknown
from passerelle.core.wire.json import Json, JsonObject
from passerelle.peers.config import PeerConfig
from passerelle.peers.registry import PeerRegistry
from passerelle.peers.whole_answer import GAVE_WAY
from passerelle.runtime.common.breaker import FAILURES
from passerelle.runtime.memory.budget import Budget
from passerelle.runtime.memory.room import GIVES_WAY_S, MemoryRoom, RoomOutcome
from tests.contract.peers.conftest import HandClock
from tests.contract.peers.test_answer_room import patch_time
from tests.contract.peers.test_peer_suite import say
from tests.support.scripted_peer import make_card
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio
MIB = 1024 * 1024
MOST_BYTES = 24 * MIB
"""Size above which an event needs budget."""


@dataclass
class Agent:
    """Sends ``size`` letters, streamed or whole: the last byte with ``rest``, the end with ``end``."""

    size: int
    rest: asyncio.Event = field(default_factory=asyncio.Event)
    end: asyncio.Event = field(default_factory=asyncio.Event)
    card: JsonObject = field(default_factory=dict[str, Json])

    async def serve_card(self, _request: web.Request) -> web.Response:
        return web.json_response(self.card)

    async def take(self, request: web.Request) -> web.StreamResponse:
        call = cast("JsonObject", orjson.loads(await request.read()))
        streams = call["method"] == "SendStreamingMessage"
        message = {"messageId": "m", "role": "ROLE_AGENT", "parts": [{"text": "x" * self.size}]}
        frame = {"jsonrpc": "2.0", "id": call["id"], "result": {"message": message}}
        raw = b"data: %b\n\n" % orjson.dumps(frame) if streams else orjson.dumps(frame)
        form = "text/event-stream" if streams else "application/json"
        response = web.StreamResponse(headers={"Content-Type": form})
        await response.prepare(request)
        await response.write(raw[:-1])
        await self.rest.wait()
        with suppress(ConnectionError):
            await response.write(raw[-1:])
        await self.end.wait()
        return response


@asynccontextmanager
async def serve_agent(agent: Agent, room: MemoryRoom) -> AsyncGenerator[Peer]:
    app = web.Application()
    app.router.add_get("/.well-known/agent-card.json", agent.serve_card)
    app.router.add_post("/", agent.take)
    runner = web.AppRunner(app, shutdown_timeout=1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{cast('tuple[str, int]', runner.addresses[0])[1]}"
    agent.card = make_card("large", f"{url}/")
    registry = PeerRegistry([PeerConfig("large", url)], HandClock(), memory=room)
    try:
        yield registry.find("large")
    finally:
        agent.rest.set()
        agent.end.set()
        await registry.close()
        await runner.cleanup()


async def _measure(peer: Peer, found: asyncio.Queue[int | StreamOutcome]) -> None:
    """Reads a stream to its end without keeping it; records the sizes of events, and other outcomes."""
    async with aclosing(peer.stream(say("hello"))) as outcomes:
        async for outcome in outcomes:
            if isinstance(outcome, Answered):
                found.put_nowait(len(orjson.dumps(outcome.result)))
            else:
                found.put_nowait(outcome)
            del outcome


@pytest.mark.parametrize(("size", "share"), [(MIB, 3 * MIB), (2 * MIB, 2 * MOST_BYTES)])
async def test_events_without_budget_wait_and_arrive_whole(size: int, share: int) -> None:
    room, found = MemoryRoom(Budget(2 * share)), asyncio.Queue[int | StreamOutcome]()
    agent = Agent(size)
    async with serve_agent(agent, room) as peer, asyncio.TaskGroup() as reading:
        for _ in range(3):
            reading.create_task(_measure(peer, found))
        await wait_until(lambda: room.waiting == 2, 20, "all but one wait")
        assert 0 < room.budget.held <= share
        agent.rest.set()
        for _ in range(3):
            reported = await asyncio.wait_for(found.get(), 20)
            assert isinstance(reported, int)
            assert size < reported < size + 1_000
        # The streams continue, and nothing is kept of their events.
        await wait_until(lambda: not room.budget.held, 10, "it is given back")
        agent.end.set()


async def test_a_reader_that_pauses_after_an_event_holds_no_budget() -> None:
    room, agent = MemoryRoom(), Agent(2 * MIB)
    async with serve_agent(agent, room) as peer, aclosing(peer.stream(say("hello"))) as outcomes:
        agent.rest.set()
        outcome = await anext(outcomes)
        assert isinstance(outcome, Answered)
        assert room.budget.held >= 2 * MIB
        del outcome
        await wait_until(lambda: not room.budget.held, 10, "it is given back")


async def test_slow_event_yields_its_budget_to_a_long_waiting_one() -> None:
    looks: list[Callable[[], None]] = []
    lacks: list[RoomOutcome] = []
    room = MemoryRoom(
        Budget(2 * 3 * MIB),
        count=lambda _kind, outcome: lacks.append(outcome),
        later=lambda _seconds, look: looks.append(look),
    )
    found, agent = asyncio.Queue[int | StreamOutcome](), Agent(MIB)
    async with serve_agent(agent, room) as peer, asyncio.TaskGroup() as reading:
        for _ in range(2):
            reading.create_task(_measure(peer, found))
        await wait_until(lambda: room.waiting == 1, 20, "one waits")
        with patch_time(GIVES_WAY_S):
            looks.pop()()
        assert await asyncio.wait_for(found.get(), 20) == Unknown(GAVE_WAY, gave_way=True)
        assert lacks == ["waited", "gave_way"]
        agent.rest.set()
        assert isinstance(await asyncio.wait_for(found.get(), 20), int)
        agent.end.set()


async def _make_way(room: MemoryRoom, looks: list[Callable[[], None]]) -> None:
    """Makes the current read yield to another one, which finishes at once."""
    await wait_until(lambda: bool(room.held["answer"]), 20, "it is being read")
    (taken := room.reserve("answer", "agent:first", 3 * MIB, _do_nothing, _do_nothing)).settle(
        3 * MIB
    )
    waiting = room.reserve("answer", "agent:second", 3 * MIB, _do_nothing, _do_nothing)
    with patch_time(GIVES_WAY_S):
        looks.pop()()
    waiting.release()
    taken.release()


def _do_nothing() -> None:
    return


@pytest.mark.parametrize("streams", [True, False])
async def test_yielding_does_not_count_as_a_failure_of_the_agent(*, streams: bool) -> None:
    looks: list[Callable[[], None]] = []
    room = MemoryRoom(Budget(2 * 3 * MIB), later=lambda _seconds, look: looks.append(look))
    found, agent = asyncio.Queue[int | StreamOutcome](), Agent(MIB)

    async def ask(peer: Peer) -> StreamOutcome | int:
        if not streams:
            return await peer.send(say("hello"))
        await _measure(peer, found)
        return found.get_nowait()

    async with serve_agent(agent, room) as peer:
        for _ in range(FAILURES + 1):
            asking = asyncio.create_task(ask(peer))
            await _make_way(room, looks)
            outcome = await asyncio.wait_for(asking, 20)
            assert outcome == Unknown(GAVE_WAY, gave_way=True)
