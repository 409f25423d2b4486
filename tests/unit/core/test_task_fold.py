"""The fold of a task: what each fact leaves in the record, and what it never does."""

from __future__ import annotations

import pytest

from passerelle.core.events import Event, Fact
from passerelle.core.facts import Ref, Scope
from passerelle.core.payloads.conversation import TurnCompleted, TurnFailed, TurnSubmitted
from passerelle.core.payloads.run import ModelRequested, RunStatus
from passerelle.core.payloads.task import TaskCompleted
from passerelle.core.task.commands import (
    EndRun,
    FailRun,
    ObserveArtifact,
    ObserveStatus,
    SendInput,
    StartRun,
)
from passerelle.core.task.fold import evolve, folds_task
from passerelle.core.task.record import TaskRecord
from passerelle.core.task.status import Delivery, Status
from passerelle.core.wire.times import format_ms
from tests.support.task_commands import ARTIFACT, FAILURE, SCOPE, STARTED, Story, make_story

RUN = Scope("se_1", "th_1", "turn_1", "task_1", "run_1")


def running() -> Story:
    return make_story(StartRun("run_1", STARTED))


def push(story: Story, fact: Fact) -> TaskRecord:
    sequence = len(story.events) + 1
    event = Event(f"ev_{sequence}", format_ms(sequence * 1000), "rt_1", fact, sequence)
    story.events.append(event)
    story.state = evolve(story.state, event)
    assert story.state is not None
    return story.state


@pytest.mark.requirement("A2A-3", "A2A-4", "A2A-6")
def test_names_that_a_peer_gives_are_kept_with_and_without_a_frame() -> None:
    for step_id in (None, "step_1"):
        scope = Scope("se_1", "th_1", "turn_1", "task_1", "run_1", step_id)
        said = RunStatus(
            remote_task_id="rt-1", remote_context_id="rc-1", delivery_mechanism="subscription"
        )
        run = push(running(), Fact(scope, said)).run
        assert run is not None
        assert (run.remote_task_id, run.remote_context_id) == ("rt-1", "rc-1")
        assert run.delivery_mechanism == "subscription"
        assert run.steps == (1 if step_id else 0)


@pytest.mark.requirement("A2A-3")
def test_last_frame_of_a_run_may_name_the_remote_task() -> None:
    story = running()
    verifying = RunStatus(native_status="TASK_STATE_COMPLETED", remote_task_id="rt-1")
    story.tell(EndRun("TASK_STATE_COMPLETED", None, verifying, "step_1"))
    assert story.state is not None
    attempt = story.state.attempts[-1]
    assert (attempt.remote_task_id, attempt.status) == ("rt-1", Status.COMPLETED)


@pytest.mark.requirement("A2A-13")
def test_each_attempt_keeps_its_own_words() -> None:
    story = running()
    story.tell(ObserveStatus(Status.RUNNING, RunStatus(native_status="W1"), "step_1"))
    story.tell(FailRun(Status.FAILED, FAILURE, "TASK_STATE_FAILED"))
    push(story, Fact(Scope("se_1", "th_1", "turn_1", "task_1", "run_2"), STARTED))
    state = push(
        story,
        Fact(
            Scope("se_1", "th_1", "turn_1", "task_1", "run_2", "step_2"),
            RunStatus(native_status="W2"),
        ),
    )
    assert [attempt.native_status for attempt in state.attempts] == ["TASK_STATE_FAILED", "W2"]
    assert [attempt.last_error for attempt in state.attempts] == [FAILURE, None]


def find_pending(story: Story) -> str | None:
    assert story.state is not None
    return story.state.attempts[-1].pending_message_id


def test_send_is_unsettled_until_a_frame_comes() -> None:
    story = running()
    assert find_pending(story) == "m-1"
    story.tell(ObserveStatus(Status.RUNNING, RunStatus(native_status="W"), "step_1"))
    assert find_pending(story) is None
    story.tell(SendInput(ModelRequested("echo", "SendMessage", "m-2")))
    assert find_pending(story) == "m-2"


def test_turn_is_open_until_it_is_answered_or_fails() -> None:
    story = running()
    submitted = [
        push(
            story,
            Fact(
                Scope("se_1", "th_1", turn, "task_1"),
                TurnSubmitted(f"m-{turn}", "echo", "a2a", "hi"),
            ),
        )
        for turn in ("turn_1", "turn_2", "turn_3")
    ]
    assert submitted[-1].open_turns == ("turn_1", "turn_2", "turn_3")
    assert submitted[-1].turn_id == "turn_3"
    state = push(story, Fact(Scope("se_1", "th_1", "turn_2", "task_1"), TurnFailed(FAILURE)))
    state = push(story, Fact(Scope("se_1", "th_1", "turn_1", "task_1"), TurnCompleted("task")))
    assert state.open_turns == ("turn_3",)


@pytest.mark.requirement("LT-6")
def test_task_is_shown_by_its_first_frame_and_never_by_a_message() -> None:
    story = running()
    message = TaskCompleted("message", (), (), Delivery.DELIVERED, "message")
    state = push(story, Fact(RUN, message, {}, b'{"message":{}}', "task_1"))
    assert (state.shown, state.generation, state.family) == (False, 0, "message")
    shown = running()
    state = push(shown, Fact(RUN, RunStatus(text="hi"), {}, b'{"statusUpdate":{}}', "task_1"))
    first = state.shown_from
    state = push(shown, Fact(RUN, RunStatus(text="ho"), {}, b'{"statusUpdate":{}}', "task_1"))
    assert (state.shown, state.generation) == (True, 2)
    assert (state.shown_from, state.shown_to) == (first, first + 1)


@pytest.mark.requirement("A2A-8", "ID-11")
def test_artifact_is_kept_by_reference_and_replaced_under_its_id() -> None:
    story = running()
    story.tell(ObserveArtifact(ARTIFACT, "step_1", {"artifact": Ref(blob="ab", size=3)}))
    assert story.state is not None
    (artifact,) = story.state.artifacts
    assert (artifact.blob, artifact.run_id, artifact.last) == ("ab", "run_1", story.state.last)
    story.tell(ObserveArtifact(ARTIFACT, "step_2"))
    assert [one.artifact_id for one in story.state.artifacts] == ["art_1"]


def test_facts_of_another_task_and_old_ones_change_nothing() -> None:
    story = running()
    before = story.state
    assert before is not None
    other = Fact(Scope("se_1", "th_1", "turn_1", "task_2", "run_1"), RunStatus(text="not mine"))
    assert evolve(before, Event("ev_x", format_ms(1), "rt_1", other, 99)) == before
    for event in story.events:
        assert evolve(before, event) == before
    loose = Event("ev_y", format_ms(1), "rt_1", Fact(Scope("se_1"), RunStatus()), 99)
    assert not folds_task(loose)
    assert evolve(None, loose) is None


def test_frame_of_a_run_that_is_over_changes_nothing_of_the_next() -> None:
    story = running()
    story.tell(FailRun(Status.FAILED, FAILURE))
    push(story, Fact(Scope("se_1", "th_1", "turn_1", "task_1", "run_2"), STARTED))
    late = Scope("se_1", "th_1", "turn_1", "task_1", "run_1", "step_9")
    state = push(story, Fact(late, RunStatus(native_status="LATE", remote_task_id="old")))
    assert state.attempts[-1].native_status is None
    assert state.attempts[-1].remote_task_id is None
    assert SCOPE.task_id == state.task_id
