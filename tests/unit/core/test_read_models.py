"""Read models as functions: every reason cites its fact, and silence is never shown as success."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import pytest

from passerelle.core.events import Event, Fact
from passerelle.core.facts import Scope
from passerelle.core.payloads.conversation import TurnCompleted, TurnFailed, TurnSubmitted
from passerelle.core.payloads.limit import (
    CostEstimated,
    CostRecorded,
    QuotaBlocked,
    QuotaLow,
    RateLimitHit,
)
from passerelle.core.payloads.routing import (
    Candidate,
    CandidatesResolved,
    FallbackApplied,
    SingleCandidate,
    TaskProfileResolved,
)
from passerelle.core.payloads.run import ArtifactChanged, RunStatus
from passerelle.core.payloads.task import TaskCreated
from passerelle.core.read_models.artifacts import list_artifacts
from passerelle.core.read_models.attempts import list_attempts
from passerelle.core.read_models.blockers import list_blocked
from passerelle.core.read_models.delivery import show_delivery
from passerelle.core.read_models.explanation import explain_task
from passerelle.core.read_models.history import show_context, show_history
from passerelle.core.read_models.lineage import link_thread
from passerelle.core.read_models.mark import MarkState
from passerelle.core.read_models.reasons import REASONS
from passerelle.core.read_models.routing import CostState, LimitState, show_routing
from passerelle.core.read_models.session import show_session
from passerelle.core.read_models.subagents import list_subagents
from passerelle.core.read_models.task import QUIET_MS, count, show_objects, show_task
from passerelle.core.read_models.tasks import draw_graph, show_tasks
from passerelle.core.read_models.thread import show_thread
from passerelle.core.session.machine import SessionRecord
from passerelle.core.session.thread import ThreadRecord
from passerelle.core.task.record import TaskRecord
from passerelle.core.task.status import Status
from passerelle.core.wire.record import change
from passerelle.core.wire.times import parse_ms
from tests.support.payloads import FULL_SCOPE, sample

TASK = change(
    sample(TaskRecord),
    stale_from=None,
    status=Status.RUNNING,
    current_run_id="word",
    started_at="2026-11-20T00:00:00.000Z",
    ended_at="2026-11-20T00:00:01.500Z",
)
IDLE = change(TASK, current_run_id=None)
"""No agent works on it, so silence is not reported."""


@pytest.mark.requirement("VAL-9")
def test_every_reason_cites_the_fact_that_it_is_made_of() -> None:
    scope: Scope = FULL_SCOPE
    events = [
        Event(
            f"ev_{n}", "2026-11-21T00:00:00.000Z", "rt", Fact(scope, cast("Any", sample(kind))), n
        )
        for n, kind in enumerate(REASONS, 1)
    ]
    at = change(TASK.attempts[0], last_seen_at="2026-11-21T00:00:00.000Z")
    found = explain_task(change(TASK, attempts=(at,)), events, parse_ms(at.last_seen_at))
    told = [*found.agent, *found.waiting, *found.messages, *found.policy, *found.limits]
    told += [*found.retries, *found.end]
    assert sorted(reason.fact.sequence for reason in told) == [event.sequence for event in events]
    assert all(reason.text for reason in told)
    bare = explain_task(change(TASK, attempts=(at,)), [], parse_ms(at.last_seen_at))
    assert bare.marks["agent"].state is MarkState.UNKNOWN
    assert bare.marks["policy"].state is MarkState.UNKNOWN


@pytest.mark.requirement("ST-19", "CF-16", "SNAP-21")
def test_silent_run_is_shown_as_stale_with_its_lag_and_the_last_known_status() -> None:
    at = change(TASK.attempts[0], last_seen_at="2026-11-21T00:00:00.000Z")
    task = change(TASK, attempts=(at,))
    seen_ms = parse_ms(at.last_seen_at)
    assert show_task(task, seen_ms + QUIET_MS).status is Status.RUNNING
    late = show_task(task, seen_ms + QUIET_MS + 1)
    assert (late.status, late.recorded) == (Status.STALE, Status.RUNNING)
    assert late.marks["status"].behind_ms == QUIET_MS + 1
    unread = show_task(change(task, stale_from=7), seen_ms)
    assert unread.marks["status"].state is MarkState.STALE


def event(payload: object, sequence: int = 1) -> Event:
    at = "2026-11-21T00:00:00.000Z"
    return Event(f"ev_{sequence}", at, "rt", Fact(FULL_SCOPE, cast("Any", payload)), sequence)


def test_routing_counts_what_was_met_and_adds_up_what_it_costs() -> None:
    said = [
        CandidatesResolved((Candidate("a", 2), Candidate("b", 1))),
        FallbackApplied("a", "b", "failed", 2),
        sample(RateLimitHit),
        sample(QuotaLow),
        sample(QuotaBlocked),
        change(sample(CostEstimated), currency="EUR", amount_micros=5),
        change(sample(CostEstimated), currency="EUR", amount_micros=6),
        change(sample(CostRecorded), currency="USD", amount_micros=7),
    ]
    found = show_routing(TASK, [event(one, n) for n, one in enumerate(said, 1)])
    assert (found.candidate_count, len(found.fallbacks)) == (2, 1)
    assert found.limits == LimitState(1, 1, 1)
    assert found.costs == (CostState("EUR", 11, 0), CostState("USD", 0, 7))
    # The fact with the agent that the caller named is not among these.
    assert {name: mark.state for name, mark in found.marks.items()} == {
        "profile": MarkState.UNKNOWN,
        "decision": MarkState.UNKNOWN,
    }
    chosen = show_routing(
        TASK, [event(sample(TaskProfileResolved)), event(SingleCandidate("a"), 2)]
    )
    assert (chosen.candidate_count, chosen.profile) == (1, sample(TaskProfileResolved))
    assert "candidateCount" not in chosen.marks


def test_routing_of_a_task_without_an_agent_is_marked() -> None:
    bare = change(TASK, attempts=(), assignee=None, current_run_id=None, queued=None)
    created = sample(TaskCreated)
    found = show_routing(bare, [event(created)])
    assert found.marks["peer"].state is MarkState.UNKNOWN
    assert found.marks["policy"].state is MarkState.NOT_APPLICABLE
    assert found.marks["decision"].state is MarkState.NOT_APPLICABLE


def test_attempts_mark_what_is_missing() -> None:
    bare = change(
        TASK.attempts[0],
        run_id="run_1",
        ended_at=None,
        remote_task_id=None,
        native_status=None,
        output_refs=(),
        checkpoint_refs=(),
        steps=0,
    )
    now_ms = parse_ms("2026-11-21T00:00:00.000Z")
    quiet = change(bare, last_seen_at="2026-11-21T00:00:00.000Z")
    live = list_attempts(change(TASK, attempts=(quiet,), current_run_id="run_1"), now_ms)
    assert {name.partition(".")[2] for name in live.marks} == {
        *("endedAt", "remoteTaskId", "nativeStatus", "outputRefs", "checkpointRefs")
    }
    full = list_attempts(change(TASK, current_run_id=None), now_ms)
    assert {name: mark.state for name, mark in full.marks.items()} == {
        "active": MarkState.NOT_APPLICABLE,
        f"{TASK.attempts[0].run_id}.checkpointRefs": MarkState.NOT_APPLICABLE,
    }
    none = list_attempts(change(TASK, attempts=(), current_run_id=None), now_ms)
    assert set(none.marks) == {"attempts", "active"}


def test_children_and_contexts_mark_what_is_unknown() -> None:
    bare = change(TASK.attempts[0], remote_task_id=None, remote_context_id=None)
    edge = change(TASK.relationships[0], items=None)
    edges = (
        change(edge, kind="child", target="task_2", status="open"),
        change(edge, kind="child", target="task_3", status="removed"),
        change(edge, kind="parent", target="task_4", status="open"),
    )
    task = change(TASK, attempts=(bare,), relationships=edges, family="delegation")
    found = list_subagents(task)
    assert found.children == ("task_2",)
    (one,) = found.subagents
    assert (one.recoverability, set(one.marks)) == (None, {"recoverability", "remoteContextId"})
    told = list_subagents(change(task, attempts=(TASK.attempts[0],))).subagents[0]
    assert (told.recoverability, told.marks) == ("recoverable", {})
    message = list_subagents(change(task, family="message")).subagents[0]
    assert message.recoverability == "message_only"


@pytest.mark.requirement("PO-4")
def test_jobs_of_a_task_are_counted_by_their_items_and_not_as_children() -> None:
    edge = change(TASK.relationships[0], kind="child", status="open")
    edges = (
        change(edge, target="task_2", items=None),
        change(edge, target="se_1", items=3),
        change(edge, target="se_2", items=5, status="satisfied"),
        change(edge, target="se_3", items=7, status="removed"),
    )
    task = change(TASK, relationships=edges, family="delegation")
    counted = count(task)
    assert (counted["childTasks"], counted["jobItems"]) == (1, 8)
    assert list_subagents(task).children == ("task_2",)
    assert task.jobs == ("se_1", "se_2")


def test_a_parent_that_is_linked_as_well_is_one_edge() -> None:
    linked = change(TASK.relationships[0], kind="parent", target="task_1")
    child = change(TASK, parent_task_id="task_1", relationships=(linked,), attempts=())
    assert [one.edge for one in draw_graph([child]).edges] == [linked]
    born = draw_graph([change(child, relationships=())]).edges
    assert [(one.edge.kind, one.edge.target, one.edge.status) for one in born] == [
        ("parent", "task_1", "open")
    ]
    assert draw_graph([change(child, parent_task_id=None, relationships=())]).edges == ()


def test_wait_without_a_question_is_for_the_agent() -> None:
    waiting = change(
        TASK,
        status=Status.WAITING_RESOURCE,
        open_actions=(),
        relationships=(),
        status_reason="no slot",
    )
    (blocked,) = list_blocked([waiting, change(TASK, status=Status.COMPLETED)])
    assert [(one.kind, one.target, one.reason) for one in blocked.blockers] == [
        ("dependency", "agent:word", "no slot")
    ]
    assert list_blocked([change(waiting, status=Status.RUNNING)]) == ()


def test_an_end_without_a_fact_is_unknown_and_an_end_to_come_is_none() -> None:
    ended = explain_task(change(TASK, status=Status.FAILED), [], 0)
    assert ended.marks["end"].state is MarkState.UNKNOWN
    retried = change(TASK, attempts=TASK.attempts * 2, status=Status.COMPLETED)
    assert "retries" not in explain_task(retried, [], 0).marks


def test_a_history_lists_messages_and_failures() -> None:
    said = [
        RunStatus(native_status="WORKING", text="x" * 600, message_id="m-1"),
        RunStatus(native_status="WORKING"),
        sample(TurnFailed),
        sample(TurnSubmitted),
        sample(TurnCompleted),
        sample(ArtifactChanged),
    ]
    events = [event(one, n) for n, one in enumerate(said, 1)]
    window = show_history(events, 1, 6, 1)
    assert [item.kind for item in window.items] == [
        *("said", "failure", "message", "answer", "artifact")
    ]
    assert (len(window.items[0].text or ""), window.items[0].ref) == (500, "m-1")
    assert window.marks["before"].state is MarkState.NOT_APPLICABLE
    trimmed = show_history(events, 1, 6, 4)
    assert (trimmed.first, trimmed.marks["before"].state) == (4, MarkState.UNAVAILABLE)
    assert show_history(events, 3, 6, 1).before == 3


def test_a_list_marks_what_is_left_out() -> None:
    shown = show_tasks("se_1", 9, [IDLE], 0, left_out=3)
    assert {name: mark.state for name, mark in shown.marks.items()} == dict.fromkeys(
        ("summary", "terminal", "failed", "tasks"), MarkState.UNAVAILABLE
    )
    archived = change(IDLE, status=Status.ARCHIVED)
    kept = show_tasks("se_1", 9, [archived, change(archived, last_error=None)], 0)
    assert (kept.summary.terminal, kept.summary.failed, kept.marks) == (2, 1, {})
    thread = change(sample(ThreadRecord), thread_id=IDLE.thread_id or "", last_outcome=None)
    model = show_thread(thread, [IDLE, change(IDLE, thread_id="th_other")], 9, 0, left_out=2)
    assert (len(model.tasks), set(model.marks)) == (1, {"lastOutcome", "tasks"})
    session = change(sample(SessionRecord), thread_count=3)
    window = show_history([], 1, 0, 1)
    listed = show_session(session, [thread], window, "cursor", ["task_1", "act_1"])
    assert (listed.open_tasks, listed.open_actions) == (("task_1",), ("act_1",))
    assert listed.marks["threads"].reason == "2 older threads are not listed"
    unnamed = show_session(change(session, title=None, thread_count=1), [thread], window, "cursor")
    assert set(unnamed.marks) == {"title"}


def test_steps_and_todos_are_as_far_as_a_task_has_them() -> None:
    other = Event(
        "ev_3",
        "2026-11-21T00:00:00.000Z",
        "rt",
        Fact(replace(FULL_SCOPE, task_id="task_other"), sample(TurnFailed)),
        3,
    )
    events = [event(sample(RunStatus), 1), event(sample(ArtifactChanged), 2), other]
    task = change(IDLE, task_id="task_1", progress=change(IDLE.progress, checklist=()))
    found = show_objects(task, events, 0)
    (step,) = found.steps
    assert (step.first, step.last, step.classes) == (1, 2, ("run.status", "artifact.changed"))
    assert set(found.marks) == {"jobs", "todos"}
    with_list = change(task, progress=change(task.progress, checklist=({"text": "a"},)))
    assert show_objects(with_list, [], 0).todos == ({"text": "a"},)


def test_unnamed_artifacts_and_missing_versions_are_marked() -> None:
    task = change(TASK, task_id="task_1", artifact_count=3)
    found = list_artifacts(task, [])
    assert found.marks["artifacts"].reason == "2 more are not named in the record"
    assert found.artifacts[0].marks["versions"].state is MarkState.UNAVAILABLE
    none = list_artifacts(change(task, artifacts=(), artifact_count=0), [])
    assert none.marks["artifacts"].state is MarkState.NOT_APPLICABLE
    waiting = list_artifacts(change(task, coverage=None, acceptance=({"artifact": {}},)), [])
    bare = list_artifacts(change(task, coverage=None, acceptance=()), [])
    assert waiting.marks["issues"].reason != bare.marks["issues"].reason
    ref = task.artifacts[0]
    version = change(
        sample(ArtifactChanged), artifact_id=ref.artifact_id, version=1, replaces="art_before"
    )
    whole = list_artifacts(
        change(task, artifacts=(change(ref, version=1),), artifact_count=1), [event(version)]
    )
    assert whole.artifacts[0].replaces == "art_before"
    assert (whole.marks, [one.version for one in whole.artifacts[0].versions]) == ({}, [1])
    assert "versions" not in whole.artifacts[0].marks


def test_a_task_row_marks_waits_and_missing_members() -> None:
    waiting = change(TASK, status=Status.WAITING_INPUT, open_actions=("act_1",))
    assert "act_1" in show_task(waiting, 0).marks["progress"].reason
    done = show_task(change(TASK, status=Status.COMPLETED), 0)
    assert (done.progress.phase, set(done.marks)) == (None, {"progress.phase"})
    assert done.marks["progress.phase"].state is MarkState.NOT_APPLICABLE
    bare = change(TASK, status=Status.COMPLETED, ended_at=None, delivery={})
    assert {"endedAt", "delivery"} <= set(show_task(bare, 0).marks)


def test_context_delivery_and_queue_mark_what_does_not_apply() -> None:
    assert {mark.state for mark in show_context(TASK).marks.values()} == {MarkState.NOT_APPLICABLE}
    told = show_delivery(change(TASK, delivery={}, status=Status.COMPLETED))
    open_one = show_delivery(change(TASK, delivery={}, status=Status.RUNNING))
    assert [*told.marks.values()] != [*open_one.marks.values()]


@pytest.mark.requirement("GR-6")
def test_thread_that_runs_a_task_is_an_edge_from_its_start_on() -> None:
    bare = change(TASK, relationships=())
    (born,) = link_thread(bare).relationships
    at = TASK.started_at
    assert (born.kind, born.target, born.status) == ("assigned_thread", TASK.thread_id, "open")
    assert (born.created_at, born.updated_at) == (at, at)
    for other in (change(bare, started_at=None), change(bare, thread_id=None)):
        assert link_thread(other) is other
    said = change(bare, relationships=(change(born, target="th_other"),))
    assert link_thread(said) is said
