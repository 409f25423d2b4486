"""A task whose attempt waits for a quota: a missing resource like any other, without a run (ST-8, CF-7)."""

from __future__ import annotations

import pytest

from passerelle.core.errors import UnsupportedOperation
from passerelle.core.payloads import task as task_facts
from passerelle.core.read_models.blockers import list_blocked
from passerelle.core.read_models.explanation import explain_task
from passerelle.core.task.commands import (
    BlockTask,
    ConfirmCancel,
    ContinueTask,
    LinkTask,
    QueueTask,
    RequestCancel,
    StartRun,
    SuspendTask,
    WaitFor,
)
from passerelle.core.task.record import TaskRecord, waits_for_quota
from passerelle.core.task.status import Phase, Status
from tests.support.task_commands import STARTED, Story, make_story

UNTIL = "2026-12-01T00:00:00.000Z"
LATER = "2027-01-01T00:00:00.000Z"
WORDS = "the quota of 2 calls a month is used up"


def wait(until: str = UNTIL, words: str = WORDS) -> QueueTask:
    return QueueTask("quota:ada", words, 1, "quota", STARTED, {"a": 1}, until=until, unpaid=True)


def waiting() -> tuple[Story, TaskRecord]:
    story = make_story(wait())
    assert story.state is not None
    return story, story.state


def read(story: Story) -> TaskRecord:
    assert story.state is not None
    return story.state


@pytest.mark.requirement("ST-8", "CF-7", "TEV-7")
def test_quota_wait_names_the_resource_and_its_reset_time() -> None:
    story, state = waiting()
    assert [event.type for event in story.events][-2:] == ["task.queued", "task.waiting"]
    assert (state.status, state.status_reason, state.attempts) == (
        Status.WAITING_RESOURCE,
        WORDS,
        (),
    )
    assert state.progress.phase is Phase.WAITING
    queued = state.queued
    assert queued is not None
    assert (queued.cause, queued.until, queued.unpaid) == ("quota", UNTIL, True)
    assert (queued.attempt, queued.send_options) == (STARTED, {"a": 1})
    assert waits_for_quota(state)


@pytest.mark.requirement("CF-8")
def test_quota_wait_is_a_blocker_and_is_explained_once() -> None:
    story, state = waiting()
    (blocked,) = list_blocked([state])
    (blocker,) = blocked.blockers
    assert (blocker.kind, blocker.target, blocker.reason) == ("quota", "quota:ada", WORDS)
    assert blocker.until == UNTIL
    told = explain_task(state, story.events, 0)
    assert [(one.code, one.text) for one in told.waiting] == [("resource", WORDS)]


@pytest.mark.requirement("TR-7")
def test_attempt_starts_from_a_quota_wait() -> None:
    story, _ = waiting()
    story.tell(StartRun("run_1", STARTED))
    state = read(story)
    assert (state.status, state.queued, state.current_run_id) == (Status.RUNNING, None, "run_1")
    assert state.progress.phase is Phase.WORKING


def test_a_run_that_waits_for_a_resource_is_not_begun_again_and_not_put_in_line() -> None:
    waits = WaitFor(task_facts.TaskWaiting("resource", Status.WAITING_RESOURCE))
    story = make_story(StartRun("run_1", STARTED), waits)
    before = read(story)
    for command in (StartRun("run_2", STARTED), wait(), QueueTask("agent:echo", "busy")):
        with pytest.raises(UnsupportedOperation, match="resumes by itself"):
            story.tell(command)
    assert read(story) == before
    assert not waits_for_quota(before)


def test_a_later_reset_time_keeps_the_start_of_the_wait() -> None:
    story, before = waiting()
    story.tell(wait(LATER, "others have used it up"))
    after = read(story)
    assert before.queued is not None
    assert after.queued is not None
    assert (after.status_at, after.queued.since) == (before.status_at, before.queued.since)
    assert (after.queued.until, after.status_reason) == (LATER, "others have used it up")


def test_attempt_waits_for_its_agent_after_the_quota() -> None:
    story, before = waiting()
    story.tell(QueueTask("agent:echo", "paused", 1, "paused", STARTED))
    state = read(story)
    assert before.queued is not None
    assert state.queued is not None
    assert (state.status, state.queued.cause) == (Status.QUEUED, "paused")
    assert (state.queued.until, state.queued.unpaid) == (None, None)
    assert state.queued.since == before.queued.since, "its place among those of its caller"


def test_paused_it_goes_back_to_where_it_waited() -> None:
    story, before = waiting()
    story.tell(SuspendTask("ada"))
    assert read(story).status is Status.PAUSED
    assert not waits_for_quota(read(story))
    story.tell(ContinueTask("go on"))
    after = read(story)
    assert (after.status, after.queued) == (Status.WAITING_RESOURCE, before.queued)
    assert waits_for_quota(after)


def test_behind_another_task_it_waits_for_the_quota_after_that() -> None:
    edge = task_facts.TaskDependencyUpdated("blocked_by:task_9", "blocked_by", "task_9", "open")
    blocked = BlockTask(task_facts.TaskBlocked("task_9", "dependency", "waits for task_9"))
    story = make_story(LinkTask(edge), wait(), blocked)
    with pytest.raises(UnsupportedOperation, match="task_9"):
        story.tell(ContinueTask("too early"))
    done = task_facts.TaskDependencyUpdated(
        "blocked_by:task_9", "blocked_by", "task_9", "satisfied"
    )
    story.tell(LinkTask(done))
    story.tell(ContinueTask("task_9 has completed"))
    assert waits_for_quota(read(story))


def test_cancelled_quota_wait_leaves_the_queue() -> None:
    story, _ = waiting()
    story.tell(RequestCancel(task_facts.TaskCancelRequested("ada", "user", "active_run")))
    assert not waits_for_quota(read(story))
    story.tell(ConfirmCancel(task_facts.TaskCancelled("ada", "user")))
    assert (read(story).status, read(story).queued) == (Status.CANCELLED, None)
