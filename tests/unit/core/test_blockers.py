"""What a task waits for, from its record and its open questions: seven kinds and no vague one (CF-8)."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from passerelle.core.payloads.approval import (
    ApprovalRequest,
    Origin,
    PermissionEvaluated,
    TrailStep,
)
from passerelle.core.payloads.task import BlockerKind, TaskBlocked
from passerelle.core.read_models.blockers import (
    AskedQuestion,
    Blocker,
    find_blockers,
    list_asking_rules,
    list_blocked,
)
from passerelle.core.task.record import ArtifactRef, Edge, TaskRecord
from passerelle.core.task.status import ENDED, WAITING, Status
from passerelle.core.wire.record import change
from tests.support.approvals import Stream, make_input, make_request
from tests.support.payloads import sample

LATER = "2026-11-20T00:01:00.000Z"
_RUN = sample(TaskRecord).attempts[0]
RUN = change(_RUN, worker=change(_RUN.worker, peer="echo"), send_after=None)
TASK = change(
    sample(TaskRecord),
    status=Status.WAITING_INPUT,
    status_reason="in short",
    current_run_id=RUN.run_id,
    attempts=(RUN,),
    relationships=(),
    artifacts=(),
    queued=None,
    open_actions=(),
)
FILE = change(sample(ArtifactRef), artifact_id="art_1", stored=False)


def wait_for(request: ApprovalRequest, **changes: Any) -> tuple[Blocker, ...]:  # noqa: ANN401  members of a record
    """The blockers of a task whose one question is open."""
    question = Stream().open(request)
    task = change(TASK, **{"open_actions": (request.action_id,), **changes})
    return find_blockers(task, {request.action_id: AskedQuestion(question)})


def _sign_in() -> ApprovalRequest:
    return make_input(1, kind="auth", title="sign in", on_timeout="cancel_task")


def edge(target: str, status: str = "open", reason: str | None = None) -> Edge:
    return Edge(f"blocked_by:{target}", "blocked_by", target, status, LATER, LATER, reason)  # type: ignore[arg-type]  # one of three words


@pytest.mark.requirement("CF-8")
def test_there_are_seven_kinds_and_a_fact_has_the_same() -> None:
    kinds = get_args(BlockerKind)
    assert sorted(kinds) == [
        *("action", "context", "credential", "dependency", "policy", "quota", "tool")
    ]
    for kind in kinds:
        assert TaskBlocked("task_1", kind, "so").blocker_kind == kind


@pytest.mark.requirement("CF-8")
@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({}, "action"),
        ({"action_type": "credential"}, "action"),
        ({"kind": "input", "action_type": "free_input"}, "action"),
        ({"kind": "auth", "action_type": "credential"}, "credential"),
        ({"kind": "auth", "origin": Origin("local", "worker", "echo")}, "credential"),
        ({"action_type": "delegation"}, "action"),
        ({"action_type": "delegation", "origin": Origin("outbound", "gateway", "x")}, "policy"),
        (
            {
                "kind": "input",
                "action_type": "free_input",
                "origin": Origin("outbound", "gateway", "x"),
            },
            "context",
        ),
        (
            {
                "kind": "confirmation",
                "action_type": "free_input",
                "origin": Origin("local", "gateway", "x"),
            },
            "action",
        ),
        ({"origin": Origin("local", "worker", "x")}, "action"),
        ({"action_type": "cancel_task", "origin": Origin("control", "principal")}, "action"),
    ],
)
def test_kind_of_a_blocker_follows_from_its_question(changes: dict[str, Any], kind: str) -> None:
    if changes.get("kind") == "auth":
        changes = {"on_timeout": "cancel_task", **changes}
    in_words = changes.get("kind") in {"input", "auth"}
    request = (make_input if in_words else make_request)(1, **changes)
    (found,) = wait_for(request)
    assert (found.kind, found.target, found.reason) == (kind, request.action_id, request.title)
    assert found.until is None


@pytest.mark.requirement("CF-8")
def test_each_question_is_a_blocker_and_an_unread_one_is_an_action() -> None:
    sign_in, which = _sign_in(), make_input(2, title="which?")
    known = {one.action_id: AskedQuestion(Stream().open(one)) for one in (sign_in, which)}
    task = change(TASK, open_actions=(sign_in.action_id, which.action_id, "act_3"))
    assert find_blockers(task, known) == (
        Blocker("credential", sign_in.action_id, "sign in"),
        Blocker("action", which.action_id, "which?"),
        Blocker("action", "act_3", "in short"),
    )


@pytest.mark.requirement("CF-8")
def test_rules_that_want_an_approval_are_named() -> None:
    ours = Origin("outbound", "gateway", "echo")
    request = make_request(1, action_type="delegation", origin=ours)
    steps = (
        TrailStep("rule", "ask", "vault"),
        TrailStep("rule", "allow", "whoever"),
        TrailStep("hook", "ask", "night"),
        TrailStep("rule", "ask", "night"),
    )
    judged = change(sample(PermissionEvaluated), rules=("night", "whoever", "vault"), trail=steps)
    assert list_asking_rules(judged) == ("night", "vault")
    known = {request.action_id: AskedQuestion(Stream().open(request), list_asking_rules(judged))}
    task = change(TASK, status=Status.WAITING_PERMISSION, open_actions=(request.action_id,))
    (found,) = find_blockers(task, known)
    assert (found.kind, found.rules) == ("policy", ("night", "vault"))


@pytest.mark.requirement("CF-8")
def test_open_dependencies_are_listed_after_a_question() -> None:
    request = make_input()
    edges = (edge("task_1", reason="order"), edge("task_2", "satisfied"), edge("task_3", "removed"))
    found = wait_for(request, relationships=edges)
    assert [(one.kind, one.target, one.reason) for one in found] == [
        ("action", request.action_id, request.title),
        ("dependency", "task_1", "order"),
    ]


@pytest.mark.requirement("CF-8")
@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        # A message that the agent does not take now.
        (
            {
                "status": Status.WAITING_RESOURCE,
                "attempts": (change(RUN, send_after=LATER),),
                "artifacts": (FILE,),
            },
            Blocker("dependency", "agent:echo", "in short", LATER),
        ),
        # A file that is not to be had.
        (
            {"status": Status.WAITING_RESOURCE, "artifacts": (FILE,)},
            Blocker("dependency", "art_1", "in short"),
        ),
        # A question that is closed, while the agent has sent nothing since.
        ({}, Blocker("dependency", "agent:echo", "the agent has not gone on since")),
        (
            {"status": Status.WAITING_PERMISSION},
            Blocker("dependency", "agent:echo", "the agent has not gone on since"),
        ),
        # Another task has completed, and this one is about to go on.
        (
            {"status": Status.BLOCKED, "relationships": (edge("task_1", "satisfied"),)},
            Blocker("dependency", "task_1", "in short"),
        ),
        ({"status": Status.BLOCKED}, Blocker("dependency", "agent:echo", "in short")),
    ],
)
def test_wait_without_a_question_names_its_target(
    changes: dict[str, Any], expected: Blocker
) -> None:
    assert find_blockers(change(TASK, **changes)) == (expected,)


@pytest.mark.requirement("CF-8")
@pytest.mark.parametrize("status", Status)
def test_whatever_waits_has_a_blocker_and_what_has_ended_or_goes_on_has_none(
    status: Status,
) -> None:
    bare = change(TASK, status=status)
    assert bool(find_blockers(bare)) is (status in WAITING)
    asking = change(bare, open_actions=("act_1",), relationships=(edge("task_1"),))
    assert len(find_blockers(asking)) == (0 if status in ENDED else 2)
    assert len(list_blocked([asking, bare])) == (status not in ENDED) + (status in WAITING)
