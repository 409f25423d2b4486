"""Jobs over a real engine: many items at one agent, results, retries, cancels, and crashes in between (EXT-9)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import pytest

from passerelle.a2a_mapping.rpc import Method
from passerelle.core.agent_name import ROUTER
from passerelle.core.batch import EntityKind, EntityRef, Loaded
from passerelle.core.commands import SubmitTurn, TurnAccepted
from passerelle.core.errors import Forbidden, InvalidInput, NotFound, UnsupportedOperation
from passerelle.core.events import decode_event
from passerelle.core.ids import shard_of
from passerelle.core.ports.due import DueRow
from passerelle.core.principal import Principal
from passerelle.core.task.status import Status
from passerelle.core.wire.json import Json
from passerelle.delegation.verification.walk import verify_store
from passerelle.permission_bridge.rules import DEFAULT_POLICY, Rule, make_policy
from tests.integration.control.job_bench import Bench, keep
from tests.support.control_client import ControlClient
from tests.support.faults import FaultyLog
from tests.support.harness import ADA, BOB
from tests.support.killing import Killed
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio

ITEMS: Final = ["echo one", "echo two", "fail", "echo four", "echo five"]


@pytest.fixture
def bench(control: ControlClient) -> Bench:
    return Bench(control)


@pytest.mark.requirement("MK-4")
async def test_equal_inputs_of_a_distinct_job_make_one_item(
    control: ControlClient,
) -> None:
    bench, inputs = Bench(control), ["echo one", "echo two", "echo one", "Echo one"]
    each, once = await bench.make(inputs), await bench.make(inputs, distinct=True)
    assert (await bench.finish(each))["items"] == 4
    assert (await bench.finish(once))["items"] == 3
    results = [line["result"] for line in await bench.table(once)]
    assert results == [line["result"] for line in await bench.table(each) if line["item"] != 3]
    agents = await bench.make(["echo one"], agents=["echo", "echo"], distinct=True)
    assert (await bench.finish(agents))["items"] == 1


@pytest.mark.requirement("MK-4")
async def test_items_differ_by_title_and_by_text(bench: Bench) -> None:
    inputs = ["echo one", "echo one", "echo one", "echo two", "echo two"]
    titles: list[Json] = ["Ada", "Bob", "Ada", "Ada", "Ada"]
    each = await bench.make(inputs, titles=titles)
    assert (await bench.finish(each))["items"] == 5
    assert [line["title"] for line in await bench.table(each)] == titles
    once = await bench.make(inputs, titles=titles, distinct=True)
    assert (await bench.finish(once))["items"] == 3
    rows = await bench.table(once)
    assert [(line["result"], line["title"]) for line in rows] == [
        ("echo one", "Ada"),
        ("echo one", "Bob"),
        ("echo two", "Ada"),
    ]
    for line in rows:
        task: Any = await bench.control.do("get_task", taskId=line["taskId"])
        assert (task["title"], task["objective"]) == (line["title"], line["result"])
    assert not [message for message in bench.harness.peer.messages if "title" in message]
    plain = await bench.make(["echo plain words"])
    await bench.finish(plain)
    assert [line["title"] for line in await bench.table(plain)] == ["echo plain words"]


@pytest.mark.requirement("PRS-8")
async def test_items_of_a_running_job_have_their_own_status_attempts_agent_and_progress(
    bench: Bench,
) -> None:
    job = await bench.make(["silent one", "silent two", "echo three", "silent four"], concurrency=3)

    async def are_under_way() -> list[Any] | None:
        await bench.visit(job)
        rows = await bench.table(job)
        states = [row["state"] for row in rows]
        return rows if states == ["running", "running", "completed", "running"] else None

    rows = await wait_until(are_under_way, 20, "three items are under way, and one is done")
    assert rows is not None
    for row, percent in zip(rows[:2], (40, 75), strict=True):
        progress: dict[str, Json] = {"taskId": row["taskId"], "percent": percent}
        await bench.control.do("append_task_progress", None, **progress)
    rows = await bench.table(job)
    assert [(row["item"], row.get("percent")) for row in rows] == [
        (1, 40),
        (2, 75),
        (3, None),
        (4, None),
    ]
    assert {(row["attempts"], row["agent"]) for row in rows} == {(1, "echo")}
    assert len({row["taskId"] for row in rows}) == 4
    assert (await bench.show(job))["counts"]["running"] == 3
    await bench.control.do("cancel_job", None, jobId=job)
    assert (await bench.finish(job))["status"] == "cancelled"


@pytest.mark.requirement("EXT-9", "OBJ-4")
async def test_one_failed_item_of_five_is_retried(bench: Bench) -> None:
    job = await bench.make(ITEMS, concurrency=2)
    shown = await bench.finish(job)
    assert (shown["status"], shown["counts"]["completed"], shown["counts"]["failed"]) == (
        "failed",
        4,
        1,
    )
    types = await bench.types(job)
    assert (types["job.item.started"], types["job.item.completed"], types["job.item.failed"]) == (
        5,
        4,
        1,
    )
    assert (types["job.created"], types["job.started"], types["job.failed"]) == (1, 1, 1)
    rows = await bench.table(job)
    assert [row["state"] for row in rows] == [
        "completed",
        "completed",
        "failed",
        "completed",
        "completed",
    ]
    assert await bench.pages(job, 2) == rows
    for row in rows:
        record: Any = await bench.control.do("get_task", taskId=row["taskId"])
        assert record["status"] == row["taskStatus"], "each item is a task of its own"
    assert rows[0]["result"] == "echo one"
    again: Any = await bench.control.do("retry_job", jobId=job, items=[3])
    assert again["job"]["status"] == "running"
    shown = await bench.finish(job)
    assert shown["counts"] == {
        "waiting": 0,
        "running": 0,
        "completed": 4,
        "failed": 1,
        "cancelled": 0,
    }
    [third] = await bench.table(job, state="failed")
    assert (third["item"], third["attempts"]) == (3, 2)
    assert third["error"]["code"]


@pytest.mark.requirement("EXT-9")
@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("chunks 3", "chunk-1 chunk-2 chunk-3 "),
        ("two-artifacts", "two\none"),
        ("done it is written", "it is written"),
        ("message hello", "hello"),
    ],
)
async def test_result_of_an_item_is_the_output_or_message_of_its_agent(
    bench: Bench, text: str, result: str
) -> None:
    job = await bench.make([text])
    assert (await bench.finish(job))["status"] == "completed"
    [line] = await bench.table(job)
    assert line["result"] == result


@pytest.mark.requirement("EXT-9", "CMD-24")
async def test_cancelled_job_keeps_its_completed_items(bench: Bench) -> None:
    job = await bench.make(["echo one", "ask which", "ask who", "echo four"], concurrency=2)
    await bench.visit(job)
    shown = await bench.show(job)
    assert (shown["counts"]["completed"], shown["counts"]["running"]) == (1, 2)
    running = [row["taskId"] for row in await bench.table(job, state="running")]
    cancelled: Any = await bench.control.do("cancel_job", jobId=job, reason="enough")
    assert cancelled["job"]["status"] == "cancelled"
    assert [row["state"] for row in await bench.table(job)] == [
        "completed",
        "cancelled",
        "cancelled",
        "cancelled",
    ]
    await bench.visit(job)
    for task in running:
        await bench.control.until(task, Status.CANCELLED)
    assert f"job:{job}" not in await bench.harness.due(job)
    with pytest.raises(UnsupportedOperation):
        await bench.control.do("cancel_job", jobId=job)
    assert len(bench.harness.peer.messages) == 3, "the fourth was never sent"


async def test_item_is_attempted_as_often_as_its_policy_allows(bench: Bench) -> None:
    job = await bench.make(["fail", "echo ok"], attempts=3, mostFailed=1)
    shown = await bench.finish(job)
    assert shown["status"] == "completed"
    assert [row["attempts"] for row in await bench.table(job)] == [3, 1]
    assert (await bench.types(job))["job.item.failed"] == 3


async def test_items_driven_here_are_not_reread_from_the_store(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, load = list[str](), FaultyLog.load

    async def note(log: FaultyLog, refs: Sequence[EntityRef]) -> list[Loaded]:
        asked.extend(ref.id for ref in refs if ref.kind is EntityKind.TASK)
        return await load(log, refs)

    monkeypatch.setattr(FaultyLog, "load", note)
    inputs = [*(f"echo {number}" for number in range(6)), "message seven", "fail"]
    job = await bench.make(inputs, concurrency=4, attempts=2)
    await bench.visit(job)
    assert (await bench.show(job))["status"] == "failed"
    assert asked == []
    rows = await bench.table(job)
    assert [row["taskStatus"] for row in rows] == [row["state"] for row in rows]
    assert [row["state"] for row in rows] == ["completed"] * 7 + ["failed"]
    assert [row["attempts"] for row in rows] == [1] * 7 + [2]
    record = await bench.control.record(rows[-1]["taskId"])
    assert record.last_error is not None
    assert rows[-1]["error"]["code"] == record.last_error.code


async def test_job_is_read_once_per_visit_however_many_steps_are_stored(bench: Bench) -> None:
    few, many = await bench.make(["echo one"]), await bench.make(["echo one"] * 30, concurrency=3)
    reads = list[int]()
    for job in (few, many):
        before = bench.harness.log.loads
        await bench.visit(job)
        reads.append(bench.harness.log.loads - before)
        assert (await bench.show(job))["status"] == "completed"
    assert reads[0] == reads[1]


async def test_one_input_goes_to_many_agents(bench: Bench) -> None:
    job = await bench.make(["echo hello"], agents=["echo", "other"])
    shown = await bench.finish(job)
    assert (shown["status"], shown["items"]) == ("completed", 2)
    assert [row["agent"] for row in await bench.table(job)] == ["echo", "other"]
    assert len(bench.harness.peers["other"].messages) == 1


async def test_running_items_do_not_exceed_the_concurrency(bench: Bench) -> None:
    job = await bench.make(["ask which"] * 6, concurrency=3)
    await bench.visit(job)
    await bench.visit(job)
    assert (await bench.show(job))["counts"]["running"] == 3
    assert len(bench.harness.peer.messages) == 3
    await bench.control.do("cancel_job", jobId=job)
    await bench.visit(job)


# ---------------------------------------------------------------- crashes


@pytest.mark.requirement("EXT-9")
@pytest.mark.parametrize("dies_at", [1, 3, 4, 7])
async def test_crash_between_items_sends_no_item_twice(bench: Bench, dies_at: int) -> None:
    runner = bench.harness.parts.schedules.items
    submit, sent = runner.submit, 0

    async def die(principal: Principal, command: SubmitTurn, key: str) -> TurnAccepted:
        nonlocal sent
        accepted = await submit(principal, command, key)
        sent += 1
        if sent == dies_at:
            raise Killed
        return accepted

    job = await bench.make([f"echo {number}" for number in range(8)], concurrency=3)
    object.__setattr__(runner, "submit", die)
    with pytest.raises(Killed):
        await bench.visit(job)
    object.__setattr__(runner, "submit", submit)
    shown = await bench.finish(job)
    assert (shown["status"], shown["counts"]["completed"]) == ("completed", 8)
    assert [row["attempts"] for row in await bench.table(job)] == [1] * 8
    tasks = {row["taskId"] for row in await bench.table(job)}
    listed: Any = await bench.control.do("list_tasks", agent="echo", pageSize=50)
    assert {one["taskId"] for one in listed["tasks"]} == tasks


@pytest.mark.requirement("EXT-5", "EXT-9")
async def test_items_of_a_job_can_be_routed_by_the_gateway(
    bench: Bench,
) -> None:
    job = await bench.make(["one", "two", "fail"], agents=["passerelle"], attempts=2)
    assert (await bench.finish(job))["status"] == "failed"
    items = await bench.table(job)
    assert [one["state"] for one in items] == ["completed", "completed", "failed"]
    records = [await bench.control.record(one["taskId"]) for one in items]
    assert {(one.kind, one.peer) for one in records} <= {(ROUTER, "echo"), (ROUTER, "other")}


@pytest.mark.requirement("EXT-1")
async def test_rule_about_cancels_applies_to_the_job_of_the_tasks(bench: Bench) -> None:
    bench.harness.peer.hold()
    job = await bench.make(["ask one", "two"], concurrency=2)
    await bench.visit(job)
    bench.harness.rules = make_policy((Rule("no-stop", "deny", about=frozenset({"commands"})),))
    with pytest.raises(Forbidden, match="policy forbids it"):
        await bench.control.do("cancel_job", jobId=job)
    assert (await bench.show(job))["status"] == "running"
    bench.harness.rules = DEFAULT_POLICY
    await bench.control.do("cancel_job", jobId=job)
    bench.harness.peer.release_all()
    assert (await bench.finish(job))["status"] == "cancelled"


async def test_row_of_a_cancelled_job_is_dropped_when_its_owner_may_not_cancel_at_the_agent(
    bench: Bench,
) -> None:
    job = await bench.make(["ask which", "ask who"], concurrency=2)
    await bench.visit(job)
    await bench.control.do("cancel_job", jobId=job)
    runner = bench.harness.parts.schedules.items
    sends = replace(ADA, operations={"echo": frozenset({Method.SEND_MESSAGE})})

    def find_principal(_name: str, _tenant: str) -> Principal:
        return sends

    object.__setattr__(runner, "find_principal", find_principal)
    await bench.visit(job)
    assert f"job:{job}" not in await bench.harness.due(job)
    for line in await bench.table(job):
        assert (await bench.control.record(line["taskId"])).status is Status.WAITING_INPUT


async def test_caller_that_may_not_send_retries_no_item(bench: Bench) -> None:
    job = await bench.make(["fail badly"])
    await bench.finish(job)
    reader = replace(ADA, operations={"echo": frozenset({Method.GET_TASK})})
    for who, refusal in (
        (reader, Forbidden),
        (replace(ADA, agents=frozenset({"other"})), NotFound),
    ):
        with pytest.raises(refusal):
            await bench.control.do("retry_job", None, who, jobId=job)
    await bench.control.do("retry_job", jobId=job)
    runner = bench.harness.parts.schedules.items

    def find_principal(_name: str, _tenant: str) -> Principal:
        return reader

    object.__setattr__(runner, "find_principal", find_principal)
    await bench.finish(job)
    [line] = await bench.table(job)
    assert line["error"]["code"] == "forbidden"


async def test_cancel_reaches_an_item_sent_but_not_recorded(bench: Bench) -> None:
    runner = bench.harness.parts.schedules.items
    submit = runner.submit

    async def die(principal: Principal, command: SubmitTurn, key: str) -> TurnAccepted:
        await submit(principal, command, key)
        raise Killed

    job = await bench.make(["ask which", "ask who"], concurrency=1)
    object.__setattr__(runner, "submit", die)
    with pytest.raises(Killed):
        await bench.visit(job)
    object.__setattr__(runner, "submit", submit)
    await bench.control.do("cancel_job", jobId=job)
    await bench.visit(job)

    async def list_sent() -> list[Any]:
        listed: Any = await bench.control.do("list_tasks", agent="echo")
        return list(listed["tasks"])

    sent = await wait_until(list_sent, 10, "what was sent is listed")
    assert sent is not None
    [task] = sent
    await bench.control.until(task["taskId"], Status.CANCELLED)


async def test_concurrent_handlers_of_one_row_send_each_item_once(bench: Bench) -> None:
    job = await bench.make([f"echo {number}" for number in range(10)], concurrency=5)
    member = f"job:{job}"
    row = DueRow(member, (await bench.harness.due(job))[member])
    runner, now_ms = bench.harness.parts.schedules.items, bench.harness.clock.now_ms()
    await asyncio.gather(
        *(runner.on_due(shard_of(job), row, now_ms, keep) for _ in range(3)),
        return_exceptions=True,
    )
    shown = await bench.finish(job)
    assert shown["counts"]["completed"] == 10
    listed: Any = await bench.control.do("list_tasks", agent="echo", pageSize=50)
    assert len(listed["tasks"]) == 10


# ---------------------------------------------------------------- commands and reads


async def test_job_of_another_owner_is_not_found(bench: Bench) -> None:
    job = await bench.make(["echo one"])
    for method in ("get_job", "cancel_job", "retry_job", "get_job_results"):
        with pytest.raises(NotFound):
            await bench.control.do(method, None, BOB, jobId=job)
    mine: Any = await bench.control.do("list_jobs")
    others: Any = await bench.control.do("list_jobs", None, BOB)
    assert [one["jobId"] for one in mine["jobs"]] == [job]
    assert others["jobs"] == []
    await bench.finish(job)


async def test_same_key_makes_one_job(bench: Bench) -> None:
    given: dict[str, Json] = {"title": "t", "agents": ["echo"], "inputs": ["echo one"]}
    first: Any = await bench.control.do("submit_job", "k", **given)
    again: Any = await bench.control.do("submit_job", "k", **given)
    assert (first["job"]["jobId"], again["repeated"]) == (again["job"]["jobId"], True)
    await bench.finish(first["job"]["jobId"])


@pytest.mark.parametrize(
    ("method", "text"), [("cancel_job", "ask which"), ("retry_job", "fail badly")]
)
async def test_same_key_changes_a_job_once(bench: Bench, method: str, text: str) -> None:
    job = await bench.make([text])
    if method == "retry_job":
        await bench.finish(job)
    one: Any = await bench.control.do(method, "k", jobId=job)
    stored = len(await bench.harness.entries(job))
    two: Any = await bench.control.do(method, "k", jobId=job)
    assert (one["repeated"], two["repeated"]) == (False, True)
    assert len(await bench.harness.entries(job)) == stored
    await bench.finish(job)


@pytest.mark.parametrize(
    "members",
    [
        {"inputs": []},
        {"inputs": ["a"] * 1001},
        {"agents": ["echo", "other"], "inputs": ["a", "b"]},
        {"concurrency": 0},
        {"titles": ["one", "two"]},
        {"inputs": ["a", "b"], "titles": ["one"]},
        {"titles": [""]},
        {"inputs": ["x" * 60_000] * 20},
    ],
)
async def test_invalid_batch_is_refused(bench: Bench, members: dict[str, Json]) -> None:
    given: dict[str, Json] = {"title": "t", "agents": ["echo"], "inputs": ["echo one"]}
    with pytest.raises(InvalidInput):
        await bench.control.do("submit_job", None, **{**given, **members})


async def test_store_with_jobs_passes_verification(bench: Bench) -> None:
    over = await bench.make(ITEMS)
    await bench.finish(over)
    going = await bench.make(["ask which"])
    await bench.visit(going)
    report = await verify_store(bench.harness.store, rebuild=True)
    assert report.lines == []
    entries = await bench.harness.entries(over)
    steps = [decode_event(one.data, one.frame, one.facade).fact for one in entries]
    assert all(fact.scope.session_id == over for fact in steps)
    await bench.control.do("cancel_job", jobId=going)
    await bench.visit(going)
