"""Whole runs of every kind, checked afterwards: ids by event type, one order, replay, references that resolve."""

from __future__ import annotations

import asyncio
from dataclasses import fields, replace

import pytest

from passerelle.core import machine
from passerelle.core.errors import InvalidInput
from passerelle.core.events import Event, check_scope, required_ids
from passerelle.core.facts import Scope
from passerelle.core.ids import shard_of
from passerelle.core.task.status import Status
from tests.support.harness import Harness

pytestmark = pytest.mark.anyio


async def run_all_kinds(harness: Harness) -> list[Event]:
    """Runs every kind of exchange with an agent; returns all events."""
    words = ("hello", "message hi", "fail", "reject", "numbers", "big", "two-artifacts")
    finished = [await harness.talk(word) for word in words]
    accepted = [one for one, _ in finished]
    streams = [
        await harness.send(word, wait="stream")
        for word in ("chunks 3", "nonsense", "twice", "drop")
    ]
    *whole, dropped = streams
    await asyncio.gather(*(harness.watch(one) for one in whole))
    await harness.until(dropped, Status.RUNNING)
    await harness.cancel(dropped)
    await harness.until(dropped, Status.CANCELLED)
    asked, _ = await harness.talk("ask which")
    view = await harness.question(asked)
    await harness.respond(view, option_id="reply", content={"text": "this one"})
    await harness.until(asked, Status.COMPLETED)
    events: list[Event] = []
    for one in (*accepted, *streams, asked):
        events += await harness.events(one)
    return events


@pytest.mark.requirement("ENV-6", "ENV-7")
async def test_each_event_has_the_ids_that_its_type_requires(harness: Harness) -> None:
    events = await run_all_kinds(harness)
    assert len({event.type for event in events}) >= 20
    for event in events:
        check_scope(event.type, event.fact.scope)
    for event in {event.type: event for event in events}.values():
        for name in required_ids(event.type):
            scope: Scope = replace(event.fact.scope, **{name: None})  # type: ignore[arg-type]  # the id that is dropped
            with pytest.raises(InvalidInput) as caught:
                check_scope(event.type, scope)
            assert caught.value.field == name
            assert event.type in str(caught.value)
    assert {member.name for member in fields(Scope)} >= {"task_id", "run_id", "action_id"}


@pytest.mark.requirement("ENV-4", "I3", "I4", "VAL-1")
async def test_every_session_is_gap_free_and_replays_to_its_snapshots(harness: Harness) -> None:
    events = await run_all_kinds(harness)
    assert len({event.event_id for event in events}) == len(events)
    await harness.prove()
    once, twice = machine.replay(events), machine.replay(events)
    assert [machine.write_snapshot(state) for state in once.values()] == [
        machine.write_snapshot(state) for state in twice.values()
    ]


@pytest.mark.requirement("ENV-10")
async def test_each_reference_of_a_run_resolves_to_its_content(harness: Harness) -> None:
    named = 0
    for event in await run_all_kinds(harness):
        for ref in event.fact.refs.values():
            if ref.blob is not None:
                named += 1
                shard = shard_of(event.fact.scope.session_id)
                content = await harness.store.blobs.get(shard, ref.blob)
                assert content is not None
                assert len(content) == ref.size
    assert named >= 2
