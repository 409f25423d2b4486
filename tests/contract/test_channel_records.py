"""Channel records: a generation per hello, and an inbox for each principal with a hello."""

from __future__ import annotations

import asyncio

import pytest

from passerelle.core.batch import Incarnation
from passerelle.core.errors import StoreUnavailable
from passerelle.core.ids import Shard
from passerelle.core.ports.channels import ChannelUpdate, ConnectionOpened, PendingLink
from passerelle.core.ports.due import DueRow
from passerelle.core.ports.leases import LeaseRequest, TakenOver
from passerelle.core.ports.log import StreamKind, StreamRef
from passerelle.store import keys
from passerelle.store.connection import pack
from passerelle.store.store import Store
from tests.support.batches import make_place, mint
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio


def make_owner() -> tuple[Shard, str, str]:
    shard = make_place().shard
    return shard, mint("pr", shard), mint("ch", shard)


async def say_hello(store: Store, owner: str, channel: str, record: bytes) -> int:
    """The new generation."""
    return (await store.channels.record_hello(owner, channel, record, None)).generation


@pytest.mark.requirement("CHN-1")
async def test_each_hello_is_a_new_generation_and_writes_the_record(store: Store) -> None:
    _, owner, channel = make_owner()
    assert await store.channels.read_generation(channel) == 0
    first = await say_hello(store, owner, channel, b"one")
    assert await say_hello(store, owner, channel, b"two") == first + 1
    assert await store.channels.read_generation(channel) == first + 1
    assert await store.channels.read_record(channel) == b"two"


async def test_hellos_at_once_get_different_generations(store: Store) -> None:
    _, owner, channel = make_owner()
    answers = await asyncio.gather(*(say_hello(store, owner, channel, b"x") for _ in range(10)))
    assert sorted(answers) == list(range(min(answers), min(answers) + 10))


async def test_concurrent_hellos_are_announced_and_written_separately(store: Store) -> None:
    shard, owner, _ = make_owner()
    channels = [mint("ch", shard) for _ in range(5)]
    received: list[ChannelUpdate] = []
    await store.channels.listen(owner, received.append)
    said = [say_hello(store, owner, one, one.encode()) for one in channels]
    answers = await asyncio.gather(*said)
    for channel, generation in zip(channels, answers, strict=True):
        assert await store.channels.read_generation(channel) == generation
        assert await store.channels.read_record(channel) == channel.encode()
    news = [ConnectionOpened(channel, one) for channel, one in zip(channels, answers, strict=True)]
    await wait_until(lambda: len(received) == len(news), 10, "all are announced")
    assert received == news


async def test_first_hello_makes_an_inbox_whose_cursor_holds(store: Store) -> None:
    _, owner, channel = make_owner()
    inbox = StreamRef(StreamKind.INBOX, owner)
    assert await store.log.read_head(inbox) is None
    await store.channels.record_hello(owner, channel, b"x", None)
    first = await store.log.read_head(inbox)
    assert first is not None
    assert first.sequence == 0
    await store.channels.record_hello(owner, channel, b"x", None)
    assert await store.log.read_head(inbox) == first


async def test_hello_reports_open_approvals_of_its_owner(store: Store) -> None:
    shard, owner, channel = make_owner()
    assert not (await store.channels.record_hello(owner, channel, b"x", None)).has_questions
    copies = keys.inbox_open(shard, owner)
    await store.nodes.write(shard, pack("HSET", copies, "act_1", "{}"))
    assert (await store.channels.record_hello(owner, channel, b"x", None)).has_questions
    await store.nodes.write(shard, pack("HDEL", copies, "act_1"))
    assert not (await store.channels.record_hello(owner, channel, b"x", None)).has_questions


async def test_links_that_are_open_are_found_by_their_principal(store: Store) -> None:
    shard, owner, _ = make_owner()
    channels = [mint("ch", shard) for _ in range(3)]
    assert await store.channels.list_live(owner) == ()
    for channel in channels:
        await store.channels.record_hello(owner, channel, channel.encode(), None)
    last = [channel.encode() for channel in reversed(channels)]
    assert await store.channels.list_live(owner) == tuple(last)
    await store.nodes.write(shard, pack("HSET", keys.channel(shard, channels[1]), "live", "0"))
    assert await store.channels.list_live(owner) == (last[0], last[2])
    await store.channels.record_hello(owner, channels[0], b"again", None)
    assert await store.channels.list_live(owner) == (b"again", last[0])


