"""Hints: what an append publishes, and the notice after a lost connection."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

import pytest
import redis
from redis.client import PubSub

from passerelle.channels.hints import parse_hint
from passerelle.core.batch import Batch, EntityWrite, Stamp
from passerelle.core.events import EncodedEvent
from passerelle.core.packed_events import SEPARATOR, pack_events
from passerelle.store import keys
from passerelle.store.hints import RedisHints
from passerelle.store.nodes import Node
from passerelle.store.store import Store, StoreSettings
from tests.support.batches import EPOCH, TaskPlace, event, make_place, operation
from tests.support.engine import Server, ask
from tests.support.failover import run_pair
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio


class HintCollector:
    """Collects the hints of one stream."""

    def __init__(self) -> None:
        self.hints: list[bytes] = []

    async def next(self, count: int = 1) -> list[bytes]:
        await wait_until(lambda: len(self.hints) >= count, 15, f"{count} hints")
        return self.hints[:count]


@contextmanager
def listen(server: Server, channel: str) -> Generator[Callable[[], object]]:
    """Subscribes at one server; the yielded function waits for the next message, at most five seconds."""
    client = redis.Redis.from_url(server.url)  # pyright: ignore[reportUnknownMemberType]
    make_pubsub = cast("Callable[[], PubSub]", client.pubsub)  # pyright: ignore[reportUnknownMemberType]
    with client, make_pubsub() as received:

        def receive() -> object:
            reported = cast("dict[str, object] | None", received.get_sharded_message(timeout=5))
            assert reported is not None, "nothing was received"
            return reported["data"]

        received.ssubscribe(channel)
        assert receive() == 1, "it is subscribed"
        yield receive


def batch_of(at: TaskPlace, *events: EncodedEvent, expected: Stamp | None = None) -> Batch:
    write: EntityWrite = at.write(expected) if expected else at.write()
    return Batch(at.session, operation(), 0, EPOCH, entities=(write,), events=events)


@pytest.mark.requirement("I1")
async def test_hint_carries_what_was_stored_byte_for_byte(store: Store) -> None:
    at, received = make_place(), HintCollector()
    await store.hints.subscribe(at.stream, received.hints.append)
    plain, shown = event("ev_plain"), event("ev_shown", facade=at.task)
    await store.log.append(batch_of(at, plain, shown))
    (hint,) = await received.next()
    head = await store.log.read_head(at.stream)
    one, two = await store.log.read_page(at.stream, 0)
    assert head is not None
    assert two.frame is not None
    packed = pack_events([plain, shown], at.session)
    assert hint == f"e 1-2.{one.previous}.{head.chain}\n".encode() + packed + SEPARATOR
    reported = parse_hint(hint, at.session)
    assert reported is not None
    assert reported.entries == (one, two)


async def test_hint_of_many_bytes_is_its_first_line_alone(store: Store) -> None:
    at, received = make_place(), HintCollector()
    await store.hints.subscribe(at.stream, received.hints.append)
    large = EncodedEvent("ev_large", "task.progress", b'"x":"' + b"y" * 9000 + b'"}')
    await store.log.append(batch_of(at, event(), large, event()))
    (hint,) = await received.next()
    head = await store.log.read_head(at.stream)
    (first, *_) = await store.log.read_page(at.stream, 0)
    assert head is not None
    assert hint == f"e 1-3.{first.previous}.{head.chain}\n".encode()


async def test_unregistered_follower_gets_the_end_of_the_stream(tmp_path: Path) -> None:
    """As a subscriber of a former primary: published messages are replicated."""
    at = make_place()
    async with run_pair() as pair, await Store.open(StoreSettings(pair.url, tmp_path)) as store:
        with listen(pair.replica, keys.stream_hints(at.stream)) as receive:
            await store.log.append(batch_of(at, event(), event()))
            hint = receive()
        head = await store.log.read_head(at.stream)
        (first, _) = await store.log.read_page(at.stream, 0)
        assert head is not None
        assert hint == f"e 1-2.{first.previous}.{head.chain}\n".encode()


async def test_unsubscribed_stream_is_silent_and_may_be_subscribed_again(store: Store) -> None:
    at, other, received, kept = make_place(), make_place(), HintCollector(), HintCollector()
    await store.hints.subscribe(at.stream, received.hints.append)
    await store.hints.subscribe(other.stream, kept.hints.append)
    await store.hints.unsubscribe(at.stream)
    first = batch_of(at, event())
    await store.log.append(first)
    await store.log.append(batch_of(other, event()))
    await kept.next()
    assert received.hints == []
    await store.hints.subscribe(at.stream, received.hints.append)
    await store.log.append(batch_of(at, event(), expected=Stamp(1, first.op)))
    (hint,) = await received.next()
    assert hint.startswith(b"e 2-2.")


async def test_second_subscription_of_one_stream_is_refused(store: Store) -> None:
    at, received = make_place(), HintCollector()
    await store.hints.subscribe(at.stream, received.hints.append)
    with pytest.raises(ValueError, match="subscribed already"):
        await store.hints.subscribe(at.stream, received.hints.append)


async def test_killed_subscription_is_restored_for_every_stream_and_announced(
    store: Store, server: Server
) -> None:
    places = [make_place() for _ in range(12)]
    received = {at.session: HintCollector() for at in places}
    losses: list[int] = []
    store.hints.on_loss(lambda: losses.append(1))
    for at in places:
        await store.hints.subscribe(at.stream, received[at.session].hints.append)
    for url in server.nodes:
        ask(url, "CLIENT", "KILL", "TYPE", "pubsub")
    homes = {store.nodes.node(at.shard) for at in places}
    await wait_until(lambda: len(losses) >= len(homes), 10, "the loss is announced")
    await asyncio.gather(*(store.log.append(batch_of(at, event())) for at in places))
    for at in places:
        assert (await received[at.session].next())[0].startswith(b"e 1-1.")


async def test_new_shard_epoch_is_hinted_to_those_who_follow_the_shard(store: Store) -> None:
    at, received = make_place(), HintCollector()
    await store.hints.subscribe_shard(at.shard, received.hints.append)
    epoch = await store.log.bump_epoch(at.shard, 0)
    assert await received.next() == [f"s {epoch}".encode()]


@pytest.mark.parametrize("raises", [ValueError, RecursionError, asyncio.InvalidStateError])
async def test_raising_callback_does_not_affect_others(
    store: Store, raises: type[Exception], caplog: pytest.LogCaptureFixture
) -> None:
    at, other, received = make_place(), make_place(), HintCollector()
    other = make_place(at.shard)

    def fail(_hint: bytes) -> None:
        raise raises

    await store.hints.subscribe(at.stream, fail)
    await store.hints.subscribe(other.stream, received.hints.append)
    before = len(received.hints)
    await store.log.append(batch_of(at, event()))
    await wait_until(lambda: store.hints.faults == 1, 15, "the fault is counted")
    await store.log.append(batch_of(other, event()))
    await received.next(before + 1)
    third, late = make_place(at.shard), HintCollector()
    await store.hints.subscribe(third.stream, late.hints.append)
    await store.log.append(batch_of(third, event()))
    await late.next()
    assert "hints.callback_failed" in caplog.text


async def test_loss_is_announced_to_all_though_one_callback_raises(
    store: Store, server: Server
) -> None:
    at, received, reported = make_place(), HintCollector(), list[str]()

    def fail() -> None:
        raise LookupError

    store.hints.on_loss(fail)
    store.hints.on_loss(lambda: reported.append("lost"))
    await store.hints.subscribe(at.stream, received.hints.append)
    for url in server.nodes:
        ask(url, "CLIENT", "KILL", "TYPE", "pubsub")
    await wait_until(lambda: reported, 15, "the other callback is called")
    await store.log.append(batch_of(at, event()))
    await received.next()


async def test_reader_that_failed_is_restarted(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the fault: a reader that is not restarted would leave the process without hints."""
    at, received, losses = make_place(), HintCollector(), list[int]()
    store.hints.on_loss(lambda: losses.append(1))
    await store.hints.subscribe(at.stream, received.hints.append)
    take: Callable[[RedisHints, Node, list[bytes]], bool] = getattr(RedisHints, "_take")  # noqa: B009  private to its class
    faults = [ZeroDivisionError()]

    def fail(self: RedisHints, node: Node, message: list[bytes]) -> bool:
        if faults:
            raise faults.pop()
        return take(self, node, message)

    monkeypatch.setattr(RedisHints, "_take", fail)
    first = batch_of(at, event())
    await store.log.append(first)
    await wait_until(lambda: losses, 15, "the callback learns that hints may be lost")
    await store.log.append(batch_of(at, event(), expected=Stamp(1, first.op)))
    assert (await received.next())[0].startswith(b"e 2-2.")
    other, late = make_place(at.shard), HintCollector()
    await store.hints.subscribe(other.stream, late.hints.append)
    await store.log.append(batch_of(other, event()))
    await late.next()


async def test_subscription_whose_caller_was_cancelled_leaves_nothing_at_the_server(
    store: Store, server: Server
) -> None:
    known, at, received = make_place(), make_place(), HintCollector()
    at = make_place(known.shard)
    await store.hints.subscribe(known.stream, received.hints.append)
    channel = keys.stream_hints(at.stream)
    name = store.nodes.node(at.shard).endpoint.name
    url = next(url for url in server.nodes if name in url)

    def count() -> int:
        return cast("list[int]", ask(url, "PUBSUB", "SHARDNUMSUB", channel))[1]

    for turns in range(1, 6):
        asked = asyncio.create_task(store.hints.subscribe(at.stream, received.hints.append))
        for _ in range(turns):
            await asyncio.sleep(0)
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)
        if asked.cancelled():
            await wait_until(lambda: count() == 0, 15, "no subscription is left")
        else:
            await store.hints.unsubscribe(at.stream)
    losses = list[int]()
    store.hints.on_loss(lambda: losses.append(1))
    await store.hints.subscribe(at.stream, received.hints.append)
    await store.log.append(batch_of(at, event()))
    await received.next()
    assert not losses, "and the connection stays as it is"
