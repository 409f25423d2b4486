"""Jobs that a task delegates: what the task knows of them, and that they stop with it, over a real engine."""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

import pytest

from passerelle.core.batch import Batch, EntityKind, EntityRef
from passerelle.core.errors import (
    InvalidInput,
    NotFound,
    StoreUnavailable,
    UnsupportedOperation,
)
from passerelle.core.events import decode_event
from passerelle.core.ids import shard_of
from passerelle.core.payloads.job import JobCancelled, JobCreated
from passerelle.core.payloads.run import ArtifactChanged
from passerelle.core.payloads.task import TaskCreated, TaskDelegated, TaskProgress
from passerelle.core.ports.due import DueRow
from passerelle.core.task.status import Status
from passerelle.core.wire.json import Json
from passerelle.delegation.verification.walk import verify_store
from tests.integration.control.job_bench import Bench, keep
from tests.support.control_client import ControlClient
from tests.support.harness import BOB
from tests.support.scripted_tasks import Turn

pytestmark = pytest.mark.anyio

WAITS: Final = "ask which"


@pytest.fixture
def bench(control: ControlClient) -> Bench:
    return Bench(control)


async def list_delegated(control: ControlClient, task_id: str) -> list[tuple[str, str, int | None]]:
    """What a task has said that it delegates: kind, target, and how many items."""
    said = [event.fact.payload for event in await control.events(task_id)]
    return [
        (one.target_kind, one.target, one.items) for one in said if isinstance(one, TaskDelegated)
    ]


async def open_task(control: ControlClient, **params: Json) -> str:
    """A task that goes on by itself while what it delegates goes on."""
    task_id = await control.start(WAITS, **params)
    await control.until(task_id, Status.WAITING_INPUT)
    return task_id


async def find_cancelled(bench: Bench, job: str) -> JobCancelled:
    said = [
        decode_event(one.data, one.frame, one.facade).fact.payload
        for one in await bench.harness.entries(job)
    ]
    (cancelled,) = [one for one in said if isinstance(one, JobCancelled)]
    return cancelled


async def count_sent(bench: Bench, words: str) -> int:
    return sum(words in str(message["parts"]) for message in bench.harness.peer.messages)


@pytest.mark.requirement("TEV-18", "EXT-9", "GR-1", "SNAP-12")
async def test_task_names_the_job_that_it_delegates_and_the_job_its_task(bench: Bench) -> None:
    control, parent = bench.control, await open_task(bench.control)
    plain = await bench.make(["echo alone"])
    job = await bench.make(["echo one", "echo two", WAITS], parentTaskId=parent, mostFailed=1)
    assert await list_delegated(control, parent) == [("job", job, 3)]
    assert (await bench.show(job))["parentTaskId"] == parent
    assert "parentTaskId" not in await bench.show(plain)
    listed: Any = await control.do("list_jobs")
    assert {one["jobId"]: one.get("parentTaskId") for one in listed["jobs"]} == {
        job: parent,
        plain: None,
    }
    await bench.visit(job)
    graph: Any = await control.do("get_task_graph", taskId=parent)
    (edge,) = [one["edge"] for one in graph["edges"] if one["edge"]["target"] == job]
    assert (edge["kind"], edge["status"], edge["items"]) == ("child", "open", 3)
    objects: Any = await control.do("get_objects", taskId=parent)
    assert objects["jobs"] == [job]
    below: Any = await control.do("get_subagents", taskId=parent)
    assert below["children"] == []
    (line,) = below["jobs"]
    assert (line["jobId"], line["status"], line["items"]) == (job, "running", 3)
    assert (line["counts"]["completed"], line["counts"]["running"]) == (2, 1)
    assert (await bench.types(job))["job.created"] == 1
    (asks,) = await bench.table(job, state="running")
    await control.do("fail_task", taskId=asks["taskId"])
    assert (await bench.finish(job))["status"] == "completed"
    await bench.visit(job)
    assert f"job:{job}" not in await bench.harness.due(job)
    (edge,) = [one for one in (await control.record(parent)).relationships if one.target == job]
    assert (edge.status, edge.items) == ("satisfied", 3)
    assert len(await list_delegated(control, parent)) == 1
    await bench.finish(plain)
    assert (await verify_store(bench.harness.store, rebuild=True)).lines == []


