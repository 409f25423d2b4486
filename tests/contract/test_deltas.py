"""Text in transit between instances: received once by each subscriber, and not stored."""

from __future__ import annotations

import pytest

from passerelle.core.events import EncodedEvent, Event, Fact, encode_event
from passerelle.core.facts import Scope
from passerelle.core.payloads.run import ModelDelta
from passerelle.core.ports.deltas import TextDelta
from passerelle.store.store import Store
from tests.support.batches import TaskPlace, event, make_place
from tests.support.engine import Server, ask
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio


def delta(at: TaskPlace, text: str, start: int) -> EncodedEvent:
    said = ModelDelta(text, f"{at.task}/answer", start)
    fact = Fact(Scope(at.session, task_id=at.task), said)
    return encode_event(Event("ev_delta", "2026-11-20T15:00:00.000Z", "rt_1", fact))


@pytest.mark.requirement("EVC-6", "I1")
async def test_text_is_received_and_not_stored(store: Store, server: Server) -> None:
    at, received = make_place(), list[TextDelta]()
    await store.deltas.listen(at.stream, received.append)
    assert await store.deltas.publish(at.stream, delta(at, "the ", 0)) == 1
    assert await store.deltas.publish(at.stream, delta(at, "nächste", 4)) == 1
    await wait_until(lambda: len(received) == 2, 15, "both pieces of text")
    assert received == [
        TextDelta(f"{at.task}/answer", 0, "the "),
        TextDelta(f"{at.task}/answer", 4, "nächste"),
    ]
    assert {one.facade for one in received} == {at.task}
    keys = [ask(url, "KEYS", f"*{at.session}*") for url in server.nodes]
    assert keys == [[] for _ in server.nodes]


async def test_publisher_learns_that_there_is_no_subscriber(store: Store) -> None:
    at, other, received = make_place(), make_place(), list[TextDelta]()
    await store.deltas.listen(other.stream, received.append)
    assert await store.deltas.publish(at.stream, delta(at, "nobody", 0)) == 0
    await store.deltas.ignore(other.stream)
    assert await store.deltas.publish(other.stream, delta(other, "nobody", 0)) == 0
    assert received == []


async def test_invalid_delta_is_skipped(store: Store) -> None:
    at, received = make_place(), list[TextDelta]()
    await store.deltas.listen(at.stream, received.append)
    await store.deltas.publish(at.stream, event())
    await store.deltas.publish(at.stream, delta(at, "text", 0))
    await wait_until(lambda: received, 15, "the text after it")
    assert [one.text for one in received] == ["text"]


async def test_text_does_not_wake_readers_of_stored_events(store: Store) -> None:
    at, hints, received = make_place(), list[bytes](), list[TextDelta]()
    await store.hints.subscribe(at.stream, hints.append)
    await store.deltas.listen(at.stream, received.append)
    await store.deltas.publish(at.stream, delta(at, "text", 0))
    await wait_until(lambda: received, 15, "the text")
    assert hints == []
