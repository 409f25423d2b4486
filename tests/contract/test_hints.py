"""Hints: what an append publishes, and that a lost connection is announced."""

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
from tests.support.batches import EPOCH, Place, event, make_place, operation
from tests.support.engine import Server, ask
from tests.support.failover import run_pair
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio


class Heard:
    """Collects hints of one stream."""

    def __init__(self) -> None:
        self.hints: list[bytes] = []

    async def next(self, count: int = 1) -> list[bytes]:
        await wait_until(lambda: len(self.hints) >= count, 15, f"{count} hints")
        return self.hints[:count]


@contextmanager
def listen(server: Server, channel: str) -> Generator[Callable[[], object]]:
    """Subscribes at one server; what is yielded waits for the next message, five seconds at most."""
    client = redis.Redis.from_url(server.url)  # pyright: ignore[reportUnknownMemberType]
    make_pubsub = cast("Callable[[], PubSub]", client.pubsub)  # pyright: ignore[reportUnknownMemberType]
    with client, make_pubsub() as heard:

        def hear() -> object:
            told = cast("dict[str, object] | None", heard.get_sharded_message(timeout=5))
            assert told is not None, "nothing was heard"
            return told["data"]

        heard.ssubscribe(channel)
        assert hear() == 1, "it is subscribed"
        yield hear


def batch_of(at: Place, *events: EncodedEvent, expected: Stamp | None = None) -> Batch:
    write: EntityWrite = at.write(expected) if expected else at.write()
    return Batch(at.session, operation(), 0, EPOCH, entities=(write,), events=events)


@pytest.mark.requirement("I1")
async def test_hint_carries_what_was_stored_byte_for_byte(store: Store) -> None:
    at, heard = make_place(), Heard()
    await store.hints.subscribe(at.stream, heard.hints.append)
    plain, shown = event("ev_plain"), event("ev_shown", facade=at.task)
    await store.log.append(batch_of(at, plain, shown))
    (hint,) = await heard.next()
    head = await store.log.read_head(at.stream)
    one, two = await store.log.read_page(at.stream, 0)
    assert head is not None
    assert two.frame is not None
    packed = pack_events([plain, shown], at.session)
    assert hint == f"e 1-2.{one.previous}.{head.chain}\n".encode() + packed + SEPARATOR
    told = parse_hint(hint, at.session)
    assert told is not None
    assert told.entries == (one, two)


async def test_hint_of_many_bytes_is_its_first_line_alone(store: Store) -> None:
    at, heard = make_place(), Heard()
    await store.hints.subscribe(at.stream, heard.hints.append)
    large = EncodedEvent("ev_large", "task.progress", b'"x":"' + b"y" * 9000 + b'"}')
    await store.log.append(batch_of(at, event(), large, event()))
    (hint,) = await heard.next()
    head = await store.log.read_head(at.stream)
    (first, *_) = await store.log.read_page(at.stream, 0)
    assert head is not None
    assert hint == f"e 1-3.{first.previous}.{head.chain}\n".encode()


async def test_who_is_not_known_to_follow_is_told_where_a_stream_ends(tmp_path: Path) -> None:
    """As somebody who still listens at a former primary: what is published goes on to replicas."""
    at = make_place()
    async with run_pair() as pair, await Store.open(StoreSettings(pair.url, tmp_path)) as store:
        with listen(pair.replica, keys.stream_hints(at.stream)) as hear:
            await store.log.append(batch_of(at, event(), event()))
            hint = hear()
        head = await store.log.read_head(at.stream)
        (first, _) = await store.log.read_page(at.stream, 0)
        assert head is not None
        assert hint == f"e 1-2.{first.previous}.{head.chain}\n".encode()


async def test_unsubscribed_stream_is_silent_and_may_be_subscribed_again(store: Store) -> None:
    at, other, heard, kept = make_place(), make_place(), Heard(), Heard()
    await store.hints.subscribe(at.stream, heard.hints.append)
    await store.hints.subscribe(other.stream, kept.hints.append)
    await store.hints.unsubscribe(at.stream)
    first = batch_of(at, event())
    await store.log.append(first)
    await store.log.append(batch_of(other, event()))
    await kept.next()
    assert heard.hints == []
    await store.hints.subscribe(at.stream, heard.hints.append)
    await store.log.append(batch_of(at, event(), expected=Stamp(1, first.op)))
    (hint,) = await heard.next()
    assert hint.startswith(b"e 2-2.")


async def test_second_subscription_of_one_stream_is_refused(store: Store) -> None:
    at, heard = make_place(), Heard()
    await store.hints.subscribe(at.stream, heard.hints.append)
    with pytest.raises(ValueError, match="subscribed already"):
        await store.hints.subscribe(at.stream, heard.hints.append)


