"""Acks move forward only, per device and generation."""

from __future__ import annotations

import asyncio

import pytest

from passerelle.core.batch import Batch
from passerelle.core.chunks import in_chunks
from passerelle.store.acks import KEEP_MS
from passerelle.store.store import Store
from tests.support.batches import EPOCH, TaskPlace, event, make_place, operation

pytestmark = pytest.mark.anyio

NOW_MS = 1_700_000_000_000
OTHER = "ffffffff"


async def begin(store: Store, events: int = 20) -> TaskPlace:
    at = make_place()
    facts = tuple(event() for _ in range(events))
    await store.log.append(
        Batch(at.session, operation(), 0, EPOCH, entities=(at.write(),), events=facts)
    )
    return at


def cursor(sequence: int, epoch: str = EPOCH) -> str:
    return f"{epoch}.{sequence}.0badcafe"


@pytest.mark.requirement("CHN-5")
async def test_ack_of_ten_five_and_twelve_is_twelve(store: Store) -> None:
    at = await begin(store)
    assert await store.acks.read_ack(at.stream, "dev") is None
    for sequence, kept in ((10, 10), (5, 10), (12, 12)):
        stored = await store.acks.store_ack(at.stream, "dev", 1, cursor(sequence), NOW_MS)
        assert stored == "stored"
        assert await store.acks.read_ack(at.stream, "dev") == cursor(kept)


async def test_devices_have_separate_positions(store: Store) -> None:
    at = await begin(store)
    await store.acks.store_ack(at.stream, "phone#1", 1, cursor(4), NOW_MS)
    await store.acks.store_ack(at.stream, "phone#2", 1, cursor(9), NOW_MS)
    assert await store.acks.read_ack(at.stream, "phone#1") == cursor(4)
    assert await store.acks.read_ack(at.stream, "phone#2") == cursor(9)


@pytest.mark.requirement("CHN-5")
async def test_older_connection_of_a_device_cannot_ack(store: Store) -> None:
    at = await begin(store)
    await store.acks.store_ack(at.stream, "dev", 2, "", NOW_MS)
    assert await store.acks.read_ack(at.stream, "dev") is None
    stale = await store.acks.store_ack(at.stream, "dev", 1, cursor(3), NOW_MS)
    assert stale == "stale_generation"
    assert await store.acks.store_ack(at.stream, "dev", 10, cursor(3), NOW_MS) == "stored"
    assert await store.acks.read_ack(at.stream, "dev") == cursor(3)


async def test_new_generation_keeps_the_position(store: Store) -> None:
    at = await begin(store)
    await store.acks.store_ack(at.stream, "dev", 1, cursor(7), NOW_MS)
    await store.acks.store_ack(at.stream, "dev", 2, "", NOW_MS)
    assert await store.acks.read_ack(at.stream, "dev") == cursor(7)


async def test_ack_beyond_the_end_or_of_another_epoch_is_refused(store: Store) -> None:
    at = await begin(store)
    assert await store.acks.store_ack(at.stream, "dev", 1, cursor(21), NOW_MS) == "ack_ahead"
    assert await store.acks.store_ack(at.stream, "dev", 1, cursor(2, OTHER), NOW_MS) == "ack_epoch"
    nowhere = make_place()
    assert await store.acks.store_ack(nowhere.stream, "dev", 1, cursor(1), NOW_MS) == "ack_epoch"
    assert await store.acks.read_ack(at.stream, "dev") is None


async def test_concurrent_acks_of_devices_are_checked_separately(store: Store) -> None:
    at = await begin(store)
    await store.acks.store_ack(at.stream, "tablet", 7, "", NOW_MS)
    said = [("phone", 1, cursor(4)), ("tablet", 6, cursor(5)), ("watch", 1, cursor(99))]
    said += [("laptop", 1, cursor(4, OTHER)), ("tv", 2, "")]
    answers = await asyncio.gather(*(store.acks.store_ack(at.stream, *one, NOW_MS) for one in said))
    assert answers == ["stored", "stale_generation", "ack_ahead", "ack_epoch", "stored"]
    listed = {
        one.device: (one.generation, one.cursor) for one in await store.acks.list_acks(at.stream)
    }
    assert listed == {"phone": (1, cursor(4)), "tablet": (7, None), "tv": (2, None)}


async def test_devices_unseen_for_a_week_make_room_for_new_ones(store: Store) -> None:
    at = await begin(store)
    gone = [f"tab#{number}" for number in range(299)]
    week_ago_ms = NOW_MS - KEEP_MS
    for part in in_chunks(gone, 50):
        await asyncio.gather(
            *(store.acks.store_ack(at.stream, one, 1, cursor(3), week_ago_ms) for one in part)
        )
    await store.acks.store_ack(at.stream, "seen", 1, cursor(3), week_ago_ms + 1)
    assert len(await store.acks.list_acks(at.stream)) == 300
    await store.acks.store_ack(at.stream, "seen", 1, cursor(4), week_ago_ms + 1)
    assert len(await store.acks.list_acks(at.stream)) == 300, "who is known costs nothing"
    await store.acks.store_ack(at.stream, "new", 1, "", NOW_MS)
    assert {one.device for one in await store.acks.list_acks(at.stream)} == {"new", "seen"}
