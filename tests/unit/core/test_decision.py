"""Decisions: facts over loaded entities become one batch, whose snapshots equal a fold with the store's sequences."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from passerelle.core.batch import (
    ABSENT,
    Batch,
    EntityKind,
    EntityRef,
    EntityWrite,
    SnapshotPieces,
    Stamp,
)
from passerelle.core.decision import NOTHING, Decision, Held, split_snapshot
from passerelle.core.errors import CallerError
from passerelle.core.events import Event, Fact, decode_event
from passerelle.core.facts import Scope
from passerelle.core.ids import Shard
from passerelle.core.machine import evolve, find_targets, replay, write_snapshot
from passerelle.core.payloads.conversation import ThreadStarted
from passerelle.core.payloads.run import RunStatus
from passerelle.core.payloads.runtime import WarningRaised
from passerelle.core.payloads.task import TaskCompleted
from passerelle.core.task import machine as tasks
from passerelle.core.task.commands import BeginTask, DescribeTask, StartRun, TaskCommand
from passerelle.core.task.record import TaskRecord
from passerelle.core.task.status import Delivery
from tests.support.counted_ids import START_MS, CountedIds
from tests.support.spelt_ids import compose_id
from tests.support.task_commands import COMMANDS, CREATED, STARTED

SHARD = Shard(5)
SESSION = compose_id("se", SHARD, START_MS, 1)
TASK = EntityRef(EntityKind.TASK, compose_id("task", SHARD, START_MS, 2))
THREAD = EntityRef(EntityKind.THREAD, "th_1")
NEW = (EntityRef(EntityKind.SESSION, SESSION), THREAD, TASK)
OTHER = EntityRef(EntityKind.TASK, compose_id("task", SHARD, START_MS, 3))
SCOPE = Scope(SESSION, "th_1", "turn_1", TASK.id)
THREAD_STARTED = Fact(Scope(SESSION, "th_1"), ThreadStarted("ctx_1", "pr_1", "default", "ada"))


def begin(held: dict[EntityRef, Held] | None = None, drawn: int = 7) -> Decision:
    """A decision over ``held``, or over a session, a thread and a task that are new."""
    return Decision(
        SESSION,
        held if held is not None else dict.fromkeys(NEW, NOTHING),
        ids=CountedIds(drawn),
        shard=SHARD,
        now_ms=START_MS,
        runtime_id="rt_1",
    )


def apply(decision: Decision, *commands: TaskCommand) -> None:
    """Adds the facts of each command that the machine takes."""
    for command in commands:
        record = decision.state(TASK)
        assert record is None or isinstance(record, TaskRecord)
        try:
            decision.add(tasks.decide(record, command))
        except CallerError:
            continue


def fill(pieces: SnapshotPieces, first: int) -> bytes:
    """What the store makes of a snapshot with holes."""
    return b"".join(
        piece if isinstance(piece, bytes) else str(first + piece).encode() for piece in pieces
    )


def store(batch: Batch, first: int) -> list[Event]:
    """The events of a batch as a reader finds them, with the store's numbers."""
    return [
        decode_event(*event.at(first + place), event.facade)
        for place, event in enumerate(batch.events)
    ]


def find_write(batch: Batch, ref: EntityRef) -> EntityWrite:
    return next(write for write in batch.entities if write.ref == ref)


@given(commands=st.lists(COMMANDS, max_size=12), first=st.integers(1, 10**12))
@pytest.mark.requirement("I4")
def test_stored_snapshot_equals_the_fold_of_the_stored_events(
    commands: list[TaskCommand], first: int
) -> None:
    decision = begin()
    decision.add([THREAD_STARTED])
    apply(decision, BeginTask(SCOPE, CREATED), StartRun("run_1", STARTED), *commands)
    batch = decision.compose("op_1", 0)
    stored = fill(find_write(batch, TASK).snapshot, first)
    folded: object = None
    for event in store(batch, first):
        folded = evolve(EntityKind.TASK, folded, event)  # type: ignore[arg-type]  # a record
    assert isinstance(folded, TaskRecord)
    assert stored == write_snapshot(folded)
    assert replay(store(batch, first))[TASK] == folded


@given(commands=st.lists(COMMANDS, max_size=12), first=st.integers(1, 10**9))
@pytest.mark.requirement("I4")
def test_settled_entities_equal_those_read_after_the_append(
    commands: list[TaskCommand], first: int
) -> None:
    decision = begin()
    decision.add([THREAD_STARTED])
    apply(decision, BeginTask(SCOPE, CREATED), StartRun("run_1", STARTED), *commands)
    decision.set_field(TASK, "own", b"inst_1.1")
    batch = decision.compose("op_1", 0)
    held = decision.settle("op_1", first)[TASK]
    assert held.record is not None
    assert write_snapshot(held.record) == fill(find_write(batch, TASK).snapshot, first)
    assert held.record == replay(store(batch, first))[TASK]
    assert held.stamp == Stamp(1, "op_1")
    assert held.fields == {"own": b"inst_1.1"}
    again = begin({TASK: held})
    again.set_field(TASK, "own", None)
    apply(again, DescribeTask({"title": {"new": "later"}}))
    later = again.settle("op_2", first + len(batch.events))[TASK]
    assert later.fields == {}
    assert later.stamp.op == "op_2"


