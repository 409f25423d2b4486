"""Large answers of agents use the memory budget of the process: an answer without budget is read later, not lost."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field

import pytest

from passerelle.peers.call import AgentReply
from passerelle.peers.connection_pool import ConnectionPool
from passerelle.peers.sessions import PeerSessions
from passerelle.peers.whole_answer import FREE_BYTES, GaveWay
from passerelle.runtime.memory.budget import Budget
from passerelle.runtime.memory.room import GIVES_WAY_S, MemoryRoom, RoomOutcome
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio
BODY = b"x" * (4 * FREE_BYTES)


@dataclass
class Slow:
    """Answers every request with ``BODY``; the last byte is sent with ``rest``."""

    chunked: bool
    rest: asyncio.Event = field(default_factory=asyncio.Event)
    begun: int = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await reader.readuntil(b"\r\n\r\n"):
                self.begun += 1
                if self.chunked:
                    head = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n%x\r\n" % len(
                        BODY
                    )
                else:
                    head = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(BODY)
                writer.write(head + BODY[:-1])
                await self.rest.wait()
                writer.write(BODY[-1:] + (b"\r\n0\r\n\r\n" if self.chunked else b""))
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        finally:
            writer.close()


@asynccontextmanager
async def serve_answers(
    room: MemoryRoom, *, chunked: bool
) -> AsyncGenerator[tuple[Slow, ConnectionPool]]:
    slow = Slow(chunked)
    server = await asyncio.start_server(slow.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    sessions = PeerSessions(memory=room)
    try:
        yield slow, sessions.pool(f"http://127.0.0.1:{port}", None)
    finally:
        await sessions.close()
        server.close()


async def _ask(pool: ConnectionPool) -> AgentReply:
    return await pool.ask(b"GET / HTTP/1.1\r\n\r\n", connect_s=5, total_s=60)


async def _is_whole(pool: ConnectionPool) -> bool:
    return (await _ask(pool)).raw == BODY


@pytest.mark.parametrize("chunked", [False, True])
async def test_answers_without_budget_wait_and_arrive_whole(*, chunked: bool) -> None:
    # Half of the budget is one agent's share, which fits one answer.
    room = MemoryRoom(Budget(4 * len(BODY)))
    async with serve_answers(room, chunked=chunked) as (slow, pool):
        asking = [asyncio.create_task(_is_whole(pool)) for _ in range(4)]
        await wait_until(lambda: room.waiting == 3, 10, "all but one wait")
        assert room.budget.held == room.budget.share
        slow.rest.set()
        assert await asyncio.gather(*asking) == [True] * 4
        await wait_until(lambda: not room.budget.held, 5, "it is given back")
        # The connections stay usable.
        assert await _is_whole(pool)
        assert slow.begun == 5


async def test_answer_keeps_its_budget_until_it_is_released() -> None:
    room = MemoryRoom(Budget(4 * len(BODY)))
    async with serve_answers(room, chunked=False) as (slow, pool):
        slow.rest.set()
        kept = [await _ask(pool)]
        waiting = asyncio.create_task(_is_whole(pool))
        await wait_until(lambda: room.waiting == 1, 10, "the next one waits")
        assert not waiting.done()
        assert room.budget.held == 2 * len(BODY)
        kept.clear()
        assert await waiting


async def test_slow_answer_yields_its_budget_to_a_long_waiting_one() -> None:
    looks: list[Callable[[], None]] = []
    lacks: list[RoomOutcome] = []
    room = MemoryRoom(
        Budget(4 * len(BODY)),
        count=lambda _kind, outcome: lacks.append(outcome),
        later=lambda _seconds, look: looks.append(look),
    )
    async with serve_answers(room, chunked=False) as (slow, pool):
        asking = [asyncio.create_task(_ask(pool)) for _ in range(2)]
        await wait_until(lambda: room.waiting == 1, 10, "one waits")
        looks.pop()()
        assert room.waiting == 1, "no answer has waited for long"
        with patch_time(GIVES_WAY_S):
            looks.pop()()
        assert lacks == ["waited", "gave_way"]
        done, _ = await asyncio.wait(asking, timeout=10, return_when=asyncio.FIRST_COMPLETED)
        assert [type(one.exception()) for one in done] == [GaveWay]
        slow.rest.set()
        (other,) = set(asking) - done
        assert (await other).raw == BODY


@contextmanager
def patch_time(ahead_s: float) -> Generator[None]:
    """Moves the time of the budget forward."""
    with pytest.MonkeyPatch.context() as patch:
        now = time.monotonic
        patch.setattr("passerelle.runtime.memory.room.time.monotonic", lambda: now() + ahead_s)
        yield


async def test_abandoned_answer_returns_its_budget() -> None:
    room = MemoryRoom(Budget(4 * len(BODY)))
    async with serve_answers(room, chunked=False) as (_, pool):
        asking = [asyncio.create_task(_ask(pool)) for _ in range(2)]
        await wait_until(lambda: room.waiting == 1, 10, "one waits")
        for one in asking:
            one.cancel()
        await asyncio.gather(*asking, return_exceptions=True)
        await wait_until(lambda: not (room.budget.held or room.waiting), 5, "it is given back")
