"""Load generator of the benchmarks: its orders, against an agent on a real socket."""

import asyncio
import socket
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace

import pytest

from bench.callers import UnexpectedAnswer
from bench.load import LoadOrder, execute, hold
from bench.steps import CONTEXT, NUMBER, RequestStep
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio

RIGHT = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ndone"
CLOSING = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\nConnection: close\r\n\r\ndone"
WRONG = b"HTTP/1.1 503 Busy\r\nContent-Length: 4\r\n\r\ndone"
STREAM = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
DONE = b"5\r\ndone\n\r\n"
STEP = RequestStep(f"hi {NUMBER}", "done")


@dataclass(slots=True)
class Agent:
    """Sends its responses in turn, repeats the last one, and closes after one with ``Connection: close``."""

    answers: list[bytes]
    order: LoadOrder = field(init=False)
    requests: list[bytes] = field(default_factory=list[bytes])
    connections: int = 0
    open: int = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection."""
        self.connections += 1
        self.open += 1
        try:
            while answer := await self._answer(reader):
                writer.write(answer)
                if b"Connection: close" in answer:
                    break
        finally:
            self.open -= 1
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader) -> bytes:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except (asyncio.IncompleteReadError, ConnectionError):
            return b""
        _, _, length = head.partition(b"Content-Length: ")
        self.requests.append(head + await reader.readexactly(int(length.partition(b"\r\n")[0])))
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


@asynccontextmanager
async def open_agent(*answers: bytes) -> AsyncGenerator[Agent]:
    """An agent, and an order for one request to it from one caller."""
    agent = Agent(list(answers))
    server = await asyncio.start_server(agent.serve, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    agent.order = LoadOrder("send", f"http://{host}:{port}/a/b", [STEP], keys=["mine", "yours"])
    async with server:
        yield agent


async def test_requests_differ_only_in_numbers_and_keys() -> None:
    async with open_agent(RIGHT) as agent:
        outcome = await execute(replace(agent.order, callers=2))

    first, second = agent.requests
    assert outcome.count == 2
    assert first.startswith(b"POST /a/b HTTP/1.1\r\nHost: 127.0.0.1:")
    assert b"\r\nAuthorization: Bearer mine\r\n" in first
    second = second.replace(b"yours", b"mine")
    assert len(first) == len(second)
    assert len([at for at in range(len(first)) if first[at] != second[at]]) in range(1, 9)


async def test_caller_reconnects_after_each_closed_connection() -> None:
    async with open_agent(CLOSING, CLOSING, WRONG) as agent:
        with pytest.raises(ExceptionGroup) as raised:
            await execute(replace(agent.order, seconds=20.0))

    assert isinstance(raised.value.exceptions[0], UnexpectedAnswer)
    assert str(raised.value.exceptions[0]) == "503: done"
    assert agent.connections == 3


async def test_refused_connection_raises() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(ExceptionGroup) as raised:
            await execute(LoadOrder("send", url, [STEP]))
    assert isinstance(raised.value.exceptions[0], ConnectionRefusedError)


async def test_callers_use_known_ids_and_report_found_ones() -> None:
    task = b'{"task":{"id":"t1","contextId":"c1","status":"done"}}'
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(task), task)
    step = RequestStep(CONTEXT, "done", teaches=True)
    async with open_agent(answer) as agent:
        order = replace(agent.order, steps=[step], callers=2, known=[("c2", "t2"), ("c3", "t3")])
        outcome = await execute(order)

    assert sorted(request.rpartition(b"\r\n\r\n")[2] for request in agent.requests) == [
        b"c2",
        b"c3",
    ]
    assert outcome.found == [("c1", "t1"), ("c1", "t1")]


async def test_held_streams_are_open_until_they_are_released() -> None:
    async with open_agent(STREAM + DONE) as agent:
        async with AsyncExitStack() as held:
            outcome = await hold(replace(agent.order, kind="hold", callers=3), held)
            assert (outcome.count, agent.open) == (3, 3)
        await wait_until(lambda: agent.open == 0, 10, "all streams are closed")
