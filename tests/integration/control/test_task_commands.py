"""Commands to tasks, from their creation to their end, against stored state and real agents."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any, Final, cast

import anyio
import pytest

from passerelle.core.batch import EntityKind, EntityRef
from passerelle.core.commands import ListTasks
from passerelle.core.errors import (
    IdempotencyConflict,
    InvalidInput,
    NotFound,
    UnsupportedOperation,
    VersionMismatch,
)
from passerelle.core.facts import TaskBounds
from passerelle.core.oversight_requests import PauseAgent
from passerelle.core.payloads.task import TaskCreated, TaskProgress, TaskUpdated
from passerelle.core.principal import OWNER
from passerelle.core.task.status import Phase, Status
from passerelle.core.wire.json import Json, JsonObject
from tests.support.control_client import ControlClient, task_id_of
from tests.support.harness import ADA, BOB
from tests.support.scripted_peer import ScriptedResponse
from tests.support.scripted_tasks import Turn
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio


@pytest.mark.requirement("CMD-4", "TEV-1", "TEV-2", "TR-4", "TR-11", "TR-12", "TR-13")
async def test_a_created_task_has_its_given_members_and_no_run(control: ControlClient) -> None:
    task_id = await control.create(
        "count the boats\nin the harbour",
        priority=7,
        constraints={"maxCost": 3},
        profile={"latency": "low"},
        acceptance=[{"artifact": {"mediaType": "text/plain"}}],
        metadata={"ticket": "T-1"},
    )
    record = await control.record(task_id)
    assert (record.status, record.title, record.priority) == (
        Status.ACCEPTED,
        "count the boats",
        7,
    )
    assert (record.constraints, record.profile) == ({"maxCost": 3}, {"latency": "low"})
    assert record.acceptance == ({"artifact": {"mediaType": "text/plain"}},)
    assert (record.turn_id, record.attempts, record.metadata) == (None, (), {"ticket": "T-1"})
    assert await control.types(task_id) == ["thread.started", "task.created", "task.accepted"][-2:]
    assert control.harness.peer.messages == []


@pytest.mark.requirement("CMD-4", "CMD-30")
async def test_one_key_makes_one_task_and_another_body_is_a_conflict(
    control: ControlClient,
) -> None:
    given: JsonObject = {"agent": "echo", "objective": "once"}
    first = await control.do("create_task", "k-1", **given)
    again = await control.do("create_task", "k-1", **given)
    assert task_id_of(first) == task_id_of(again)
    assert (first["repeated"], again["repeated"]) == (False, True)
    with pytest.raises(IdempotencyConflict):
        await control.do("create_task", "k-1", agent="echo", objective="twice")


@pytest.mark.requirement("CMD-30")
async def test_a_key_is_scoped_to_its_resource(control: ControlClient) -> None:
    opened = cast("JsonObject", (await control.do("open_session", title="Keys"))["session"])
    # In one session, so in one shard, and in other sessions.
    near = [await control.create(sessionId=opened["sessionId"]) for _ in range(2)]
    tasks = [*near, *[await control.create() for _ in range(3)]]
    for task_id in tasks:
        answer = await control.do("pause_task", "lunch", taskId=task_id)
        assert answer["repeated"] is False
    for task_id in tasks:
        assert (await control.do("pause_task", "lunch", taskId=task_id))["repeated"] is True
        with pytest.raises(IdempotencyConflict):
            await control.do("resume_task", "lunch", taskId=task_id)
        assert (await control.types(task_id)).count("task.paused") == 1


@pytest.mark.requirement("ST-1", "TEV-2")
async def test_a_draft_is_in_no_list_of_callers_and_is_accepted_when_it_starts(
    control: ControlClient,
) -> None:
    task_id = await control.create(draft=True)
    assert (await control.record(task_id)).status is Status.DRAFT
    page = await control.harness.service.read(ADA, ListTasks("echo"))
    assert (page["tasks"], page["totalSize"]) == ([], 0)
    assert "task.accepted" not in await control.types(task_id)
    with pytest.raises(UnsupportedOperation):
        await control.do("pause_task", taskId=task_id)
    await control.do("start_task", "s", taskId=task_id)
    await control.until(task_id, Status.COMPLETED)
    assert (await control.types(task_id)).count("task.accepted") == 1


@pytest.mark.requirement("CMD-6", "EVC-3")
async def test_a_started_task_sends_its_objective_once(control: ControlClient) -> None:
    task_id = await control.create("say this")
    first = await control.do("start_task", "s", taskId=task_id)
    again = await control.do("start_task", "s", taskId=task_id)
    assert (first["repeated"], again["repeated"]) == (False, True)
    record = await control.until(task_id, Status.COMPLETED)
    assert control.harness.peer.texts == ["say this"]
    (attempt,) = record.attempts
    assert (attempt.worker.peer, attempt.ordinal) == ("echo", 1)
    types = await control.types(task_id)
    assert types.index("turn.submitted") < types.index("task.attempt.started")
    assert types.index("task.attempt.started") < types.index("task.completed")
    with pytest.raises(UnsupportedOperation):
        await control.do("start_task", "s-2", taskId=task_id)


@pytest.mark.parametrize("full", [False, True])
async def test_a_submitted_task_is_not_started_twice(control: ControlClient, *, full: bool) -> None:
    # The agent reports SUBMITTED, and nothing after that.
    task_id = await control.start("silent")
    before = await control.until(task_id, Status.QUEUED)
    if full:
        await control.harness.service.execute(OWNER, PauseAgent("echo"), None)
    with pytest.raises(UnsupportedOperation, match="agent echo has the task already"):
        await control.do("start_task", taskId=task_id)
    after = await control.record(task_id)
    assert (after.current_run_id, after.attempts) == (before.current_run_id, before.attempts)
    assert control.harness.peer.texts == ["silent"]


@pytest.mark.parametrize("restarted", [False, True])
async def test_a_refused_start_leaves_a_task_that_its_agent_has_unchanged(
    control: ControlClient, *, restarted: bool
) -> None:
    """The start first waits for a card that has not been read yet; reading it does not change the task."""
    begins = asyncio.Event()

    async def begin_late(turn: Turn) -> None:
        await turn.open()
        await begins.wait()
        await turn.status("WORKING")
        await turn.artifact("done")
        await turn.status("COMPLETED")

    control.harness.peer.next(begin_late)
    task_id = await control.start("later")
    before = await control.until(task_id, Status.QUEUED)
    if restarted:
        await control.harness.restart()
    for agent in ("other", "echo"):
        with pytest.raises(UnsupportedOperation, match="agent echo has the task already"):
            await control.do("start_task", f"to {agent}", taskId=task_id, agent=agent)
        after = await control.record(task_id)
        assert (after.status, after.current_run_id) == (Status.QUEUED, before.current_run_id)
    if restarted:
        await control.harness.parts.dispatch.adopt(EntityRef(EntityKind.TASK, task_id))
    begins.set()
    await control.until(task_id, Status.COMPLETED)


@pytest.mark.requirement("CMD-6", "TR-9", "TEV-5")
async def test_a_task_goes_to_its_assignee(control: ControlClient) -> None:
    task_id = await control.create()
    await control.do("update_task", taskId=task_id, assignee="other")
    (updated,) = [
        event.fact.payload
        for event in await control.events(task_id)
        if isinstance(event.fact.payload, TaskUpdated)
    ]
    assert updated.changed == {"assignee": {"old": "echo", "new": "other"}}
    await control.do("start_task", "s", taskId=task_id, text="in other words")
    record = await control.until(task_id, Status.COMPLETED)
    assert record.assignee == "other"
    assert control.harness.peers["other"].texts == ["in other words"]
    assert control.harness.peer.messages == []


@pytest.mark.requirement("CMD-5", "TR-8")
async def test_what_describes_a_task_changes_against_the_version_that_was_read(
    control: ControlClient,
) -> None:
    task_id = await control.create()
    read = await control.do("get_task", taskId=task_id)
    changes: JsonObject = {
        "title": "boats",
        "objective": "count them",
        "priority": 3,
        "constraints": {"maxCost": 1},
        "profile": {"latency": "high"},
        "acceptance": [{"artifact": {"name": "list"}}],
        "metadata": {"ticket": 2},
    }
    answer = await control.do("update_task", taskId=task_id, version=read["version"], **changes)
    stored = await control.do("get_task", taskId=task_id)
    assert {name: stored[name] for name in changes} == changes
    assert stored["version"] == answer["version"]
    with pytest.raises(VersionMismatch):
        await control.do("update_task", taskId=task_id, version=read["version"], title="late")
    same = await control.do("update_task", taskId=task_id, title="boats")
    assert same["version"] == answer["version"]


@pytest.mark.requirement("CMD-5", "LT-12")
async def test_an_ended_task_cannot_be_updated(control: ControlClient) -> None:
    task_id = await control.start()
    await control.until(task_id, Status.COMPLETED)
    with pytest.raises(UnsupportedOperation):
        await control.do("update_task", taskId=task_id, title="too late")


@pytest.mark.requirement("CMD-5")
async def test_content_over_the_record_limit_is_refused_by_name(control: ControlClient) -> None:
    task_id = await control.create()
    with pytest.raises(InvalidInput) as refused:
        await control.do("update_task", taskId=task_id, metadata={"x": "y" * 9_000})
    assert refused.value.field == "metadata"


@pytest.mark.requirement("CMD-7", "TR-14", "TEV-6")
async def test_progress_is_merged_and_each_call_is_one_fact(control: ControlClient) -> None:
    task_id = await control.create()
    await control.do("append_task_progress", taskId=task_id, percent=10, counters={"rows": 1})
    await control.do("append_task_progress", taskId=task_id, step="2 of 4", counters={"files": 2})
    await control.do("append_task_progress", taskId=task_id, percent=50, outputs=["s3://b/part-1"])
    await control.do(
        "append_task_progress", taskId=task_id, phase="verifying", summary="half of it"
    )
    await control.do("append_task_progress", taskId=task_id, counters={"rows": 7})
    await control.do("append_task_progress", taskId=task_id, consumer="ui", delivery="queued")
    progress = (await control.record(task_id)).progress
    assert (progress.percent, progress.step) == (50, "2 of 4")
    assert (progress.phase, progress.summary) == ("verifying", "half of it")
    assert progress.counters == {"rows": 7, "files": 2}
    assert progress.outputs == ("s3://b/part-1",)
    assert (await control.record(task_id)).delivery == {"ui": "queued"}
    assert (await control.types(task_id)).count("task.progress") == 6
    with pytest.raises(InvalidInput):
        await control.do("append_task_progress", taskId=task_id)
    with pytest.raises(InvalidInput):
        await control.do("append_task_progress", taskId=task_id, consumer="ui")


@pytest.mark.requirement("PO-3", "AP-1", "OBJ-5")
async def test_a_checklist_is_shown_and_a_complete_one_does_not_end_the_task(
    control: ControlClient,
) -> None:
    task_id = await control.start("silent")
    await control.until(task_id, Status.QUEUED)
    items = ["read", "write", "check"]
    for done in range(len(items) + 1):
        checklist: list[Json] = [{"text": one, "done": items.index(one) < done} for one in items]
        await control.do(
            "append_task_progress", taskId=task_id, checklist=checklist, step=f"{done} of 3"
        )
        line: Any = await control.do("get_task_summary", taskId=task_id)
        assert (line["progress"]["checklist"], line["progress"]["step"]) == (
            checklist,
            f"{done} of 3",
        )
    record = await control.record(task_id)
    assert (record.status, record.ended_at) == (Status.QUEUED, None)
    assert record.run is not None


@pytest.mark.requirement("CMD-8", "ST-10")
async def test_message_that_a_busy_agent_refused_is_not_resent_while_its_task_is_paused(
    control: ControlClient,
) -> None:
    peer = control.harness.peer
    peer.answer_next(ScriptedResponse(503, headers={"Retry-After": "60"}))
    task_id = await control.start()
    await control.until(task_id, Status.WAITING_RESOURCE)
    await control.do("pause_task", taskId=task_id)
    driver = control.harness.parts.dispatch.find(task_id)
    assert driver is not None
    for after_ms in (61_000, 0):
        await control.harness.run_due("send", task_id, after_ms=after_ms)
        await wait_until(lambda: not driver.is_woken, 15, "the driver looks")
    assert (len(peer.messages), (await control.record(task_id)).status) == (1, Status.PAUSED)
    await control.do("resume_task", taskId=task_id)
    await control.until(task_id, Status.COMPLETED)
    assert len(peer.messages) == 2


@pytest.mark.requirement("CMD-8", "TEV-9", "ST-10")
async def test_nothing_is_sent_for_a_paused_task_and_it_completes_only_after_its_resume(
    control: ControlClient,
) -> None:
    peer = control.harness.peer
    peer.hold()
    task_id = await control.start("chunks 2")
    await wait_until(lambda: peer.messages, 15, "the agent has the message")
    peer.release(1)

    async def is_known() -> bool:
        run = (await control.record(task_id)).run
        return run is not None and run.remote_task_id is not None

    await wait_until(is_known, 15, "the agent's task is known")
    before = await control.record(task_id)
    paused = await control.do("pause_task", taskId=task_id, reason="lunch")
    assert cast("JsonObject", paused["task"])["status"] == "paused"
    calls = len(peer.requests)
    peer.release_all()
    (remote,) = peer.tasks.values()
    await wait_until(lambda: "COMPLETED" in str(remote.record["status"]), 15, "the agent finishes")
    driver = control.harness.parts.dispatch.find(task_id)
    assert driver is not None
    driver.wake()
    await driver.run.refresh()
    held = await control.record(task_id)
    assert (held.status, held.artifacts, len(peer.requests)) == (Status.PAUSED, (), calls)
    await control.do("resume_task", taskId=task_id)
    after = await control.until(task_id, Status.COMPLETED)
    assert [attempt.run_id for attempt in after.attempts] == [
        attempt.run_id for attempt in before.attempts
    ]
    types = await control.types(task_id)
    assert (types.count("task.paused"), types.count("task.resumed")) == (1, 1)
    assert types.index("task.resumed") < types.index("task.completed")


@pytest.mark.requirement("CMD-8")
async def test_a_message_response_is_held_back_while_the_task_is_paused(
    control: ControlClient,
) -> None:
    peer = control.harness.peer

    async def answer_late(turn: Turn) -> None:
        await control.do("pause_task", taskId=task_id)
        await turn.answer("a bare message")

    peer.next(answer_late)
    task_id = await control.create("message")
    await control.do("start_task", "s", taskId=task_id)
    await control.until(task_id, Status.PAUSED)
    await control.do("resume_task", taskId=task_id)
    record = await control.until(task_id, Status.COMPLETED)
    assert record.family == "message"
    assert len(record.attempts) == 1


@pytest.mark.requirement("CMD-8")
async def test_a_resumed_task_returns_to_its_status(control: ControlClient) -> None:
    accepted = await control.create()
    await control.do("pause_task", taskId=accepted)
    with pytest.raises(UnsupportedOperation):
        await control.do("start_task", "s", taskId=accepted)
    await control.do("resume_task", taskId=accepted)
    assert (await control.record(accepted)).status is Status.ACCEPTED
    asked = await control.start("ask which?")
    await control.until(asked, Status.WAITING_INPUT)
    await control.do("pause_task", taskId=asked)
    await control.do("resume_task", taskId=asked)
    assert (await control.record(asked)).status is Status.WAITING_INPUT
    (action,) = (await control.record(asked)).open_actions
    view = await control.do("get_action", actionId=action)
    await control.do("pause_task", taskId=asked)
    await control.do(
        "respond_action",
        "d",
        actionId=action,
        rev=view["rev"],
        digest=view["digest"],
        decisionId="dec_1",
        content={"text": "this one"},
    )
    assert (await control.record(asked)).status is Status.PAUSED
    assert len(control.harness.peer.messages) == 1
    await control.do("resume_task", taskId=asked)
    await control.until(asked, Status.COMPLETED)


@pytest.mark.requirement("CMD-9", "MK-10", "MK-12")
async def test_outcome_of_a_cancel_names_the_state_of_the_task(control: ControlClient) -> None:
    task_id = await control.create()
    first = await control.do("cancel_task", taskId=task_id, reason="never mind")
    assert first["outcome"] == "requested"
    assert (await control.record(task_id)).status is Status.CANCELLED
    assert await control.types(task_id) == [
        "task.created",
        "task.accepted",
        "task.cancel_requested",
        "task.cancelled",
    ]
    assert control.harness.peer.requests == []
    second = await control.do("cancel_task", taskId=task_id)
    done = await control.start()
    await control.until(done, Status.COMPLETED)
    third = await control.do("cancel_task", taskId=done)
    fourth = await control.do("cancel_task", taskId="task_000000000000000000000000000")
    assert [one["outcome"] for one in (second, third, fourth)] == [
        "already_cancelled",
        "already_done",
        "not_found",
    ]
    with pytest.raises(InvalidInput):
        await control.do("cancel_task", taskId="")


@pytest.mark.requirement("CMD-9", "TR-2")
async def test_children_are_cancelled_with_their_parent(control: ControlClient) -> None:
    parent = await control.start("silent")
    children = [await control.create("silent", parentTaskId=parent) for _ in range(2)]
    grandchild = await control.create("silent", parentTaskId=children[0])
    for child in (*children, grandchild):
        assert (await control.record(child)).root_task_id == parent
        await control.do("start_task", f"s {child}", taskId=child)
    family = (parent, *children, grandchild)

    async def are_known() -> bool:
        runs = [(await control.record(one)).run for one in family]
        return all(run is not None and run.remote_task_id for run in runs)

    await wait_until(are_known, 15, "the agent works on all of them")
    await control.do("cancel_task", taskId=parent, propagation="subtree")
    for one in family:
        await control.until(one, Status.CANCELLED)
    assert control.harness.peer.count("CancelTask") == len(family)


@pytest.mark.requirement("CMD-9")
async def test_a_cancel_without_propagation_ends_the_task_and_reaches_no_agent(
    control: ControlClient,
) -> None:
    task_id = await control.start("silent")
    await control.until(task_id, Status.QUEUED)
    await control.do("cancel_task", taskId=task_id, propagation="none", reason="enough")
    record = await control.record(task_id)
    assert (record.status, record.attempts[-1].status) == (Status.CANCELLED, Status.CANCELLED)
    types = await control.types(task_id)
    assert types.index("task.cancel_requested") < types.index("task.cancelled")
    (remote,) = control.harness.peer.tasks.values()
    remote.status("COMPLETED", "late")
    assert control.harness.parts.dispatch.find(task_id) is None
    assert control.harness.peer.count("CancelTask") == 0
    assert (await control.record(task_id)).last == record.last
    assert not [row for row in await control.harness.due(task_id) if task_id in row]


@pytest.mark.requirement("CMD-11")
async def test_a_task_is_completed_only_with_every_fact(control: ControlClient) -> None:
    task_id = await control.start("slow 60")
    await control.until(task_id, Status.RUNNING)
    with pytest.raises(UnsupportedOperation) as refused:
        await control.do("complete_task", taskId=task_id)
    assert refused.value.details["missing"] == "the agent has not ended the run"


@pytest.mark.requirement("CMD-11", "TEV-14")
async def test_a_task_failed_by_its_owner_is_failed_for_callers_and_cancelled_at_the_agent(
    control: ControlClient,
) -> None:
    task_id = await control.start("silent")

    async def is_shown() -> bool:
        return (await control.record(task_id)).shown

    await wait_until(is_shown, 15, "callers see the task")
    failed = await control.do(
        "fail_task", "f", taskId=task_id, code="obsolete", reason="not needed"
    )
    again = await control.do("fail_task", "f", taskId=task_id, code="obsolete", reason="not needed")
    assert (failed["repeated"], again["repeated"]) == (False, True)
    record = await control.record(task_id)
    assert record.last_error is not None
    assert (record.status, record.last_error.code) == (Status.FAILED, "obsolete")
    await wait_until(
        lambda: control.harness.peer.count("CancelTask"), 15, "the agent receives the cancel"
    )
    with pytest.raises(UnsupportedOperation):
        await control.do("fail_task", "g", taskId=task_id)


@pytest.mark.requirement("TR-10", "CMD-12")
async def test_tasks_of_other_owners_do_not_exist(control: ControlClient) -> None:
    task_id = await control.create()
    for method in ("get_task", "pause_task", "start_task", "complete_task"):
        with pytest.raises(NotFound):
            await control.do(method, "k", BOB, taskId=task_id)
    assert (await control.do("cancel_task", None, BOB, taskId=task_id))["outcome"] == "not_found"
    assert (await control.do("list_tasks", None, BOB))["tasks"] == []


@pytest.mark.requirement("TR-9", "TEV-5")
async def test_reassigned_task_changes_only_its_assignee(control: ControlClient) -> None:
    task_id = await control.create()
    before = await control.record(task_id)
    await control.do("update_task", taskId=task_id, assignee="other")
    after = await control.record(task_id)
    changed = {
        name
        for name in type(before).__dataclass_fields__
        if getattr(before, name) != getattr(after, name)
    }
    assert changed <= {"assignee", "last", "updated_at"}
    assert (after.requested_by, after.owner) == (before.requested_by, before.owner)
    assert (before.assignee, after.assignee) == ("echo", "other")


SCOPE: Final[dict[str, Json]] = {
    "workspace": "w-1",
    "project": "p-1",
    "thread": "t-1",
    "account": "acme",
    "environment": "staging",
    "host": "container-7",
}


@pytest.mark.requirement("CMD-4", "TR-10")
async def test_scope_of_a_created_task_is_kept_and_shown(control: ControlClient) -> None:
    task_id = await control.create("count", scope=SCOPE)
    (created,) = [
        event.fact.payload
        for event in await control.events(task_id)
        if isinstance(event.fact.payload, TaskCreated)
    ]
    assert created.scope == TaskBounds(**{name: str(value) for name, value in SCOPE.items()})
    await control.harness.restart()
    shown = await control.do("get_task", taskId=task_id)
    scope = shown["scope"]
    assert isinstance(scope, dict)
    assert {name: scope[name] for name in SCOPE} == SCOPE
    assert (scope["principal"], scope["contextId"]) == (ADA.id, created.context_id)
    plain = await control.do("get_task", taskId=await control.create("count"))
    assert not SCOPE.keys() & cast("JsonObject", plain["scope"]).keys()


@pytest.mark.requirement("CMD-4", "TR-10")
@pytest.mark.parametrize(
    ("scope", "named"),
    [
        ({"workspace": ""}, "workspace"),
        ({"host": "h" * 256}, "host"),
        ({"project": 7}, "project"),
        ({"planet": "mars"}, "planet"),
    ],
)
async def test_scope_that_cannot_be_kept_is_refused_with_its_member(
    control: ControlClient, scope: dict[str, Json], named: str
) -> None:
    with pytest.raises(InvalidInput) as refused:
        await control.create("count", scope=scope)
    assert f"scope.{named}" in str(refused.value)
    assert (await control.do("list_tasks"))["tasks"] == []


@pytest.mark.requirement("PO-2")
@pytest.mark.parametrize("phase", [*Phase, "compiling", "code review", "build/linux-x64"])
async def test_phase_is_a_standard_or_a_custom_value(control: ControlClient, phase: str) -> None:
    task_id = await control.create("build it")
    await control.do("append_task_progress", taskId=task_id, phase=phase)
    await control.harness.restart()
    phases = [
        event.fact.payload.phase
        for event in await control.events(task_id)
        if isinstance(event.fact.payload, TaskProgress)
    ]
    assert phases == [phase]
    shown = await control.do("get_task", taskId=task_id)
    assert cast("JsonObject", shown["progress"])["phase"] == phase


@pytest.mark.requirement("PO-2")
@pytest.mark.parametrize("phase", ["", " x", "a\nb", "x" * 65, "\u001b[31m", 7])
async def test_malformed_phase_is_refused(control: ControlClient, phase: Json) -> None:
    task_id = await control.create("build it")
    with pytest.raises(InvalidInput, match="phase"):
        await control.do("append_task_progress", taskId=task_id, phase=phase)
    assert (await control.record(task_id)).progress.phase is None


@pytest.mark.requirement("PO-2")
async def test_task_whose_card_is_read_is_in_the_planning_phase(control: ControlClient) -> None:
    control.hold_card()
    task_id = await control.create("build it")
    async with anyio.create_task_group() as group:
        group.start_soon(partial(control.do, "start_task", "s", taskId=task_id))
        await control.until(task_id, Status.PREPARING)
        assert (await control.record(task_id)).progress.phase == Phase.PLANNING
        control.harness.peer.card_open.set()
    await control.until(task_id, Status.COMPLETED)
    phases = [
        event.fact.payload.phase
        for event in await control.events(task_id)
        if isinstance(event.fact.payload, TaskProgress) and event.fact.payload.phase
    ]
    assert phases[0] == Phase.PLANNING
