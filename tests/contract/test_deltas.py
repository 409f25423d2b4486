"""Text on its way between instances: heard once by whoever listens, and stored nowhere."""

from __future__ import annotations

import pytest

from passerelle.core.events import EncodedEvent, Event, Fact, encode_event
from passerelle.core.facts import Scope
from passerelle.core.payloads.run import ModelDelta
from passerelle.core.ports.deltas import TextDelta
from passerelle.store.store import Store
from tests.support.batches import Place, event, make_place
from tests.support.engine import Server, ask
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio


def delta(at: Place, text: str, start: int) -> EncodedEvent:
    said = ModelDelta(text, f"{at.task}/answer", start)
    fact = Fact(Scope(at.session, task_id=at.task), said)
    return encode_event(Event("ev_delta", "2026-11-20T15:00:00.000Z", "rt_1", fact))


@pytest.mark.requirement("EVC-6", "I1")
async def test_text_is_heard_and_stored_nowhere(store: Store, server: Server) -> None:
    at, heard = make_place(), list[TextDelta]()
    await store.deltas.listen(at.stream, heard.append)
    assert await store.deltas.publish(at.stream, delta(at, "the ", 0)) == 1
    assert await store.deltas.publish(at.stream, delta(at, "nächste", 4)) == 1
    await wait_until(lambda: len(heard) == 2, 15, "both pieces of text")
    assert heard == [
        TextDelta(f"{at.task}/answer", 0, "the "),
        TextDelta(f"{at.task}/answer", 4, "nächste"),
    ]
    assert {one.facade for one in heard} == {at.task}
    keys = [ask(url, "KEYS", f"*{at.session}*") for url in server.nodes]
    assert keys == [[] for _ in server.nodes]


async def test_whoever_publishes_learns_that_nobody_listens(store: Store) -> None:
    at, other, heard = make_place(), make_place(), list[TextDelta]()
    await store.deltas.listen(other.stream, heard.append)
    assert await store.deltas.publish(at.stream, delta(at, "nobody", 0)) == 0
    await store.deltas.ignore(other.stream)
    assert await store.deltas.publish(other.stream, delta(other, "nobody", 0)) == 0
    assert heard == []


async def test_what_is_no_text_is_passed_over(store: Store) -> None:
    at, heard = make_place(), list[TextDelta]()
    await store.deltas.listen(at.stream, heard.append)
    await store.deltas.publish(at.stream, event())
    await store.deltas.publish(at.stream, delta(at, "text", 0))
    await wait_until(lambda: heard, 15, "the text after it")
    assert [one.text for one in heard] == ["text"]


async def test_text_does_not_wake_readers_of_what_is_stored(store: Store) -> None:
    at, hints, heard = make_place(), list[bytes](), list[TextDelta]()
    await store.hints.subscribe(at.stream, hints.append)
    await store.deltas.listen(at.stream, heard.append)
    await store.deltas.publish(at.stream, delta(at, "text", 0))
    await wait_until(lambda: heard, 15, "the text")
    assert hints == []
