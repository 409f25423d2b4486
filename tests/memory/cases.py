"""The kinds of abuse: each runs once against a gateway. Further ones are rows of ``CASES``."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

import aiohttp
import grpc.aio
from a2a.types import a2a_pb2

from passerelle.a2a_mapping.members import object_at, text_at
from passerelle.core.wire.json import JsonObject
from tests.memory import linked_agent
from tests.memory.agent import NAME
from tests.memory.site import MB, Site, write_message
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from passerelle.core.wire.json import Json

Abuse: TypeAlias = Callable[[Site], Awaitable[None]]
_REFUSED_WITHIN_S: Final = 2.0
_BROUGHT_WITHIN_S: Final = 240.0
MOST_BYTES: Final = 600 * MB
_FAST: Final[JsonObject] = {"events_per_s": 100_000, "bytes_per_s": 1_000_000_000}
"""A run that is read no faster than its rate would hold less, and take longer."""
GET: Final = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"


@dataclass(frozen=True, slots=True)
class Case:
    """One kind of abuse. It returns when it has fully happened; its connections are cut afterwards.

    ``short``: it is part of the short form. ``most_bytes``: the bound of the gateway's peak. ``timeout`` is that of
    the agents, and ``outputs`` their settings. ``grpc``: whether callers also have gRPC.
    """

    name: str
    abuse: Abuse
    short: bool = True
    most_bytes: int = MOST_BYTES
    timeout: JsonObject = field(default_factory=dict[str, "Json"])
    outputs: JsonObject = field(default_factory=_FAST.copy)
    grpc: bool = False


def _find_task(event: JsonObject | None) -> str:
    result = object_at(event or {}, "result")
    return text_at(object_at(result, "task"), "id")


async def _subscribe_idle(site: Site, readers: int, megabytes: int) -> None:
    """Subscribers that do not read, of one task whose artifact comes in chunks of 1 MB, until its end."""
    async with site.stream("alice", f"artifact hold=1 n={megabytes} kb=1000") as events:
        task = _find_task(await events.next())
        for _ in range(readers):
            slow = await site.ask_slowly("alice", "SubscribeToTask", {"id": task})
            # The stream has begun: frames from now on are for this reader too.
            await slow.reader.read(1)
        await site.release()
        last = await events.read_to_end()
    status = object_at(object_at(object_at(last, "result"), "statusUpdate"), "status")
    assert text_at(status, "state") == "TASK_STATE_COMPLETED", last
    await site.settle()


async def slow_subscribers(site: Site) -> None:
    """H2: thirty subscribers, a stream of 150 MB."""
    await _subscribe_idle(site, 30, 150)


async def late_subscribers(site: Site) -> None:
    """The same thirty, when two thirds of the artifact exist: each first gets the Task."""
    async with site.stream("alice", "artifact pause=100 n=150 kb=1000") as events:
        task = _find_task(await events.next())
        for _ in range(100):
            await events.next()
        for _ in range(30):
            slow = await site.ask_slowly("alice", "SubscribeToTask", {"id": task})
            await slow.reader.read(1)
        await site.release()
        await events.read_to_end()
    await site.settle()


async def ten_slow_readers(site: Site) -> None:
    """Ten subscribers."""
    await _subscribe_idle(site, 10, 150)


async def large_artifact(site: Site) -> None:
    """H5: an artifact of 600 MB, read at full speed: it ends at the limit, and the part until then is readable."""
    async with site.stream("alice", "artifact n=600 kb=1000") as events:
        task = _find_task(await events.next())
        last = await events.read_to_end()
    status = object_at(object_at(object_at(last, "result"), "statusUpdate"), "status")
    assert text_at(status, "state") == "TASK_STATE_FAILED", str(last)[:300]
    size = await site.measure("alice", "GetTask", {"id": task})
    assert 250 * MB < size < 280 * MB, size


async def large_bodies(site: Site) -> None:
    """Five bodies of 300 MB, and forty of 23 MB that arrive slowly and stay incomplete."""
    for size, count, sent in ((300 * MB, 5, 30 * MB), (23 * MB, 40, 22 * MB)):
        for _ in range(count):
            with suppress(ConnectionError, TimeoutError):
                async with asyncio.timeout(_REFUSED_WITHIN_S):
                    await site.write_slowly(site.write_head("alice", size) + b"x" * sent)
    await site.settle()


async def pipelines(site: Site) -> None:
    """H1: ten million bytes of requests in each of four connections, without a credential; no answer is read."""
    await _write_all(site, [(b"", GET * 29_000, 10)] * 4)


async def callback_names(site: Site) -> None:
    """H3: a thousand invalid names, each of 60,000 letters and new, without a credential."""
    begun = uuid.uuid4().hex
    async with aiohttp.ClientSession() as http:
        for number in range(1_000):
            path = f"/callbacks/{begun}{'a' * 60_000}{number}/x"
            async with http.post(site.gateway.url + path, data=b"{}") as answer:
                assert answer.status == 404


async def ticket_bodies(site: Site) -> None:
    """H4: ten bodies of 60 MB for tickets, half of them announced as larger and half without a length."""
    lines = "".join(f"{name}: {said}\r\n" for name, said in site.headers("alice").items())
    head = f"POST /v1/tickets HTTP/1.1\r\nHost: x\r\n{lines}".encode()
    announced = (
        head + b"Content-Length: 400000000\r\n\r\n",
        b" " * MB,
        60,
    )
    chunk = b"%x\r\n%b\r\n" % (MB, b" " * MB)
    chunked = (head + b"Transfer-Encoding: chunked\r\n\r\n", chunk, 60)
    await _write_all(site, [announced] * 5 + [chunked] * 5)


async def _write_all(site: Site, requests: Sequence[tuple[bytes, bytes, int]]) -> None:
    """Writes a head and then ``count`` pieces, each over a new connection, until the gateway stops reading."""

    async def write(head: bytes, piece: bytes, count: int) -> None:
        with suppress(ConnectionError):
            slow = await site.write_slowly(head)
            for _ in range(count):
                slow.writer.write(piece)
                await slow.writer.drain()

    writing = [asyncio.create_task(write(*one)) for one in requests]
    await site.settle()
    for one in writing:
        one.cancel()
    await asyncio.gather(*writing, return_exceptions=True)


async def questions(site: Site) -> None:
    """M2: 64 messages are interrupted, and the agent slowly sends 15 MB at each lookup."""
    await asyncio.gather(
        *(site.call("alice", "SendMessage", write_message("cut mb=15")) for _ in range(64))
    )
    await site.rest()


async def large_answers(site: Site) -> None:
    """32 messages with answers of 15 MB each, sent slowly."""
    await asyncio.gather(
        *(site.call("alice", "SendMessage", write_message("answer mb=15")) for _ in range(32))
    )
    await site.rest()


async def large_events(site: Site) -> None:
    """Twenty streams with an event of 20 MB each, concurrently."""
    async with AsyncExitStack() as stack:
        streams = [
            await stack.enter_async_context(site.stream("alice", "event hold=1 mb=20"))
            for _ in range(20)
        ]
        for events in streams:
            await events.next()
        await site.release()
        for events in streams:
            await events.read_to_end()
    await site.rest()


async def large_items_of_a_link(site: Site) -> None:
    """Six streams of 60 MB in items of 10 MB over one link."""
    async with site.link_agent(), AsyncExitStack() as stack:
        said = "artifact n=6 kb=10000"
        streams = [
            await stack.enter_async_context(site.stream("alice", said, linked_agent.NAME))
            for _ in range(6)
        ]
        ends = await asyncio.gather(*(events.read_to_end() for events in streams))
    for end in ends:
        status = object_at(object_at(object_at(end, "result"), "statusUpdate"), "status")
        assert text_at(status, "state") == "TASK_STATE_COMPLETED", str(end)[:300]


async def _leave_endless(site: Site, text: str, megabytes: int) -> None:
    """Twenty endless streams whose callers disconnect: they run to a number of megabytes, and are cancelled."""
    async with AsyncExitStack() as stack:
        streams = [await stack.enter_async_context(site.stream("alice", text)) for _ in range(20)]
        tasks = [_find_task(await events.next()) for events in streams]
        for events in streams:
            await events.next()
    goal = await site.read_brought() + megabytes * MB

    async def is_brought() -> bool:
        return not site.is_alive() or await site.read_brought() >= goal

    await wait_until(is_brought, _BROUGHT_WITHIN_S, f"{megabytes} MB are sent without a reader")
    await asyncio.gather(*(site.call("alice", "CancelTask", {"id": task}) for task in tasks))
    await site.rest()


async def endless_words(site: Site) -> None:
    """Status messages of 16 kB, 400 MB in total."""
    await _leave_endless(site, "endless kb=16", 400)


async def endless_chunks(site: Site) -> None:
    """Chunks of 64 kB of one artifact, 600 MB in total."""
    await _leave_endless(site, "endless chunks=1000000 kb=64", 600)


async def endless_artifacts(site: Site) -> None:
    """Artifacts of 20 MB, one after the other, 1,500 MB in total."""
    await _leave_endless(site, "endless chunks=20 kb=1000", 1_500)


async def _make_task(site: Site, megabytes: int) -> str:
    """An ended task with an artifact of ``megabytes`` MB."""
    async with site.stream("alice", f"artifact n={megabytes} kb=1000") as events:
        task = _find_task(await events.next())
        await events.read_to_end()
    return task


async def slow_readers_of_0_3(site: Site) -> None:
    """Thirty calls for a Task of 60 MB in the 0.3 form that read nothing."""
    task = await _make_task(site, 60)
    # One of them reads: so each round has the whole of it once.
    assert await site.measure("alice", "tasks/get", {"id": task}, "0.3") > 60 * MB
    for _ in range(30):
        await site.ask_slowly("alice", "tasks/get", {"id": task}, "0.3")
    await site.settle()


async def slow_readers_over_grpc(site: Site) -> None:
    """Thirty calls for the same over gRPC, each over a separate connection."""
    task = await _make_task(site, 60)
    metadata = tuple((name.lower(), value) for name, value in site.headers("alice").items())
    request = a2a_pb2.GetTaskRequest(id=task, tenant=NAME)
    async with AsyncExitStack() as stack:
        for number in range(30):
            # Channels to one address share a connection, unless their options differ.
            options = (("grpc.max_receive_message_length", -1), ("test.number", number))
            channel = grpc.aio.insecure_channel(f"127.0.0.1:{site.grpc_port}", options=options)
            await stack.enter_async_context(channel)
            # As a streaming call: the answer is not read until a message is requested.
            method = cast("Any", channel).unary_stream(
                "/lf.a2a.v1.A2AService/GetTask",
                request_serializer=a2a_pb2.GetTaskRequest.SerializeToString,
            )
            calling = method(request, metadata=metadata)
            stack.callback(calling.cancel)
            with suppress(grpc.aio.AioRpcError):
                await calling.wait_for_connection()
        await site.settle()


CASES: Final = (
    Case("large artifact", large_artifact),
    Case("slow subscribers", slow_subscribers, short=False),
    Case("pipelines", pipelines),
    Case("callback names", callback_names, short=False),
    Case("ticket bodies", ticket_bodies, short=False),
    Case("late subscribers", late_subscribers),
    Case("large bodies", large_bodies, short=False),
    Case("ten slow readers", ten_slow_readers, short=False),
    Case("questions", questions, short=False, timeout={"arrival": "5s"}),
    Case("large answers", large_answers, short=False),
    Case("large events", large_events, short=False),
    Case("large items of a link", large_items_of_a_link, short=False, most_bytes=450 * MB),
    Case("endless words", endless_words, short=False),
    Case("endless chunks", endless_chunks, short=False),
    Case("endless artifacts", endless_artifacts, short=False),
    Case("slow readers of 0.3", slow_readers_of_0_3, short=False),
    Case("slow readers over gRPC", slow_readers_over_grpc, short=False, grpc=True),
)