@pytest.mark.requirement("TEV-18")
async def test_each_thing_that_a_task_delegates_is_said_by_its_kind(bench: Bench) -> None:
    control, parent = bench.control, await open_task(bench.control)
    child = await control.create("a part of it", parentTaskId=parent)
    spawned: Any = await control.do(
        "spawn_subagent", "s", agent="other", text="hello", parentTaskId=parent
    )
    job = await bench.make(["echo one", "echo two"], parentTaskId=parent)
    assert await list_delegated(control, parent) == [
        ("child_task", child, None),
        ("child_task", spawned["taskId"], None),
        ("subagent", spawned["subagent"]["subagentId"], None),
        ("job", job, 2),
    ]
    await bench.finish(job)


@pytest.mark.requirement("PO-4")
async def test_counters_are_what_is_counted_again_from_the_log(bench: Bench) -> None:
    control = bench.control

    async def work(turn: Turn) -> None:
        await turn.artifact("a part", artifact_id="one")
        await turn.artifact("another", artifact_id="two")
        await turn.status("INPUT_REQUIRED", "And now?")

    bench.harness.peer.next(work)
    parent = await control.start()
    await control.until(parent, Status.WAITING_INPUT)
    first = await control.create("a part of it", parentTaskId=parent)
    second = await control.create("another part", parentTaskId=parent)
    jobs = [
        await bench.make([f"echo {number}" for number in range(items)], parentTaskId=parent)
        for items in (1, 4)
    ]
    over = await bench.make(["echo hello"], agents=["echo", "other"], parentTaskId=parent)
    told: dict[str, Json] = {"tests": 3, "files": 1, "items": 7, "jobItems": 99, "childTasks": 99}
    await control.do("append_task_progress", taskId=parent, counters={"tests": 1, "files": 1})
    await control.do("append_task_progress", taskId=parent, counters=told)
    await control.do("unlink_tasks", taskId=parent, kind="child", target=second)
    for job in (*jobs, over):
        await bench.finish(job)
        await bench.visit(job)
    line: Any = await control.do("get_task_summary", taskId=parent)
    counted = line["progress"]["counters"]

    said = [event.fact.payload for event in await control.events(parent)]
    kinds = Counter(event.type for event in await control.events(parent))
    delegated = [one for one in said if isinstance(one, TaskDelegated)]
    born = [one.target for one in delegated if one.target_kind == "child_task"]
    assert born == [first, second]
    created = [
        event.fact.payload
        for event in [
            decode_event(one.data, one.frame, one.facade)
            for one in await bench.harness.entries((await control.record(parent)).session_id)
        ]
    ]
    children = [one for one in created if isinstance(one, TaskCreated) and one.parent_task_id]
    assert counted["childTasks"] == len(children) - 1 == 1, "one of them was taken out again"
    items = 0
    for job in [one.target for one in delegated if one.target_kind == "job"]:
        facts = [
            decode_event(one.data, one.frame, one.facade).fact.payload
            for one in await bench.harness.entries(job)
        ]
        items += sum(one.items for one in facts if isinstance(one, JobCreated))
        started = sum(one.type == "job.item.started" for one in facts)
        assert started == (await bench.show(job))["items"]
    assert counted["jobItems"] == items == sum(one.items or 0 for one in delegated) == 7
    artifacts = {one.artifact_id for one in said if isinstance(one, ArtifactChanged)}
    assert counted["artifacts"] == len(artifacts) == 2
    assert counted["attempts"] == kinds["task.attempt.started"] == 1
    assert counted["inputs"] == kinds["turn.submitted"] == 1
    reports = [one.counters for one in said if isinstance(one, TaskProgress) if one.counters]
    last = {name: number for report in reports for name, number in report.items()}
    for name in ("tests", "files", "items"):
        assert counted[name] == last[name] == told[name]


# ---------------------------------------------------------------- once, whoever dies


