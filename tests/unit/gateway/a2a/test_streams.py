"""The bytes of a stream: events, comments, and its last event."""

import asyncio
from dataclasses import dataclass, field
from pathlib import Path

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.types import Message
from structlog.testing import capture_logs

from passerelle.channels.stream_frame import Frames, StreamFrame
from passerelle.core.errors import PasserelleError, PeerUnavailable, StoreUnavailable
from passerelle.core.ids import Shard
from passerelle.core.wire.long_json import LongJson, Slice
from passerelle.gateway.a2a.bindings import CallBinding, HttpBinding, RpcBinding
from passerelle.gateway.a2a.streams import COMMENT, EventStream
from passerelle.runtime.records.long_content import CHUNK_BYTES, LongContent
from passerelle.store.blobs import DirectoryBlobs
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio
FRAMES = [StreamFrame(b'{"task":{}}', "c.1"), StreamFrame(b'{"statusUpdate":{}}', "c.2")]


@dataclass
class Wire:
    """Keeps what was sent."""

    messages: list[Message] = field(default_factory=list[Message])

    async def send(self, message: Message) -> None:
        self.messages.append(message)

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.messages)

    @property
    def is_ended(self) -> bool:
        return self.messages[-1].get("more_body") is False


async def read(*items: StreamFrame | PasserelleError) -> Frames:
    for item in items:
        if isinstance(item, PasserelleError):
            raise item
        yield [item]


def open_stream(wire: Wire, binding: CallBinding, keep_alive_s: float = 10) -> EventStream:
    return EventStream(wire.send, binding, "echo", 1000, keep_alive_s)


async def test_json_rpc_events_are_written_around_the_stored_bytes() -> None:
    wire = Wire()
    assert await open_stream(wire, RpcBinding("a")).copy(read(*FRAMES)) is None
    assert wire.body == (
        b'retry: 1000\nid: c.1\ndata: {"jsonrpc":"2.0","id":"a","result":{"task":{}}}\n\n'
        b'id: c.2\ndata: {"jsonrpc":"2.0","id":"a","result":{"statusUpdate":{}}}\n\n'
    )
    start = wire.messages[0]
    assert (start["status"], dict(start["headers"])[b"content-type"]) == (200, b"text/event-stream")
    assert wire.is_ended


async def test_http_json_events_are_the_stored_bytes() -> None:
    wire = Wire()
    await open_stream(wire, HttpBinding()).copy(read(FRAMES[0]))
    assert wire.body == b'retry: 1000\nid: c.1\ndata: {"task":{}}\n\n'


@pytest.mark.parametrize("binding", [RpcBinding(1), HttpBinding()])
async def test_nothing_is_sent_before_the_first_event(binding: CallBinding) -> None:
    wire = Wire()
    with pytest.raises(StoreUnavailable):
        await open_stream(wire, binding).copy(read(StoreUnavailable("gone", "no")))
    assert wire.messages == []


async def test_error_after_an_event_is_the_last_event_of_a_json_rpc_stream() -> None:
    wire = Wire()
    error = StoreUnavailable("gone", "no")
    assert await open_stream(wire, RpcBinding(5)).copy(read(FRAMES[0], error)) is error
    last = wire.body.split(b"\n\n")[-2]
    body = orjson.loads(last.removeprefix(b"data: "))
    assert (body["id"], body["error"]["code"]) == (5, -32603)
    assert wire.is_ended


async def test_error_after_an_event_is_an_error_event_of_a_http_json_stream() -> None:
    wire = Wire()
    await open_stream(wire, HttpBinding()).copy(read(FRAMES[0], StoreUnavailable("gone", "no")))
    name, data = wire.body.split(b"\n\n")[-2].split(b"\n")
    assert name == b"event: error"
    assert orjson.loads(data.removeprefix(b"data: "))["error"]["code"] == 503
    assert wire.is_ended


async def test_last_event_does_not_contain_the_address_of_the_agent() -> None:
    wire = Wire()
    error = PeerUnavailable("10.1.2.3 refused", url="http://10.1.2.3")
    await open_stream(wire, HttpBinding()).copy(read(FRAMES[0], error))
    assert b"10.1.2.3" not in wire.body


