"""The machines behind one interface: which entity an event changes, and replay as the fold of a whole stream."""

from __future__ import annotations

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from passerelle.core.batch import EntityKind, EntityRef
from passerelle.core.errors import InvalidInput
from passerelle.core.events import Event, Fact, OpaquePayload, VendorPayload
from passerelle.core.facts import Scope
from passerelle.core.machine import (
    KINDS,
    evolve,
    find_targets,
    read_schema,
    read_snapshot,
    replay,
    write_snapshot,
)
from passerelle.core.payloads.conversation import SessionCreated, ThreadStarted, TurnSubmitted
from passerelle.core.payloads.task import TaskAttemptStarted
from passerelle.core.task.commands import StartRun, TaskCommand
from passerelle.core.task.record import TaskRecord
from passerelle.core.wire.record import change
from passerelle.core.wire.times import format_ms
from tests.support.approvals import SCOPE as ASKED
from tests.support.approvals import Stream, make_answer
from tests.support.task_commands import COMMANDS, SCOPE, STARTED, make_story

SESSION = EntityRef(EntityKind.SESSION, SCOPE.session_id)
THREAD = EntityRef(EntityKind.THREAD, "th_1")
TASK = EntityRef(EntityKind.TASK, "task_1")


def lay(*facts: Fact) -> list[Event]:
    """A stream of facts."""
    return [
        Event(f"ev_{place}", format_ms(place), "rt_1", fact, place)
        for place, fact in enumerate(facts, 1)
    ]


OPENING = (
    Fact(Scope("se_1"), SessionCreated("pr_1", "default", "ada")),
    Fact(Scope("se_1", "th_1"), ThreadStarted("ctx_1", "pr_1", "default", "ada")),
)


def record_story(commands: list[TaskCommand]) -> list[Event]:
    story = make_story()
    for command in commands:
        story.try_to(command)
    return lay(*OPENING, *(event.fact for event in story.events))


def test_every_kind_of_entity_has_a_machine() -> None:
    assert set(KINDS) == set(EntityKind)


@given(commands=st.lists(COMMANDS, max_size=15))
@pytest.mark.requirement("VAL-1", "I4")
def test_replay_twice_gives_the_same_bytes(commands: list[TaskCommand]) -> None:
    events = record_story(commands)
    once, twice = replay(events), replay(events)
    assert list(once) == list(twice)
    assert [write_snapshot(state) for state in once.values()] == [
        write_snapshot(state) for state in twice.values()
    ]
    assert {SESSION, THREAD, TASK} <= set(once)


@given(commands=st.lists(COMMANDS, max_size=15), cut=st.integers(0, 40))
@pytest.mark.requirement("I4")
def test_replay_goes_on_from_any_snapshot(commands: list[TaskCommand], cut: int) -> None:
    events = record_story(commands)
    whole = replay(events)
    states = {
        ref: read_snapshot(ref.kind, write_snapshot(state))
        for ref, state in replay(events[:cut]).items()
    }
    for event in events[cut:]:
        for ref in find_targets(event):
            states[ref] = evolve(ref.kind, states.get(ref), event)
    assert states == whole


@given(commands=st.lists(COMMANDS, max_size=15), cut=st.integers(0, 40))
def test_decoded_snapshot_does_not_change_when_events_are_folded_on_it(
    commands: list[TaskCommand], cut: int
) -> None:
    events = record_story(commands)
    stored = {ref: write_snapshot(state) for ref, state in replay(events[:cut]).items()}
    states = {ref: read_snapshot(ref.kind, snapshot) for ref, snapshot in stored.items()}
    for event in events[cut:]:
        for ref in find_targets(event):
            states[ref] = evolve(ref.kind, states.get(ref), event)
    again = {ref: read_snapshot(ref.kind, snapshot) for ref, snapshot in stored.items()}
    assert {ref: write_snapshot(one) for ref, one in again.items() if one} == stored


def test_bytes_that_were_read_before_are_not_decoded_again_unless_there_are_many() -> None:
    task = replay(record_story([]))[TASK]
    assert isinstance(task, TaskRecord)
    small, large = write_snapshot(task), write_snapshot(change(task, objective="x" * 5_000))
    assert read_snapshot(TASK.kind, small) is read_snapshot(TASK.kind, bytes(bytearray(small)))
    assert read_snapshot(TASK.kind, large) is not read_snapshot(TASK.kind, large)


@given(commands=st.lists(COMMANDS, max_size=10), places=st.lists(st.integers(0, 40), max_size=20))
@pytest.mark.requirement("ENV-12", "ENV-13")
def test_vendor_events_anywhere_change_no_read_model(
    commands: list[TaskCommand], places: list[int]
) -> None:
    facts = [event.fact for event in record_story(commands)]
    mixed = list(facts)
    for number, place in enumerate(places):
        vendor = Fact(SCOPE, VendorPayload(f"x.test.{number}", {"n": number}))
        mixed.insert(min(place, len(mixed)), vendor)
    events = lay(*mixed)
    normalized = [e for e in events if not isinstance(e.fact.payload, VendorPayload)]
    assert replay(events) == replay(normalized)


@pytest.mark.requirement("ENV-5")
def test_event_of_a_newer_schema_is_passed_over_and_marks_the_task() -> None:
    events = record_story([StartRun("run_1", STARTED)])
    newer = Event(
        "ev_99", format_ms(99), "rt_1", Fact(SCOPE, OpaquePayload("task.new", {})), 99, "2.0"
    )
    record = replay([*events, newer])[TASK]
    assert isinstance(record, TaskRecord)
    assert record.stale_from == 99


def test_event_names_every_record_that_it_changes() -> None:
    submitted = Fact(SCOPE, TurnSubmitted("m-1", "echo", "a2a", "hello"))
    (event,) = lay(submitted)
    assert find_targets(event) == [THREAD, TASK]
    attempt = lay(Fact(Scope("se_1", "th_1", "turn_1", "task_1", "run_1"), STARTED))[0]
    assert isinstance(attempt.fact.payload, TaskAttemptStarted)
    assert find_targets(attempt) == [THREAD, TASK]


def test_questions_are_replayed_with_the_task_that_asked() -> None:
    stream = Stream()
    record = stream.open()
    stream.tell(make_answer(record))
    states = replay(stream.events)
    action = EntityRef(EntityKind.ACTION, record.request.action_id)
    assert states[action] == stream.now
    assert ASKED.session_id


def test_stored_bytes_begin_with_their_schema_and_read_back_the_same() -> None:
    for ref, state in replay(record_story([])).items():
        snapshot = write_snapshot(state)
        assert read_schema(snapshot) == 1
        assert next(iter(orjson.loads(snapshot))) == "schema"
        assert read_snapshot(ref.kind, snapshot) == state
    assert read_snapshot(EntityKind.TASK, b"") is None
    with pytest.raises(InvalidInput):
        read_snapshot(EntityKind.TASK, b'{"schema":1}')