@pytest.mark.requirement("TEV-18")
async def test_repeated_key_delegates_once_also_when_the_task_has_ended(bench: Bench) -> None:
    control, parent = bench.control, await open_task(bench.control)
    given: dict[str, Json] = {"title": "t", "agents": ["echo"], "inputs": ["echo one", WAITS]}
    first: Any = await control.do("submit_job", "k", parentTaskId=parent, **given)
    job = first["job"]["jobId"]
    again: Any = await control.do("submit_job", "k", parentTaskId=parent, **given)
    assert (again["job"]["jobId"], again["repeated"]) == (job, True)
    await control.do("fail_task", taskId=parent)
    again = await control.do("submit_job", "k", parentTaskId=parent, **given)
    assert (again["job"]["jobId"], again["job"]["status"]) == (job, "created")
    await bench.visit(job)
    shown = await bench.show(job)
    assert (shown["status"], shown["counts"]["completed"]) == ("running", 1), "it goes on"
    assert await list_delegated(control, parent) == [("job", job, 2)]
    await control.do("cancel_job", jobId=job)
    await bench.visit(job)
    assert f"job:{job}" not in await bench.harness.due(job)


def die_behind_the_job(bench: Bench) -> None:
    async def die(batch: Batch) -> None:
        if any(event.type == "job.created" for event in batch.events):
            bench.harness.log.refuses_writes = True

    bench.harness.log.after_append = die


@pytest.mark.requirement("TEV-18", "AP-5")
@pytest.mark.parametrize("mended_by", ["visit", "repeat"])
async def test_death_between_job_and_fact_is_mended_before_anything_begins(
    bench: Bench, mended_by: str
) -> None:
    control, parent = bench.control, await open_task(bench.control)
    given: dict[str, Json] = {"title": "t", "agents": ["echo"], "inputs": ["echo one"]}
    die_behind_the_job(bench)
    made: Any = await control.do("submit_job", "k", parentTaskId=parent, **given)
    job = made["job"]["jobId"]
    assert await list_delegated(control, parent) == []
    bench.harness.log.after_append, bench.harness.log.refuses_writes = None, False
    await bench.harness.restart()
    stored = len(bench.harness.log.stored)
    if mended_by == "repeat":
        await control.do("submit_job", "k", parentTaskId=parent, **given)
    assert (await bench.finish(job))["status"] == "completed"
    assert await list_delegated(control, parent) == [("job", job, 1)]
    types = [event.type for batch in bench.harness.log.stored[stored:] for event in batch.events]
    assert types[0] == "task.delegated", "no item has begun before"


@pytest.mark.requirement("EXT-9")
async def test_job_that_is_tried_again_opens_its_edge_again(bench: Bench) -> None:
    control, parent = bench.control, await open_task(bench.control)
    job = await bench.make(["fail", "echo ok"], parentTaskId=parent, mostFailed=1)
    assert (await bench.finish(job))["status"] == "completed"
    await bench.visit(job)

    async def status() -> str:
        record = await control.record(parent)
        return next(one.status for one in record.relationships if one.target == job)

    assert await status() == "satisfied"
    bench.harness.peer.next(lambda turn: turn.status("INPUT_REQUIRED", "Which?"))
    await control.do("retry_job", jobId=job)
    await bench.visit(job)
    assert (await status(), (await bench.show(job))["status"]) == ("open", "running")
    assert len(await list_delegated(control, parent)) == 1
    await control.do("cancel_job", jobId=job)
    await bench.visit(job)


# ---------------------------------------------------------------- tasks that take no job


@pytest.mark.requirement("EXT-9", "GR-11")
async def test_task_that_takes_no_child_takes_no_job_and_nothing_is_stored(bench: Bench) -> None:
    control = bench.control
    ended = await control.start("echo done")
    await control.until(ended, Status.COMPLETED)
    top = await control.create("sail")
    below = await control.create("find a boat", parentTaskId=top)
    await control.do("cancel_task", taskId=top, propagation="none")
    cases: list[tuple[Json, type[Exception]]] = [
        (ended, UnsupportedOperation),
        (top, UnsupportedOperation),
        (below, UnsupportedOperation),
        (f"{ended[:-4]}0000", NotFound),
        ("se_0000000000000000000000000000", NotFound),
        ("nothing", NotFound),
        ("", InvalidInput),
        (7, InvalidInput),
    ]
    given: dict[str, Json] = {"title": "t", "agents": ["echo"], "inputs": ["echo one"]}
    for name, error in cases:
        with pytest.raises(error) as refused:
            await control.do("submit_job", "k", parentTaskId=name, **given)
        if isinstance(refused.value, InvalidInput):
            assert refused.value.field == "parentTaskId"
        elif isinstance(name, str):
            with pytest.raises(error) as of_child:
                await control.create("x", parentTaskId=name)
            assert str(refused.value) == str(of_child.value), "as a child task is refused"
    mine = await open_task(control)
    with pytest.raises(NotFound):
        await control.do("submit_job", None, BOB, parentTaskId=mine, **given)
    for who in (None, BOB):
        listed: Any = await (control.do("list_jobs", None, who) if who else control.do("list_jobs"))
        assert listed["jobs"] == []