async def test_exception_of_the_gateway_is_reported_without_details() -> None:
    async def fail() -> Frames:
        yield FRAMES[:1]
        raise ZeroDivisionError("secret inside")

    wire = Wire()
    assert await open_stream(wire, RpcBinding(1)).copy(fail()) is not None
    assert b"secret" not in wire.body
    assert b"-32603" in wire.body


async def test_silence_is_filled_with_comments_that_make_no_event() -> None:
    wire, first, second = Wire(), asyncio.Event(), asyncio.Event()

    async def pause() -> Frames:
        await first.wait()
        yield FRAMES[:1]
        await second.wait()
        yield FRAMES[1:]

    copying = asyncio.create_task(open_stream(wire, RpcBinding(1), 0.01).copy(pause()))
    await wait_until(
        lambda: wire.body.startswith(COMMENT * 2), 15, "comments before the first event"
    )
    first.set()
    await wait_until(lambda: b"}\n\n" + COMMENT in wire.body, 15, "a comment after the first event")
    second.set()
    await copying
    # Some clients make an event of every blank line once they have seen an id.
    blocks = wire.body.split(b"\n\n")
    assert blocks.pop() == b""
    assert len(blocks) == len(FRAMES)
    assert all(block.count(b"\ndata: ") == 1 for block in blocks)


async def test_reader_of_the_frames_ends_with_the_stream() -> None:
    gone = asyncio.Event()

    async def wait() -> Frames:
        yield FRAMES[:1]
        try:
            await asyncio.Event().wait()
        finally:
            gone.set()

    wire = Wire()
    copying = asyncio.create_task(open_stream(wire, RpcBinding(1)).copy(wait()))
    await wait_until(lambda: wire.messages, 15, "the first event")
    copying.cancel()
    await asyncio.gather(copying, return_exceptions=True)
    assert gone.is_set()


async def test_slow_client_holds_up_its_own_reading_and_bounds_it() -> None:
    taken, free = 0, asyncio.Event()

    async def count() -> Frames:
        nonlocal taken
        for number in range(1000):
            taken += 1
            yield [StreamFrame(b"{}", f"c.{number}")]

    async def send(message: Message) -> None:
        if message["type"] == "http.response.body":
            await free.wait()

    stream = EventStream(send, HttpBinding(), "echo", 1000, 0.001)
    copying = asyncio.create_task(stream.copy(count()))
    await wait_until(lambda: taken, 15, "it has begun")
    for _ in range(50):
        await asyncio.sleep(0)
    assert taken == 1
    free.set()
    assert await copying is None
    assert taken == 1000


async def test_no_comment_comes_behind_the_end_or_into_an_event() -> None:
    wire, free = Wire(), asyncio.Event()

    async def send(message: Message) -> None:
        await free.wait()
        await wire.send(message)

    stream = EventStream(send, HttpBinding(), "echo", 1000, 0.001)
    copying = asyncio.create_task(stream.copy(read(*FRAMES)))
    # Many comments come due while the first event waits for its client.
    await asyncio.sleep(0.02)
    free.set()
    await copying
    await asyncio.sleep(0.01)
    assert wire.is_ended
    assert wire.body.startswith(b"retry: 1000\nid: c.1\n")
    assert COMMENT * 2 not in wire.body


@given(st.one_of(st.none(), st.text(max_size=50), st.integers(-(2**63), 2**63 - 1)))
def test_id_of_any_kind_is_echoed_in_one_line_of_json(rpc_id: str | int | None) -> None:
    try:
        data = RpcBinding(rpc_id).wrap_event(b"{}")
    except TypeError:
        # A lone surrogate is no JSON text, and no parser lets one in.
        assert isinstance(rpc_id, str)
        return
    assert b"\n" not in data
    assert b"\r" not in data
    assert orjson.loads(data) == {"jsonrpc": "2.0", "id": rpc_id, "result": {}}


HERE = Shard(3)


async def keep(blobs: DirectoryBlobs, size: int) -> StreamFrame:
    """A frame of ``size`` bytes that is not held."""
    content = b'{"artifactUpdate":"%b"}' % (b"x" * (size - 21))
    sha256 = await blobs.put(HERE, content)
    whole = LongJson((Slice(sha256, 0, len(content), sha256),))
    return StreamFrame(content[:17], "c.9", long=LongContent(blobs, HERE, whole))