def test_batch_of_several_decisions_goes_on_where_the_first_one_ended() -> None:
    first = begin()
    first.add([THREAD_STARTED])
    apply(first, BeginTask(SCOPE, CREATED))
    held = first.settle("op_1", 1)
    second = begin(held)
    apply(second, StartRun("run_1", STARTED))
    events = store(first.compose("op_1", 0), 1)
    events += store(second.compose("op_2", 0), 1 + len(events))
    settled = second.settle("op_2", 1 + len(first.events))[TASK].record
    assert replay(events)[TASK] == settled
    assert replay(events)[THREAD] == second.settle("op_2", 1 + len(first.events))[THREAD].record


def test_number_in_a_text_is_not_taken_for_a_place() -> None:
    """A text written before the numbers were drawn can have only numbers of another draw."""
    base = (40_000_000_000_000 + 7) * 100
    texts = [str(base), f"{base + 1} {base + 2}", str(base)[:-2], f"x{base + 3}x"]
    for text in texts:
        decision = begin(drawn=8)
        apply(decision, BeginTask(SCOPE, replace(CREATED, title=text)))
        snapshot = fill(find_write(decision.compose("op_1", 0), TASK).snapshot, 1)
        assert text.encode() in snapshot
        assert b'"first":1,' in snapshot


def test_place_inside_a_longer_number_is_left_alone() -> None:
    base = 4_000_000_000_000_700
    assert split_snapshot(b'{"a":%d}' % (base + 3), base) == (b'{"a":', 3, b"}")
    for longer in (b"1%d" % base, b"%d9" % base):
        assert split_snapshot(longer, base) == (longer,)


def test_fact_about_what_was_not_read_is_refused() -> None:
    decision = begin()
    with pytest.raises(ValueError, match="was not read"):
        decision.add(tasks.decide(None, BeginTask(replace(SCOPE, task_id=OTHER.id), CREATED)))
    decision.introduce(OTHER)
    decision.add(tasks.decide(None, BeginTask(replace(SCOPE, task_id=OTHER.id), CREATED)))
    assert find_write(decision.compose("op_1", 0), OTHER).expected == ABSENT


def test_unchanged_entities_are_neither_compared_nor_written() -> None:
    decision = begin({TASK: NOTHING, OTHER: NOTHING})
    apply(decision, BeginTask(SCOPE, CREATED))
    decision.add([Fact(Scope(SESSION), WarningRaised("odd", "nothing changes"))])
    batch = decision.compose("op_1", 0)
    assert [write.ref for write in batch.entities] == [TASK]
    assert decision.settle("op_1", 1)[OTHER] == NOTHING
    assert len(batch.events) == len(decision.events)


def test_each_event_has_the_time_of_the_decision_and_an_id_of_its_own() -> None:
    decision = begin()
    apply(decision, BeginTask(SCOPE, CREATED), StartRun("run_1", STARTED))
    assert {event.timestamp for event in decision.events} == {"2023-11-14T22:13:20.000Z"}
    assert len({event.event_id for event in decision.events}) == len(decision.events)
    assert all(TASK in find_targets(event) for event in decision.events)


def test_shown_frames_are_counted_alike_in_events_and_record() -> None:
    decision = begin()
    decision.add([THREAD_STARTED])
    apply(decision, BeginTask(SCOPE, CREATED), StartRun("run_1", STARTED))
    run = replace(SCOPE, task_id=TASK.id, run_id="run_1")
    shown = Fact(run, RunStatus(text="hi"), {}, b'{"statusUpdate":{}}', TASK.id)
    decision.add([shown, Fact(run, RunStatus(text="hidden")), shown])
    events = store(decision.compose("op_1", 0), 1)
    assert [event.generation for event in events[-3:]] == [1, 0, 2]
    assert not any(event.generation for event in events[:-3])
    record = decision.state(TASK)
    assert isinstance(record, TaskRecord)
    assert record.generation == 2


def test_bare_message_has_no_generation() -> None:
    decision = begin()
    decision.add([THREAD_STARTED])
    apply(decision, BeginTask(SCOPE, CREATED), StartRun("run_1", STARTED))
    run = replace(SCOPE, task_id=TASK.id, run_id="run_1")
    answer = TaskCompleted("message", (), (), Delivery.DELIVERED, "message")
    decision.add([Fact(run, answer, {}, b'{"message":{}}', TASK.id)])
    assert store(decision.compose("op_1", 0), 1)[-1].generation == 0