# ---------------------------------------------------------------- what stops with the task


@pytest.mark.requirement("GR-11", "CMD-9", "CMD-24")
@pytest.mark.parametrize("levels", [0, 1])
async def test_job_stops_with_the_tree_that_it_stands_in(bench: Bench, levels: int) -> None:
    control, top = bench.control, await open_task(bench.control)
    parent = top
    for _ in range(levels):
        parent = await control.create("a part of it", parentTaskId=parent)
    inputs = ["echo one", WAITS, WAITS, "echo never"]
    job = await bench.make(inputs, parentTaskId=parent, concurrency=2)
    other = await bench.make([WAITS])
    await bench.visit(job)
    await bench.visit(other)
    running = [row["taskId"] for row in await bench.table(job, state="running")]
    assert len(running) == 2
    below = await control.create("part of an item", parentTaskId=running[0])
    await control.do("cancel_task", taskId=top, propagation="subtree", reason="storm")
    shown = await bench.show(job)
    assert (shown["status"], shown["counts"]["completed"], shown["counts"]["cancelled"]) == (
        "cancelled",
        1,
        3,
    )
    said = await find_cancelled(bench, job)
    assert (said.actor, said.source, said.reason) == ("ada", "user", "storm")
    await bench.visit(job)
    for task in (*running, below):
        await control.until(task, Status.CANCELLED)
    assert await count_sent(bench, "never") == 0
    assert f"job:{job}" not in await bench.harness.due(job)
    with pytest.raises(UnsupportedOperation) as refused:
        await control.do("retry_job", jobId=job)
    assert "cancel" in refused.value.message
    assert (await bench.show(other))["status"] == "running", "that of no task goes on"
    await control.do("cancel_job", jobId=other)
    await bench.visit(other)
    assert (await verify_store(bench.harness.store, rebuild=True)).lines == []


@pytest.mark.requirement("GR-11")
@pytest.mark.parametrize("propagation", ["none", "active_run"])
async def test_nothing_of_a_job_begins_below_a_task_that_was_cancelled_alone(
    bench: Bench, propagation: str
) -> None:
    control, parent = bench.control, await open_task(bench.control)
    job = await bench.make([WAITS, "echo never"], parentTaskId=parent, concurrency=1)
    await bench.visit(job)
    (row,) = await bench.table(job, state="running")
    await control.do("cancel_task", taskId=parent, propagation=propagation)
    await control.do("fail_task", taskId=row["taskId"])
    await bench.visit(job)
    shown = await bench.show(job)
    assert (shown["status"], shown["counts"]["failed"], shown["counts"]["cancelled"]) == (
        "cancelled",
        1,
        1,
    )
    said = await find_cancelled(bench, job)
    assert (said.source, parent in (said.reason or "")) == ("runtime", True)
    await bench.visit(job)
    assert await count_sent(bench, "never") == 0