async def test_older_connection_is_notified_by_a_hint(store: Store) -> None:
    _, owner, channel = make_owner()
    received: list[ChannelUpdate] = []
    await store.channels.listen(owner, received.append)
    first = await say_hello(store, owner, channel, b"x")
    await wait_until(lambda: received, 15, "a hint")
    assert received == [ConnectionOpened(channel, first)]
    await store.channels.ignore(owner)
    await store.channels.record_hello(owner, channel, b"x", None)
    await store.channels.listen(owner, received.append)
    await store.channels.record_hello(owner, channel, b"x", None)
    await wait_until(lambda: len(received) > 1, 15, "the next hint")
    assert received == [ConnectionOpened(channel, first), ConnectionOpened(channel, first + 2)]


@pytest.mark.requirement("CHN-9")
async def test_generation_is_never_reused_after_a_channel_was_removed(
    store: Store,
) -> None:
    shard, owner, channel = make_owner()
    before = [await say_hello(store, owner, channel, b"x") for _ in range(3)]
    await store.nodes.write(shard, pack("DEL", keys.channel(shard, channel)))
    assert await say_hello(store, owner, channel, b"x") > max(before)


@pytest.mark.requirement("I9")
async def test_channel_is_in_the_set_of_its_driver(store: Store) -> None:
    shard, owner, channel = make_owner()
    driver = Incarnation("in_hub", 1)
    with pytest.raises(StoreUnavailable):
        await store.channels.record_hello(owner, channel, b"x", driver)
    assert await store.channels.read_generation(channel) == 0
    await store.leases.extend(LeaseRequest(shard, driver, opens=True, wants_duty=False), 60_000)
    await store.channels.record_hello(owner, channel, b"x", driver)
    await store.leases.release(shard, driver)
    assert await store.leases.take_over(shard, "in_hub") == TakenOver(1, (), (channel,))


@pytest.mark.requirement("EXT-8")
async def test_late_fact_of_an_older_connection_is_counted_and_replaces_nothing(
    store: Store,
) -> None:
    _, owner, channel = make_owner()
    await store.channels.record_hello(owner, channel, b"x", None)
    for generation in (5, 7, 6):
        reported = b"generation %d" % generation
        await store.links.add_pending(channel, generation, "connected", reported)
    owed = await store.links.read_pending(channel, "connected")
    assert owed is not None
    assert (owed.payloads, owed.total, owed.written) == (b"generation 7", 3, 0)


@pytest.mark.requirement("EXT-8")
async def test_overtaken_handler_drops_no_newer_facts(store: Store) -> None:
    shard, owner, channel = make_owner()
    await store.channels.record_hello(owner, channel, b"x", None)

    async def claim() -> DueRow | None:
        claimed = await store.due.claim(shard, 10, 1)
        return next((row for row in claimed.rows if row.entity == channel), None)

    async def read() -> PendingLink:
        owed = await store.links.read_pending(channel, "repaired")
        assert owed is not None
        return owed

    await store.links.add_pending(channel, 1, "repaired", b"one", listed=True)
    overtaken = await wait_until(claim, 15, "the row is due")
    quick = await wait_until(claim, 15, "the row is due again")
    assert overtaken is not None
    assert quick is not None
    seen = await read()
    assert seen == PendingLink(b"x", b"one\n", 1, 0)
    await store.links.settle(quick, "repaired", seen, listed=True)
    await store.links.add_pending(channel, 1, "repaired", b"two", listed=True)
    await store.links.settle(overtaken, "repaired", seen, listed=True)
    assert await read() == PendingLink(b"x", b"two\n", 2, 1)


async def test_channel_of_another_shard_is_refused(store: Store) -> None:
    one, two = make_owner(), make_owner()
    assert one[0] != two[0]
    with pytest.raises(ValueError, match="not in the shard"):
        await store.channels.record_hello(one[1], two[2], b"x", None)