@dataclass
class Slow(Wire):
    """Takes one message at a time, and the next one on request."""

    turn: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(0))
    waiting: int = 0

    async def send(self, message: Message) -> None:
        self.waiting += len(message.get("body", b""))
        await self.turn.acquire()
        self.waiting -= len(message.get("body", b""))
        self.messages.append(message)


async def test_a_long_frame_is_written_as_one_event_among_the_others(tmp_path: Path) -> None:
    wire, long = Wire(), await keep(DirectoryBlobs(tmp_path), 300_000)

    async def give() -> Frames:
        yield [FRAMES[0], long, FRAMES[1]]

    await open_stream(wire, RpcBinding("a")).copy(give())
    first, second, third, end = wire.body.split(b"\n\n")
    assert first.endswith(b'"result":{"task":{}}}')
    data = (await long.load()).data
    assert second == b'id: c.9\ndata: {"jsonrpc":"2.0","id":"a","result":%b}' % data
    assert third.endswith(b'"result":{"statusUpdate":{}}}')
    assert end == b""


async def test_a_long_frame_is_one_line_also_for_readers_of_unicode_line_ends(
    tmp_path: Path,
) -> None:
    wire, blobs = Wire(), DirectoryBlobs(tmp_path)
    content = orjson.dumps({"text": "\u2028\x85\u2029a" * 40_000})
    sha256 = await blobs.put(HERE, content)
    whole = LongJson((Slice(sha256, 0, len(content), sha256),))
    frame = StreamFrame(content[:17], "c.9", long=LongContent(blobs, HERE, whole))
    await open_stream(wire, HttpBinding()).copy(read(frame))
    *_, data = wire.body.decode().rstrip("\n").splitlines()
    assert orjson.loads(data.removeprefix("data: ")) == orjson.loads(content)


@pytest.mark.parametrize("size", [100_000, 4_000_000])
async def test_a_reader_that_takes_nothing_holds_one_chunk_of_a_long_frame(
    tmp_path: Path, size: int
) -> None:
    wire, blobs = Slow(), DirectoryBlobs(tmp_path)
    frames = [await keep(blobs, size)] * 5

    async def give() -> Frames:
        yield frames

    copying = asyncio.create_task(open_stream(wire, HttpBinding()).copy(give()))
    most = 0
    while not copying.done():
        wire.turn.release()
        await asyncio.sleep(0)
        most = max(most, wire.waiting)
    assert most <= CHUNK_BYTES
    assert len(wire.body) > 5 * size


async def test_a_connection_is_cut_in_the_middle_of_a_frame_that_is_damaged(tmp_path: Path) -> None:
    wire, blobs = Wire(), DirectoryBlobs(tmp_path)
    long = await keep(blobs, 200_000)
    (path,) = (one for one in tmp_path.rglob("*") if one.is_file())
    path.write_bytes(path.read_bytes()[:-3] + b'y"}')
    with capture_logs() as logs:
        failure = await open_stream(wire, HttpBinding()).copy(read(FRAMES[0], long))
    assert isinstance(failure, StoreUnavailable)
    assert [one["event"] for one in logs] == ["a2a.stream_cut"]
    assert not wire.is_ended
    # The event has no end, so that no client takes it for one.
    assert wire.body.count(b"\n\n") == 1


@pytest.mark.parametrize("left", [None, 150_000], ids=["gone", "shorter"])
async def test_a_frame_whose_content_is_gone_ends_the_stream_with_an_error(
    tmp_path: Path, left: int | None
) -> None:
    wire, blobs = Wire(), DirectoryBlobs(tmp_path)
    long = await keep(blobs, 200_000)
    (path,) = (one for one in tmp_path.rglob("*") if one.is_file())
    if left is None:
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:left])
    with capture_logs() as logs:
        failure = await open_stream(wire, HttpBinding()).copy(read(FRAMES[0], long, FRAMES[1]))
    assert isinstance(failure, StoreUnavailable)
    assert wire.is_ended
    first, last, end = wire.body.split(b"\n\n")
    assert first.endswith(b'data: {"task":{}}')
    error = orjson.loads(last.removeprefix(b"event: error\ndata: "))
    assert error["error"]["status"] == "UNAVAILABLE"
    assert end == b""
    assert [one["event"] for one in logs] == ["a2a.stream_failed"]
