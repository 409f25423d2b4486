"""Orders of the load of the bench, carried out against an agent on a real socket."""

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
    """Gives its answers in turn, the last one again and again, and closes after one that says so."""

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
    """An agent, and the order that calls it from one caller, once."""
    agent = Agent(list(answers))
    server = await asyncio.start_server(agent.serve, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    agent.order = LoadOrder("send", f"http://{host}:{port}/a/b", [STEP], keys=["mine", "yours"])
    async with server:
        yield agent


async def test_requests_differ_in_nothing_but_their_numbers_and_keys() -> None:
    async with open_agent(RIGHT) as agent:
        outcome = await execute(replace(agent.order, callers=2))

    first, second = agent.requests
    assert outcome.count == 2
    assert first.startswith(b"POST /a/b HTTP/1.1\r\nHost: 127.0.0.1:")
    assert b"\r\nAuthorization: Bearer mine\r\n" in first
    second = second.replace(b"yours", b"mine")
    assert len(first) == len(second)
    assert len([at for at in range(len(first)) if first[at] != second[at]]) in range(1, 9)


async def test_a_caller_whose_line_is_closed_after_each_answer_opens_another() -> None:
    async with open_agent(CLOSING, CLOSING, WRONG) as agent:
        with pytest.raises(ExceptionGroup) as told:
            await execute(replace(agent.order, seconds=20.0))

    assert isinstance(told.value.exceptions[0], UnexpectedAnswer)
    assert str(told.value.exceptions[0]) == "503: done"
    assert agent.connections == 3


async def test_an_agent_that_is_not_there_is_told() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(ExceptionGroup) as told:
            await execute(LoadOrder("send", url, [STEP]))
    assert isinstance(told.value.exceptions[0], ConnectionRefusedError)


async def test_callers_begin_with_what_is_known_and_tell_what_they_have_found() -> None:
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


async def test_held_streams_are_open_until_they_are_let_go() -> None:
    async with open_agent(STREAM + DONE) as agent:
        async with AsyncExitStack() as held:
            outcome = await hold(replace(agent.order, kind="hold", callers=3), held)
            assert (outcome.count, agent.open) == (3, 3)
        await wait_until(lambda: agent.open == 0, 10, "all streams are closed")