async def test_killed_subscription_comes_back_for_every_stream_and_is_announced(
    store: Store, server: Server
) -> None:
    places = [make_place() for _ in range(12)]
    heard = {at.session: Heard() for at in places}
    losses: list[int] = []
    store.hints.on_loss(lambda: losses.append(1))
    for at in places:
        await store.hints.subscribe(at.stream, heard[at.session].hints.append)
    for url in server.nodes:
        ask(url, "CLIENT", "KILL", "TYPE", "pubsub")
    homes = {store.nodes.node(at.shard) for at in places}
    await wait_until(lambda: len(losses) >= len(homes), 10, "the loss is announced")
    await asyncio.gather(*(store.log.append(batch_of(at, event())) for at in places))
    for at in places:
        assert (await heard[at.session].next())[0].startswith(b"e 1-1.")


async def test_new_shard_epoch_is_hinted_to_those_who_follow_the_shard(store: Store) -> None:
    at, heard = make_place(), Heard()
    await store.hints.subscribe_shard(at.shard, heard.hints.append)
    epoch = await store.log.bump_epoch(at.shard, 0)
    assert await heard.next() == [f"s {epoch}".encode()]


@pytest.mark.parametrize("raises", [ValueError, RecursionError, asyncio.InvalidStateError])
async def test_callback_that_raises_harms_nobody_else(
    store: Store, raises: type[Exception], caplog: pytest.LogCaptureFixture
) -> None:
    at, other, heard = make_place(), make_place(), Heard()
    other = make_place(at.shard)

    def fail(_hint: bytes) -> None:
        raise raises

    await store.hints.subscribe(at.stream, fail)
    await store.hints.subscribe(other.stream, heard.hints.append)
    before = len(heard.hints)
    await store.log.append(batch_of(at, event()))
    await wait_until(lambda: store.hints.faults == 1, 15, "the fault is counted")
    await store.log.append(batch_of(other, event()))
    await heard.next(before + 1)
    third, late = make_place(at.shard), Heard()
    await store.hints.subscribe(third.stream, late.hints.append)
    await store.log.append(batch_of(third, event()))
    await late.next()
    assert "hints.callback_failed" in caplog.text


async def test_loss_is_told_to_all_though_one_of_them_raises(store: Store, server: Server) -> None:
    at, heard, told = make_place(), Heard(), list[str]()

    def fail() -> None:
        raise LookupError

    store.hints.on_loss(fail)
    store.hints.on_loss(lambda: told.append("lost"))
    await store.hints.subscribe(at.stream, heard.hints.append)
    for url in server.nodes:
        ask(url, "CLIENT", "KILL", "TYPE", "pubsub")
    await wait_until(lambda: told, 15, "the other one is told")
    await store.log.append(batch_of(at, event()))
    await heard.next()


async def test_reader_that_a_fault_has_ended_is_started_again(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the fault is: a reader that nobody looks after would leave the process deaf."""
    at, heard, losses = make_place(), Heard(), list[int]()
    store.hints.on_loss(lambda: losses.append(1))
    await store.hints.subscribe(at.stream, heard.hints.append)
    take: Callable[[RedisHints, Node, list[bytes]], bool] = getattr(RedisHints, "_take")  # noqa: B009  private to its class
    faults = [ZeroDivisionError()]

    def fail(self: RedisHints, node: Node, message: list[bytes]) -> bool:
        if faults:
            raise faults.pop()
        return take(self, node, message)

    monkeypatch.setattr(RedisHints, "_take", fail)
    first = batch_of(at, event())
    await store.log.append(first)
    await wait_until(lambda: losses, 15, "whoever asked hears that hints may be lost")
    await store.log.append(batch_of(at, event(), expected=Stamp(1, first.op)))
    assert (await heard.next())[0].startswith(b"e 2-2.")
    other, late = make_place(at.shard), Heard()
    await store.hints.subscribe(other.stream, late.hints.append)
    await store.log.append(batch_of(other, event()))
    await late.next()


async def test_subscription_whose_caller_was_cancelled_leaves_nothing_at_the_server(
    store: Store, server: Server
) -> None:
    known, at, heard = make_place(), make_place(), Heard()
    at = make_place(known.shard)
    await store.hints.subscribe(known.stream, heard.hints.append)
    channel = keys.stream_hints(at.stream)
    name = store.nodes.node(at.shard).endpoint.name
    url = next(url for url in server.nodes if name in url)

    def count() -> int:
        return cast("list[int]", ask(url, "PUBSUB", "SHARDNUMSUB", channel))[1]

    for turns in range(1, 6):
        asked = asyncio.create_task(store.hints.subscribe(at.stream, heard.hints.append))
        for _ in range(turns):
            await asyncio.sleep(0)
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)
        if asked.cancelled():
            await wait_until(lambda: count() == 0, 15, "nobody is subscribed")
        else:
            await store.hints.unsubscribe(at.stream)
    losses = list[int]()
    store.hints.on_loss(lambda: losses.append(1))
    await store.hints.subscribe(at.stream, heard.hints.append)
    await store.log.append(batch_of(at, event()))
    await heard.next()
    assert not losses, "and the connection stays as it is"
