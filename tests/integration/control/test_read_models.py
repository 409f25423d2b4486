"""Read models through the service, compared with the log: complete, up to date, and marked where data is missing."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from typing import Any, Final, get_args

import pytest

from passerelle.control.read_models import LOOKED_AT
from passerelle.core import machine
from passerelle.core.approval.record import ActionRecord
from passerelle.core.batch import EntityKind, EntityRef
from passerelle.core.commands import TaskModel
from passerelle.core.decision import Decision
from passerelle.core.errors import NotFound
from passerelle.core.events import decode_event
from passerelle.core.facts import RetryPolicy
from passerelle.core.payloads.task import TaskProgress
from passerelle.core.ports.log import StreamKind, StreamRef
from passerelle.core.read_models.blockers import AskedQuestion
from passerelle.core.read_models.task import QUIET_MS
from passerelle.core.read_models.thread import show_thread
from passerelle.core.session.thread import ThreadRecord
from passerelle.core.task import machine as tasks
from passerelle.core.task.commands import ReportProgress
from passerelle.core.task.record import TaskRecord
from passerelle.core.task.status import ENDED, WAITING, Status
from passerelle.core.wire.codec import to_wire
from passerelle.core.wire.json import Json, JsonObject
from passerelle.delegation.verification.walk import verify_store
from passerelle.gateway.rpc.table import CALLS
from passerelle.runtime.records.writes import AppendOptions, Written
from passerelle.store.retention import Archived, Trimmed
from tests.support.control_client import ControlClient
from tests.support.harness import BOB, QUICK
from tests.support.scripted_tasks import Turn
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio

ARCHIVE: Final = Archived("blob:1", "ab" * 32, 1)
NAMES: Final[dict[TaskModel, str]] = {
    "summary": "get_task_summary",
    "attempts": "get_attempts",
    "artifacts": "get_artifacts",
    "graph": "get_task_graph",
    "delivery": "get_delivery",
    "routing": "get_routing",
    "subagents": "get_subagents",
    "context": "get_context",
    "objects": "get_objects",
    "explain": "explain_task",
}


async def look(control: ControlClient, task_id: str, model: TaskModel) -> Any:  # noqa: ANN401  a JSON object, read by its members
    return await control.do(NAMES[model], taskId=task_id)


async def open_session(control: ControlClient) -> str:
    answer: Any = await control.do("open_session", title="Models")
    return str(answer["session"]["sessionId"])


async def start(control: ControlClient, session_id: str, text: str, until: Status) -> str:
    """Starts a task in a session and waits for its status ``until``."""
    task_id = await control.start(text, sessionId=session_id)
    await control.until(task_id, until)
    return task_id


async def replay(
    control: ControlClient, session_id: str, last: int | None = None
) -> list[TaskRecord]:
    """Returns the tasks of a session as replayed from the log alone, up to a sequence."""
    entries = await control.harness.entries(session_id)
    events = [decode_event(entry.data, entry.frame, entry.facade) for entry in entries[:last]]
    return [one for one in machine.replay(events).values() if isinstance(one, TaskRecord)]


@pytest.mark.requirement("SNAP-5", "SNAP-14", "SNAP-15", "SNAP-18", "SNAP-19", "CMD-17")
async def test_sets_and_counts_of_a_session_equal_those_of_its_log(control: ControlClient) -> None:
    # The search for a lost task outlasts the test.
    control.harness.timeouts = replace(QUICK, liveness_s=60)
    await control.harness.restart()
    session_id = await open_session(control)
    completed = await start(control, session_id, "echo done", Status.COMPLETED)
    failed = await start(control, session_id, "fail badly", Status.FAILED)
    waiting = await start(control, session_id, "ask which", Status.WAITING_INPUT)
    running = await start(control, session_id, "slow 60", Status.RUNNING)
    accepted = await control.create("later", sessionId=session_id)
    blocked = await control.create("after the other", sessionId=session_id)
    await control.do("link_tasks", taskId=accepted, kind="blocks", target=blocked)
    cancelled = await control.create("never", sessionId=session_id)
    await control.do("cancel_task", taskId=cancelled)
    lost = await start(control, session_id, "forget me", Status.LOST)
    stored = len(await control.harness.entries(session_id))
    found: Any = await control.do("get_session_tasks", sessionId=session_id)
    # The search for the lost task goes on and writes events.
    assert stored <= found["sequence"] <= len(await control.harness.entries(session_id))

    sets = {name: set(found[name]) for name in ("active", "waiting", "lost", "terminal", "failed")}
    assert sets == {
        "active": {running, accepted},
        "waiting": {waiting, blocked},
        "lost": {lost},
        "terminal": {completed, failed, cancelled},
        "failed": {failed},
    }
    replayed = await replay(control, session_id, found["sequence"])
    statuses = Counter(record.status for record in replayed)
    counts = found["summary"]
    assert counts["terminal"] == sum(statuses[one] for one in ENDED)
    assert counts["waiting"] == sum(statuses[one] for one in WAITING)
    assert (counts["lost"], counts["failed"]) == (statuses[Status.LOST], statuses[Status.FAILED])
    assert counts["active"] == len(replayed) - sum(
        counts[name] for name in ("terminal", "waiting", "lost")
    )
    ended = sorted(
        (one for one in replayed if one.status in ENDED),
        key=lambda one: one.status_at,
        reverse=True,
    )
    assert counts["recent"] == [record.task_id for record in ended]

    by_id = {record.task_id: record for record in replayed}
    assert {line["taskId"]: line["recorded"] for line in found["tasks"]} == {
        task_id: record.status for task_id, record in by_id.items()
    }
    assert {one["taskId"]: len(one["attempts"]) for one in found["attempts"]} == {
        task_id: len(record.attempts) for task_id, record in by_id.items()
    }
    shown = {one["taskId"]: one["consumers"].items() for one in found["delivery"]}
    assert shown.keys() == by_id.keys()
    assert all(record.delivery.items() <= shown[name] for name, record in by_id.items())
    (stopped,) = [one for one in found["blocked"] if one["taskId"] == blocked]
    assert accepted in str(stopped)
    await control.do("cancel_task", taskId=lost)
    await control.until(lost, Status.CANCELLED)
    report = await verify_store(control.harness.store, session_id, rebuild=True)
    assert (report.lines, report.rebuilt) == ([], 1)
    await prove_threads(control, session_id)


async def prove_threads(control: ControlClient, session_id: str) -> None:
    """Each thread as served equals the replay of the log at the same moment."""
    entries = await control.harness.entries(session_id)
    replayed = machine.replay(
        [decode_event(entry.data, entry.frame, entry.facade) for entry in entries]
    )
    tasks = [one for one in replayed.values() if isinstance(one, TaskRecord)]
    threads = [one for one in replayed.values() if isinstance(one, ThreadRecord)]
    asked = [one for one in replayed.values() if isinstance(one, ActionRecord)]
    questions = {one.request.action_id: AskedQuestion(one) for one in asked}
    assert threads
    for thread in threads:
        served: Any = await control.do("get_thread", threadId=thread.thread_id)
        now_ms = control.harness.clock.now_ms()
        rebuilt = show_thread(thread, tasks, len(entries), now_ms, questions=questions)
        assert served == to_wire(rebuilt)


@pytest.mark.requirement("SNAP-15", "SNAP-22", "TR-18")
async def test_each_member_of_a_line_has_a_value_or_a_reason(control: ControlClient) -> None:
    session_id = await open_session(control)
    await start(control, session_id, "echo done", Status.COMPLETED)
    await start(control, session_id, "ask which", Status.WAITING_INPUT)
    await control.create("later", sessionId=session_id)
    await start(control, session_id, "big", Status.COMPLETED)
    found: Any = await control.do("get_session_tasks", sessionId=session_id)
    named = (
        *("status", "title", "owner", "scope", "currentRunId", "progress.percent", "delivery"),
        *("progress.phase", "progress.summary", "startedAt", "endedAt", "assignee"),
        *("evidenceRefs", "sessionId", "createdAt", "updatedAt", "priority", "kind"),
    )
    for line in found["tasks"]:
        for path in named:
            value: Any = line
            for step in path.split("."):
                value = value.get(step)
                if value is None:
                    break
            assert value or value == 0 or path in line["marks"], (line["taskId"], path)
        assert {mark["state"] for mark in line["marks"].values()} <= {
            *("unknown", "unavailable", "stale", "blocked", "not_applicable")
        }
        assert all(mark["reason"] for mark in line["marks"].values())
        # Artifacts are referenced: the megabyte of one of them is stored elsewhere.
        assert len(str(line)) < 8_000


@pytest.mark.requirement("SNAP-16", "CMD-13", "GR-10", "TR-17", "GR-4", "GR-5", "GR-6")
async def test_trees_are_rebuilt_from_the_graph_alone(control: ControlClient) -> None:
    session_id = await open_session(control)
    root = await control.create("root", sessionId=session_id)
    child = await control.create("child", sessionId=session_id, parentTaskId=root)
    linked = await control.create("linked", sessionId=session_id)
    first = await control.create("first", sessionId=session_id)
    said = [
        (linked, "parent", root),
        (first, "blocks", child),
        (linked, "blocked_by", child),
        (linked, "source_task", first),
        (root, "assigned_thread", "th_elsewhere"),
        (root, "source_attempt", "run_elsewhere"),
        (root, "spawned_subagent", "ctx_elsewhere"),
        (child, "produced_artifact", "art_1"),
        (first, "consumed_artifact", "art_1"),
        (child, "evidence", "ev_bundle"),
        (root, "child", first),
    ]
    for task_id, kind, target in said:
        await control.do("link_tasks", taskId=task_id, kind=kind, target=target)
    await control.do("unlink_tasks", taskId=root, kind="child", target=first)
    found: Any = await control.do("get_session_tasks", sessionId=session_id)
    edges = {
        (one["taskId"], one["edge"]["kind"], one["edge"]["target"]): one["edge"]["status"]
        for one in found["graph"]["edges"]
    }
    assert set(found["graph"]["nodes"]) == {root, child, linked, first}
    assert all(edge in edges for edge in said)
    alive = {edge for edge, status in edges.items() if status != "removed"}
    parents = {task: target for task, kind, target in alive if kind == "parent"}
    assert parents == {child: root, linked: root}
    children = {(task, target) for task, kind, target in alive if kind == "child"}
    # Both ends have the edge, whether linked or created with it.
    assert children == {(root, linked), (root, child)}
    waits = {(task, target) for task, kind, target in alive if kind == "blocked_by"}
    assert waits == {(child, first), (linked, child)}
    assert edges[root, "child", first] == edges[first, "parent", root] == "removed"
    for task_id, kind, target in said[:-1]:
        await control.do("unlink_tasks", taskId=task_id, kind=kind, target=target)
    cut: Any = await control.do("get_session_tasks", sessionId=session_id)
    assert {
        (one["taskId"], one["edge"]["kind"], one["edge"]["target"])
        for one in cut["graph"]["edges"]
        if one["edge"]["status"] != "removed"
    } == {(child, "parent", root), (root, "child", child)}
    assert len(cut["graph"]["edges"]) == len(found["graph"]["edges"])
    alone = await look(control, linked, "graph")
    assert {edge["edge"]["kind"] for edge in alone["edges"]} == {
        *("parent", "blocked_by", "source_task")
    }


@pytest.mark.requirement("SNAP-21", "VAL-11", "CF-16")
async def test_an_agents_text_is_never_taken_as_success(control: ControlClient) -> None:
    async def boast(turn: Turn) -> None:
        await turn.status("WORKING", "all done! completed successfully, 100 %")
        await turn.artifact("the final report: completed")
        await gate.wait()

    gate = asyncio.Event()
    control.harness.peer.next(boast)
    task_id = await control.start("boast")

    async def is_received() -> bool:
        return bool((await control.record(task_id)).artifact_count)

    await wait_until(is_received, 10, "the agent has boasted")
    for model in get_args(TaskModel):
        shown = await look(control, task_id, model)
        assert "completed" not in find_values(shown, "status", "recorded", "nativeStatus"), model
        assert find_values(shown, "percent", "endedAt", "completionSummary") == set(), model
    line = await look(control, task_id, "summary")
    assert (line["status"], line["marks"]["progress.percent"]["state"]) == ("running", "unknown")
    assert (await look(control, task_id, "explain"))["end"] == []
    control.harness.clock.ahead_ms += QUIET_MS + 1
    late = await look(control, task_id, "summary")
    assert (late["status"], late["recorded"]) == ("stale", "running")
    assert late["marks"]["status"]["behindMs"] > QUIET_MS
    assert (await look(control, task_id, "explain"))["marks"]["status"]["state"] == "stale"
    attempts = await look(control, task_id, "attempts")
    assert attempts["marks"][f"{attempts['active']}.status"]["state"] == "stale"
    thread: Any = await control.do("get_thread", threadId=line["threadId"])
    assert thread["diagnostics"]["doubtful"] == [task_id]
    gate.set()
    await control.do("cancel_task", taskId=task_id)


def find_values(value: Json, *names: str) -> set[str]:
    """Returns every text or number under one of the names, except inside ``marks``."""
    found: set[str] = set()
    if isinstance(value, dict):
        members = {name: one for name, one in value.items() if name != "marks" and one is not None}
        found = {str(one) for name, one in members.items() if name in names}
        value = [*members.values()]
    for one in value if isinstance(value, list) else ():
        found |= find_values(one, *names)
    return found


@pytest.mark.requirement("SNAP-20", "SNAP-22", "VAL-11")
async def test_models_answer_after_the_events_are_trimmed_and_mark_it(
    control: ControlClient,
) -> None:
    session_id = await open_session(control)
    task_id = await start(control, session_id, "chunks 3", Status.COMPLETED)
    before = {model: await look(control, task_id, model) for model in get_args(TaskModel)}
    assert all("facts" not in model.get("marks", {}) for model in before.values())
    head = await control.harness.log.read_head(StreamRef(StreamKind.SESSION, session_id))
    assert head is not None
    trimmed = await control.harness.store.retention.trim(session_id, head.sequence, ARCHIVE)
    assert trimmed == Trimmed(head.sequence + 1)
    after = {model: await look(control, task_id, model) for model in get_args(TaskModel)}
    for model in ("summary", "attempts", "graph", "delivery", "subagents", "context"):
        assert after[model] == before[model]
    for model in ("artifacts", "routing", "objects", "explain"):
        mark = after[model]["marks"]["facts"]
        assert mark["state"] == "unavailable"
        assert mark["reason"].startswith("events before ")
    assert before["explain"]["end"]
    assert after["explain"]["end"] == []
    assert after["explain"]["status"] == "completed"
    (artifact,) = after["artifacts"]["artifacts"]
    assert artifact["marks"]["versions"]["state"] == "unavailable"
    session: Any = await control.do("get_session", sessionId=session_id)
    assert session["history"]["marks"]["before"]["state"] == "unavailable"
    control.harness.forget_sessions()


@pytest.mark.requirement("VAL-7", "CMD-16")
async def test_an_old_session_is_read_in_windows_of_bounded_cost(control: ControlClient) -> None:
    session_id = await open_session(control)
    task_id = await control.create("go on for long", sessionId=session_id)
    ref = EntityRef(EntityKind.TASK, task_id)
    writes = control.harness.parts.writes
    for _ in range(158):

        def body(decision: Decision) -> AppendOptions:
            for percent in range(64):
                record = decision.state(ref)
                assert isinstance(record, TaskRecord)
                report = ReportProgress(TaskProgress(percent=percent % 100))
                decision.add(tasks.decide(record, report))
            return AppendOptions()

        assert isinstance(await writes.decide(session_id, [ref], body), Written)
    log = control.harness.log
    log.entries_read = 0
    session: Any = await control.do("get_session", sessionId=session_id)
    assert session["sequence"] > 10_000
    assert log.entries_read <= 200
    history = session["history"]
    assert (history["last"] - history["first"], history["before"]) == (199, history["first"])
    log.entries_read = 0
    explained = await look(control, task_id, "explain")
    assert log.entries_read <= LOOKED_AT + 2
    control.harness.forget_sessions()
    assert explained["marks"]["facts"]["state"] == "unavailable"
    assert "were not read" in explained["marks"]["facts"]["reason"]


@pytest.mark.requirement("SNAP-1", "CMD-16")
async def test_pages_of_a_session_have_no_hole_and_no_repeat(control: ControlClient) -> None:
    session_id = await open_session(control)
    for number in range(25):
        await control.do(
            "submit_turn",
            f"k-{number}",
            agent="echo",
            text=f"message {number}",
            sessionId=session_id,
        )

    async def all_answered() -> bool:
        records = await replay(control, session_id)
        return len(records) == 25 and all(one.status in ENDED for one in records)

    await wait_until(all_answered, 10, "every turn has its answer")
    whole: Any = await control.do("get_session", sessionId=session_id, limit=1000)
    paged: list[Any] = []
    params: JsonObject = {}
    while True:
        page: Any = await control.do("get_session", sessionId=session_id, limit=50, **params)
        paged = page["history"]["items"] + paged
        if page["history"].get("before") is None:
            break
        params = {"before": page["history"]["before"]}
    assert paged == whole["history"]["items"]
    assert [one["text"] for one in paged if one["kind"] == "message"] == [
        f"message {number}" for number in range(25)
    ]
    # A session names its newest threads, and the number of the others.
    assert len(whole["threads"]) + ("threads" in whole["marks"]) * 99 >= whole["threadCount"]


@pytest.mark.requirement("SNAP-7", "SNAP-11", "SNAP-12", "SNAP-6", "VAL-9")
async def test_artifacts_routing_and_subagents_of_a_task(control: ControlClient) -> None:
    async def bring_many(turn: Turn) -> None:
        for number in range(int(turn.argument)):
            await turn.artifact(f"leaf {number}", artifact_id=f"leaf-{number}")
        await turn.status("COMPLETED")

    control.harness.peer.on("many", bring_many)
    task_id = await control.start("two-artifacts")
    await control.until(task_id, Status.COMPLETED)
    found = (await look(control, task_id, "artifacts"))["artifacts"]
    assert len(found) == 2
    for chain in found:
        assert [one["version"] for one in chain["versions"]][:1] == [1]
        assert "versions" not in chain["marks"]
    many = await control.start("many 18")
    await control.until(many, Status.COMPLETED)
    model_of_many = await look(control, many, "artifacts")
    assert [len(chain["versions"]) for chain in model_of_many["artifacts"]] == [1] * 18
    assert "artifacts" not in model_of_many["marks"]
    assert model_of_many["marks"]["issues"]["state"] == "not_applicable"
    routing = await look(control, task_id, "routing")
    assert routing["peer"] == "echo"
    assert routing["marks"]["limits"]["state"] == "unknown"
    assert "not_applicable" in {mark["state"] for mark in routing["marks"].values()}
    (subagent,) = (await look(control, task_id, "subagents"))["subagents"]
    assert subagent["recoverability"] not in {None, "message_only"}
    bare: Any = await control.do("submit_turn", "bare", agent="echo", text="message hello")
    await control.until(bare["taskId"], Status.COMPLETED)
    (other,) = (await look(control, bare["taskId"], "subagents"))["subagents"]
    assert other["recoverability"] == "message_only"
    context = await look(control, task_id, "context")
    assert {mark["state"] for mark in context["marks"].values()} == {"not_applicable"}
    explained = await look(control, task_id, "explain")
    assert [reason["code"] for reason in explained["agent"]][:1] == ["named"]
    assert all(reason["fact"]["sequence"] for reason in explained["agent"])
    objects = await look(control, task_id, "objects")
    assert [step["first"] for step in objects["steps"]] == sorted(
        step["first"] for step in objects["steps"]
    )
    assert len({step["stepId"] for step in objects["steps"]}) == len(objects["steps"])


@pytest.mark.requirement("ID-2", "CMD-16")
async def test_a_session_lists_its_threads_and_each_of_them_names_it(
    control: ControlClient,
) -> None:
    session_id = await open_session(control)
    tasks = [await control.create(f"talk {number}", sessionId=session_id) for number in range(2)]
    threads = {str((await control.record(task_id)).thread_id) for task_id in tasks}
    session: Any = await control.do("get_session", sessionId=session_id)
    assert {one["threadId"] for one in session["threads"]} == threads
    assert (len(threads), session["threadCount"], session["title"]) == (2, 2, "Models")
    for thread_id in threads:
        thread: Any = await control.do("get_thread", threadId=thread_id)
        assert (thread["sessionId"], len(thread["tasks"])) == (session_id, 1)


@pytest.mark.requirement("CMD-12", "SNAP-20")
async def test_a_restarted_service_answers_the_same(control: ControlClient) -> None:
    session_id = await open_session(control)
    tasks = [await start(control, session_id, text, Status.COMPLETED) for text in ("one", "two")]
    tasks.append(await control.create("three", sessionId=session_id))

    async def read_all() -> list[JsonObject]:
        times: dict[str, Any] = {"since": (await control.record(tasks[0])).status_at}
        return [
            await control.do("list_tasks"),
            await control.do("list_tasks", status=["completed"], **times),
            await control.do("list_sessions"),
            *[await control.do("get_task", taskId=task_id) for task_id in tasks],
        ]

    before = await read_all()
    await control.harness.restart()
    assert await read_all() == before
    listed: Any = before[:2]
    assert [len(one["tasks"]) for one in listed] == [3, 2]


async def test_object_of_another_owner_equals_an_unknown_one(control: ControlClient) -> None:
    session_id = await open_session(control)
    task_id = await control.create(sessionId=session_id)
    record = await control.record(task_id)
    for model in get_args(TaskModel):
        with pytest.raises(NotFound):
            await control.do(NAMES[model], None, BOB, taskId=task_id)
    for method, name, known in (
        ("get_session", "sessionId", session_id),
        ("get_session_tasks", "sessionId", session_id),
        ("get_thread", "threadId", str(record.thread_id)),
    ):
        for given in (known, "se_1", f"{known[:5]}{'0' * 26}"):
            with pytest.raises(NotFound):
                await control.do(method, None, BOB, **{name: given})


def test_every_model_of_a_task_has_a_call() -> None:
    assert set(NAMES) == set(get_args(TaskModel))
    assert set(NAMES.values()) <= set(CALLS)


@pytest.mark.requirement("VAL-9", "EXT-5")
async def test_a_fallback_to_another_agent_is_explained_by_its_facts(
    control: ControlClient,
) -> None:
    control.harness.policy = RetryPolicy(fallback=("other",))

    async def reject(turn: Turn) -> None:
        await turn.status("REJECTED", "not my work")

    control.harness.peer.next(reject)
    task_id = await control.start()
    await control.until(task_id, Status.RETRYING)
    await control.harness.run_due("retry", task_id, after_ms=60_000)
    await control.until(task_id, Status.COMPLETED)
    events = {event.sequence: event.type for event in await control.events(task_id)}
    found: Any = await control.do("explain_task", taskId=task_id)
    cited = {events[reason["fact"]["sequence"]] for reason in [*found["agent"], *found["retries"]]}
    assert "routing.fallback.applied" in cited
    assert "task.retrying" in cited
    routing: Any = await control.do("get_routing", taskId=task_id)
    assert routing["peer"] == "other"