@pytest.mark.requirement("GR-11")
@pytest.mark.parametrize("propagation", ["none", "subtree"])
@pytest.mark.parametrize("answers", [True, False])
@pytest.mark.parametrize("moment", ["job.created", "task.delegated"])
async def test_job_that_is_made_as_its_task_is_cancelled_starts_nothing(
    bench: Bench, *, moment: str, propagation: str, answers: bool
) -> None:
    control, parent = bench.control, await open_task(bench.control)
    log = bench.harness.log
    bench.harness.peer.on_cancel = "ignored"  # so that a task with a run is only about to end

    async def cancel(batch: Batch) -> None:
        if any(event.type == moment for event in batch.events):
            log.before_append = None
            await control.do("cancel_task", taskId=parent, propagation=propagation)
            log.after_append = None if answers else die

    async def die(_batch: Batch) -> None:
        log.refuses_writes = True

    log.before_append = cancel
    given: dict[str, Json] = {"title": "t", "agents": ["echo"], "inputs": ["echo never"]}
    made: Any = await control.do("submit_job", "k", parentTaskId=parent, **given)
    job = made["job"]["jobId"]
    if answers:
        assert made["job"]["status"] == "cancelled", "its caller is told at once"
    else:
        log.after_append, log.refuses_writes = None, False
        await bench.harness.restart()
    shown = await bench.finish(job)
    assert (shown["status"], shown["counts"]["cancelled"]) == ("cancelled", 1)
    again: Any = await control.do("submit_job", "k", parentTaskId=parent, **given)
    assert (again["job"]["jobId"], again["job"]["status"]) == (job, "cancelled")
    await bench.visit(job)
    assert await count_sent(bench, "never") == 0
    assert await list_delegated(control, parent) == []


@pytest.mark.requirement("GR-11", "CMD-9")
async def test_wish_to_stop_a_tree_finds_a_job_that_is_made_just_before_it(bench: Bench) -> None:
    control, parent = bench.control, await open_task(bench.control)
    made = list[str]()

    async def submit(batch: Batch) -> None:
        if any(event.type == "task.cancel_requested" for event in batch.events):
            bench.harness.log.before_append = None
            made.append(await bench.make(["echo never"], parentTaskId=parent))

    bench.harness.log.before_append = submit
    await control.do("cancel_task", taskId=parent, propagation="subtree", reason="storm")
    (job,) = made
    assert await list_delegated(control, parent) == [("job", job, 1)]
    assert (await find_cancelled(bench, job)).reason == "storm"
    await bench.visit(job)
    assert await count_sent(bench, "never") == 0


@pytest.mark.requirement("GR-11")
async def test_task_that_ends_before_it_knows_of_its_job_has_none(bench: Bench) -> None:
    control, parent = bench.control, await open_task(bench.control)

    async def end(batch: Batch) -> None:
        if any(event.type == "job.created" for event in batch.events):
            bench.harness.log.before_append = None
            await control.do("fail_task", taskId=parent)

    bench.harness.log.before_append = end
    job = await bench.make(["echo never"], parentTaskId=parent)
    said = await find_cancelled(bench, job)
    assert said.reason == "the parent task has ended: failed"
    await bench.visit(job)
    assert await count_sent(bench, "never") == 0
    assert await list_delegated(control, parent) == []


@pytest.mark.requirement("GR-11")
async def test_gateway_that_dies_over_a_cancelled_tree_leaves_no_job_that_goes_on(
    bench: Bench,
) -> None:
    control, parent = bench.control, await open_task(bench.control)
    job = await bench.make([WAITS, WAITS, "echo never"], parentTaskId=parent, concurrency=2)
    await bench.visit(job)
    running = [row["taskId"] for row in await bench.table(job, state="running")]

    async def die(batch: Batch) -> None:
        if any(event.type == "task.cancel_requested" for event in batch.events):
            bench.harness.log.refuses_writes = True

    bench.harness.peer.on_cancel = "ignored"
    bench.harness.log.after_append = die
    with pytest.raises(StoreUnavailable):
        await control.do("cancel_task", taskId=parent, propagation="subtree")
    bench.harness.log.after_append, bench.harness.log.refuses_writes = None, False
    bench.harness.peer.on_cancel = "canceled"
    await bench.harness.restart()
    for task in running:
        await bench.harness.parts.dispatch.adopt(EntityRef(EntityKind.TASK, task))
    assert (await bench.show(job))["status"] == "running"
    due = await bench.harness.due(parent)
    row = DueRow(f"subtree:{parent}", due[f"subtree:{parent}"])
    cancelling = bench.harness.parts.tasks.cancelling
    for _ in range(2):  # as a row that is found again by another instance
        await cancelling.on_due(shard_of(parent), row, keep)
    assert (await bench.show(job))["status"] == "cancelled"
    assert (await find_cancelled(bench, job)).actor == "ada"
    await bench.visit(job)
    for task in running:
        await control.until(task, Status.CANCELLED)
    assert await count_sent(bench, "never") == 0
