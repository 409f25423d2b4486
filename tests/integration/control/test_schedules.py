"""Schedules over a real engine: created, run at ticks, delayed, interrupted, read by their owners (AP-7, OBJ-8)."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import Any, Final, cast

import pytest

from passerelle.a2a_mapping.rpc import Method
from passerelle.core.agent_name import ROUTER
from passerelle.core.commands import SubmitTurn, TurnAccepted
from passerelle.core.errors import (
    Forbidden,
    IdempotencyConflict,
    InvalidInput,
    NotFound,
    StoreUnavailable,
    UnsupportedOperation,
)
from passerelle.core.events import decode_event
from passerelle.core.ids import Shard, shard_of
from passerelle.core.payloads.conversation import SessionUpdated
from passerelle.core.payloads.task import TaskCreated
from passerelle.core.ports.due import DueRow
from passerelle.core.ports.log import StreamKind, StreamRef
from passerelle.core.principal import AccessScope, Principal
from passerelle.core.task.status import Status
from passerelle.core.wire.json import Json, JsonObject
from passerelle.core.wire.times import parse_ms
from passerelle.delegation.verification.walk import verify_store
from passerelle.permission_bridge.rules import Rule, make_policy
from passerelle.store.connection import pack
from tests.integration.control.test_lag import run_relay
from tests.support.control_client import ControlClient
from tests.support.harness import ADA, BOB, Harness
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio

MINUTE_MS: Final = 60_000


async def _keep(_shard: Shard, _row: DueRow) -> bool:
    return False


def _find_no_principal(_name: str, _tenant: str) -> Principal | None:
    return None


@dataclass(frozen=True)
class ScheduleBench:
    """The schedules of a desk; moves the clock."""

    control: ControlClient

    @property
    def harness(self) -> Harness:
        return self.control.harness

    async def make(self, text: str | None = "echo done", **members: Json) -> str:
        given: dict[str, Json] = {
            "title": "report",
            "agent": "echo",
            "text": text,
            "everyS": 60,
            "graceS": 30,
        }
        answer: Any = await self.control.do("create_schedule", None, **{**given, **members})
        schedule = str(answer["schedule"]["scheduleId"])
        self.harness.remember(schedule)
        return schedule

    async def show(self, schedule: str) -> Any:  # noqa: ANN401  JSON
        return await self.control.do("get_schedule", scheduleId=schedule)

    async def visit(self, schedule: str, ahead_ms: int = 0) -> None:
        """Moves the clock and handles the schedule's due row, as the due loop does."""
        self.harness.clock.ahead_ms += ahead_ms
        member = f"schedule:{schedule}"
        token = (await self.harness.due(schedule)).get(member)
        if token is None:
            return
        row, now_ms = DueRow(member, token), self.harness.clock.now_ms()
        runner = self.harness.parts.schedules.runner
        await runner.on_due(shard_of(schedule), row, now_ms, _keep)

    async def pass_tick(self, schedule: str, late_ms: int = 1) -> None:
        """Moves the clock to the next tick plus ``late_ms`` and handles it."""
        shown = await self.show(schedule)
        ahead_ms = parse_ms(shown["nextAt"]) + late_ms - self.harness.clock.now_ms()
        await self.visit(schedule, ahead_ms)

    async def count_tasks(self, schedule: str) -> int:
        entries = await self.harness.entries(schedule)
        facts = [decode_event(one.data, one.frame, one.facade).fact for one in entries]
        return sum(isinstance(fact.payload, TaskCreated) for fact in facts)

    async def await_ended(self, schedule: str, count: int) -> Any:  # noqa: ANN401  JSON
        """Returns the schedule once its list of recent runs holds ``count`` completed ones."""

        async def look() -> JsonObject | None:
            shown = await self.show(schedule)
            over = [one for one in shown.get("recent", []) if one.get("status") == "completed"]
            return shown if len(over) >= count else None

        return await wait_until(look, 10, f"{count} runs have ended")


@pytest.fixture
def bench(control: ControlClient) -> ScheduleBench:
    return ScheduleBench(control)


@pytest.mark.requirement("AP-7", "OBJ-7")
async def test_tick_becomes_a_task_like_any_other(bench: ScheduleBench) -> None:
    schedule = await bench.make("echo done")
    await bench.pass_tick(schedule)
    shown = await bench.await_ended(schedule, 1)
    [run] = shown["recent"]
    assert (run["number"], run["cause"], shown["runs"]) == (1, "due", 1)
    record = await bench.control.until(run["taskId"], Status.COMPLETED)
    assert record.session_id == schedule
    listed: Any = await bench.control.do("list_tasks", agent="echo")
    assert run["taskId"] in [one["taskId"] for one in listed["tasks"]]
    [message] = bench.harness.peer.messages
    assert message["parts"] == [{"text": "echo done"}]


@pytest.mark.requirement("AP-7")
async def test_hundred_ticks_with_nothing_to_do_make_no_task(bench: ScheduleBench) -> None:
    schedule = await bench.make(missed="skip")
    for _ in range(100):
        await bench.pass_tick(schedule, late_ms=45_000)
    shown = await bench.show(schedule)
    assert (shown["missedTicks"], shown["runs"], shown.get("recent")) == (100, 0, [])
    assert await bench.count_tasks(schedule) == 0
    assert bench.harness.peer.messages == []
    history: Any = await bench.control.do("get_schedule_history", scheduleId=schedule, limit=200)
    token, paged = "", list[Any]()
    while not paged or token:
        page: Any = await bench.control.do(
            "get_schedule_history", scheduleId=schedule, pageSize=30, pageToken=token
        )
        paged += page["steps"]
        token = page["nextPageToken"]
    assert paged == history["steps"]
    assert [one["change"]["step"] for one in history["steps"]] == ["created"] + 100 * ["ticked"]


@pytest.mark.requirement("OBJ-8")
@pytest.mark.parametrize(("missed", "runs"), [("skip", 0), ("once", 1), ("all", 5)])
async def test_ticks_of_an_outage_follow_the_missed_policy(
    bench: ScheduleBench, missed: str, runs: int
) -> None:
    schedule = await bench.make(missed=missed, overlap="allow")
    await bench.visit(schedule, 5 * MINUTE_MS + 45_000)
    shown = await bench.await_ended(schedule, runs)
    assert (shown["runs"], shown["missedTicks"]) == (runs, 5 - runs)
    assert [one["cause"] for one in shown["recent"]] == runs * ["missed"]
    await bench.visit(schedule)
    assert await bench.count_tasks(schedule) == runs


async def test_tick_that_became_late_while_its_row_was_handled_counts_as_late(
    bench: ScheduleBench,
) -> None:
    schedule = await bench.make(missed="skip")
    shown = await bench.show(schedule)
    bench.harness.clock.ahead_ms += parse_ms(shown["nextAt"]) + 1 - bench.harness.clock.now_ms()
    member, came_ms = f"schedule:{schedule}", bench.harness.clock.now_ms()
    row = DueRow(member, (await bench.harness.due(schedule))[member])
    # the process stops between the claim and the decision
    bench.harness.clock.ahead_ms += 31_000
    await bench.harness.parts.schedules.runner.on_due(shard_of(schedule), row, came_ms, _keep)
    shown = await bench.show(schedule)
    assert (shown["runs"], shown["missedTicks"]) == (0, 1)
    assert await bench.count_tasks(schedule) == 0


async def test_missed_runs_start_one_after_the_other(bench: ScheduleBench) -> None:
    schedule = await bench.make(missed="all", overlap="skip")
    await bench.visit(schedule, 3 * MINUTE_MS + 45_000)
    for count in (1, 2, 3):
        await bench.await_ended(schedule, count)
        assert await bench.count_tasks(schedule) == count
        await bench.visit(schedule)
    assert (await bench.show(schedule))["skippedTicks"] == 0


@pytest.mark.parametrize(
    ("overlap", "begun", "skipped"), [("skip", 1, 1), ("wait", 1, 0), ("allow", 2, 0)]
)
async def test_overlap_policy_of_a_tick_during_a_run(
    bench: ScheduleBench, overlap: str, begun: int, skipped: int
) -> None:
    bench.harness.peer.hold()
    schedule = await bench.make(overlap=overlap)
    await bench.pass_tick(schedule)
    await bench.pass_tick(schedule)
    shown = await bench.show(schedule)
    assert (len(shown["recent"]), shown["skippedTicks"]) == (begun, skipped)
    bench.harness.peer.release_all()
    if overlap == "wait":
        await bench.await_ended(schedule, 1)
        await bench.visit(schedule)
    assert await bench.count_tasks(schedule) == (1 if overlap == "skip" else 2)


async def test_run_replaces_the_one_before(bench: ScheduleBench) -> None:
    schedule = await bench.make("ask which one", overlap="replace")
    await bench.pass_tick(schedule)
    [first] = (await bench.show(schedule))["recent"]
    await bench.pass_tick(schedule)
    await bench.control.until(first["taskId"], Status.CANCELLED)
    assert await bench.count_tasks(schedule) == 2


@pytest.mark.requirement("EXT-5", "OBJ-8")
async def test_run_of_a_schedule_can_be_routed_by_the_gateway(bench: ScheduleBench) -> None:
    schedule = await bench.make(agent="passerelle")
    await bench.pass_tick(schedule)
    await bench.await_ended(schedule, 1)
    [run] = (await bench.show(schedule))["recent"]
    record = await bench.control.record(run["taskId"])
    assert (record.kind, record.peer in {"echo", "other"}) == (ROUTER, True)


@pytest.mark.requirement("EXT-1")
@pytest.mark.parametrize(("by", "code"), [("rule", "policy"), ("grant", "forbidden")])
async def test_run_that_may_not_replace_another_fails_and_later_ticks_continue(
    bench: ScheduleBench, by: str, code: str
) -> None:
    schedule = await bench.make("ask which one", overlap="replace")
    await bench.pass_tick(schedule)
    first = (await bench.show(schedule))["recent"][0]["taskId"]
    await bench.control.until(first, Status.WAITING_INPUT)
    if by == "rule":
        bench.harness.rules = make_policy((Rule("no-stop", "deny", about=frozenset({"commands"})),))
    else:
        sends = replace(ADA, operations={"echo": frozenset({Method.SEND_MESSAGE})})
        runner = bench.harness.parts.schedules.runner

        def find(_name: str, _tenant: str) -> Principal:
            return sends

        object.__setattr__(runner, "find_principal", find)
    for _ in range(2):
        await bench.pass_tick(schedule)
    shown = await bench.show(schedule)
    assert [one.get("error", {}).get("code") for one in shown["recent"]] == [code, code, None]
    assert (await bench.control.record(first)).status is Status.WAITING_INPUT
    assert await bench.count_tasks(schedule) == 1


async def test_caller_that_may_not_send_runs_no_schedule(bench: ScheduleBench) -> None:
    schedule = await bench.make()
    reader = replace(ADA, operations={"echo": frozenset({Method.GET_TASK})})
    for who, refusal in (
        (reader, Forbidden),
        (replace(ADA, agents=frozenset({"other"})), NotFound),
        (replace(ADA, scopes=ADA.scopes - {AccessScope.CALL}), NotFound),
    ):
        with pytest.raises(refusal):
            await bench.control.do("run_schedule", None, who, scheduleId=schedule)
    runner = bench.harness.parts.schedules.runner

    def find(_name: str, _tenant: str) -> Principal:
        return reader

    object.__setattr__(runner, "find_principal", find)
    await bench.pass_tick(schedule)
    [run] = (await bench.show(schedule))["recent"]
    assert run["error"]["code"] == "forbidden"
    assert await bench.count_tasks(schedule) == 0


# ---------------------------------------------------------------- crashes


class Killed(Exception):
    """The process ends here."""


@pytest.mark.requirement("OBJ-8")
@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("dies", ["before the turn", "behind the turn"])
async def test_crash_at_a_tick_neither_loses_nor_repeats_it(
    bench: ScheduleBench,
    dies: str,
    late: bool,  # noqa: FBT001
) -> None:
    schedule = await bench.make()
    runner = bench.harness.parts.schedules.runner
    submit = runner.submit

    async def die(principal: Principal, command: SubmitTurn, key: str) -> TurnAccepted:
        if dies == "behind the turn":
            await submit(principal, command, key)
        raise Killed

    object.__setattr__(runner, "submit", die)
    with pytest.raises(Killed):
        await bench.pass_tick(schedule)
    object.__setattr__(runner, "submit", submit)
    await bench.harness.restart()
    if late:
        # The restart comes after the store has dropped the idempotency key.
        for key in await _list_keys(bench.harness, schedule):
            await bench.harness.store.nodes.update(shard_of(schedule), key)
    await bench.visit(schedule)
    await bench.visit(schedule)
    shown = (
        await bench.await_ended(schedule, 1)
        if dies == "before the turn"
        else await bench.show(schedule)
    )
    assert (shown["runs"], len(shown["recent"])) == (1, 1)
    assert await bench.count_tasks(schedule) == 1


async def _list_keys(harness: Harness, session: str) -> list[bytes]:
    shard = shard_of(session)
    (names,) = await harness.store.nodes.read(shard, pack("KEYS", f"{{{shard.tag}}}:idem:*"))
    return [pack("DEL", name) for name in cast("list[bytes]", names)]


async def test_unavailable_store_at_a_tick_only_delays_it(bench: ScheduleBench) -> None:
    schedule = await bench.make()
    bench.harness.log.refuses_writes = True
    with pytest.raises(StoreUnavailable):
        await bench.pass_tick(schedule)
    bench.harness.log.refuses_writes = False
    await bench.visit(schedule)
    await bench.await_ended(schedule, 1)
    assert await bench.count_tasks(schedule) == 1


async def test_concurrent_handlers_of_one_row_start_one_run(bench: ScheduleBench) -> None:
    schedule = await bench.make()
    bench.harness.clock.ahead_ms += MINUTE_MS + 1_000
    member = f"schedule:{schedule}"
    row = DueRow(member, (await bench.harness.due(schedule))[member])
    runner, now_ms = bench.harness.parts.schedules.runner, bench.harness.clock.now_ms()
    await asyncio.gather(
        *(runner.on_due(shard_of(schedule), row, now_ms, _keep) for _ in range(4)),
        return_exceptions=True,
    )
    await bench.visit(schedule)
    await bench.await_ended(schedule, 1)
    assert await bench.count_tasks(schedule) == 1


# ---------------------------------------------------------------- commands and reads


async def test_pause_resume_run_and_delete(bench: ScheduleBench) -> None:
    schedule = await bench.make()
    paused: Any = await bench.control.do("pause_schedule", scheduleId=schedule)
    assert paused["schedule"]["status"] == "paused"
    assert f"schedule:{schedule}" not in await bench.harness.due(schedule)
    with pytest.raises(UnsupportedOperation):
        await bench.control.do("pause_schedule", scheduleId=schedule)
    await bench.control.do("run_schedule", scheduleId=schedule)
    await bench.visit(schedule)
    shown = await bench.await_ended(schedule, 1)
    assert [one["cause"] for one in shown["recent"]] == ["requested"]
    bench.harness.clock.ahead_ms += 10 * MINUTE_MS
    resumed: Any = await bench.control.do("resume_schedule", scheduleId=schedule)
    assert resumed["schedule"]["missedTicks"] == 0
    await bench.pass_tick(schedule)
    assert await bench.count_tasks(schedule) == 2
    listed: Any = await bench.control.do("list_schedules")
    assert [one["scheduleId"] for one in listed["schedules"]] == [schedule]
    await bench.control.do("delete_schedule", scheduleId=schedule)
    listed = await bench.control.do("list_schedules")
    assert listed["schedules"] == []
    assert f"schedule:{schedule}" not in await bench.harness.due(schedule)
    assert schedule not in await bench.harness.store.log.read_open(schedule)
    with pytest.raises(UnsupportedOperation):
        await bench.control.do("run_schedule", scheduleId=schedule)


async def test_same_key_is_executed_once(bench: ScheduleBench) -> None:
    given: dict[str, Json] = {"title": "t", "agent": "echo", "text": "echo done", "everyS": 60}
    first: Any = await bench.control.do("create_schedule", "k", **given)
    again: Any = await bench.control.do("create_schedule", "k", **given)
    assert again["repeated"] is True
    schedule = first["schedule"]["scheduleId"]
    assert again["schedule"]["scheduleId"] == schedule
    with pytest.raises(IdempotencyConflict):
        await bench.control.do("create_schedule", "k", **{**given, "text": "another"})
    for _ in range(2):
        await bench.control.do("run_schedule", "r", scheduleId=schedule)
    await bench.visit(schedule)
    await bench.await_ended(schedule, 1)
    assert await bench.count_tasks(schedule) == 1
    for method in ("pause_schedule", "resume_schedule", "delete_schedule"):
        one: Any = await bench.control.do(method, f"k-{method}", scheduleId=schedule)
        stored = len(await bench.harness.entries(schedule))
        two: Any = await bench.control.do(method, f"k-{method}", scheduleId=schedule)
        assert (one["repeated"], two["repeated"]) == (False, True), method
        assert len(await bench.harness.entries(schedule)) == stored, method


async def test_schedule_of_another_owner_is_not_found(bench: ScheduleBench) -> None:
    schedule = await bench.make()
    for method in ("get_schedule", "pause_schedule", "delete_schedule", "get_schedule_history"):
        with pytest.raises(NotFound):
            await bench.control.do(method, None, BOB, scheduleId=schedule)
    listed: Any = await bench.control.do("list_schedules", None, BOB)
    assert listed["schedules"] == []


@pytest.mark.parametrize(
    ("members", "field"),
    [
        ({"everyS": None}, "cron"),
        ({"cron": "0 9 * * *"}, "cron"),
        ({"everyS": None, "cron": "nine o'clock"}, "cron"),
        ({"everyS": None, "cron": "* * * *"}, "cron"),
        ({"timezone": "Europe/Nowhere"}, "timezone"),
        ({"jitterS": 60}, "jitterS"),
        ({"text": "x" * 9_000}, "message"),
        ({"text": None}, "message"),
    ],
)
async def test_invalid_schedule_is_refused(
    bench: ScheduleBench, members: dict[str, Any], field: str
) -> None:
    with pytest.raises(InvalidInput) as caught:
        await bench.make(**members)
    assert caught.value.field == field


async def test_schedules_per_caller_are_limited_and_a_deleted_one_frees_its_place(
    bench: ScheduleBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("passerelle.control.schedules.MOST_SCHEDULES", 2)
    first, _ = await bench.make(), await bench.make()
    with pytest.raises(UnsupportedOperation, match="at most 2 schedules") as refused:
        await bench.make()
    assert refused.value.details["limit"] == 2
    assert (await bench.control.do("list_schedules", None, BOB))["schedules"] == []
    await bench.control.do(
        "create_schedule", None, BOB, title="his own", agent="echo", text="hi", everyS=60
    )
    await bench.control.do("delete_schedule", None, scheduleId=first)
    await run_relay(bench.control)
    await bench.make()
    listed: Any = await bench.control.do("list_schedules", None)
    assert len(listed["schedules"]) == 2


async def test_schedule_of_a_removed_owner_has_no_runs(bench: ScheduleBench) -> None:
    schedule = await bench.make()
    runner = bench.harness.parts.schedules.runner
    object.__setattr__(runner, "find_principal", _find_no_principal)
    await bench.pass_tick(schedule)
    [run] = (await bench.show(schedule))["recent"]
    assert run["error"]["code"] == "owner_gone"
    assert await bench.count_tasks(schedule) == 0


async def test_follower_of_the_session_gets_every_step(bench: ScheduleBench) -> None:
    schedule = await bench.make()
    await bench.pass_tick(schedule)
    await bench.await_ended(schedule, 1)
    page = await bench.harness.store.log.read_page(StreamRef(StreamKind.SESSION, schedule), 0)
    payloads = [decode_event(one.data, one.frame, one.facade).fact.payload for one in page]
    steps = [
        one.schedule.step for one in payloads if isinstance(one, SessionUpdated) and one.schedule
    ]
    assert steps == ["created", "ticked", "begun"]


@pytest.mark.requirement("AP-7")
async def test_store_with_schedules_passes_verification(bench: ScheduleBench) -> None:
    kept, gone = await bench.make(), await bench.make("message hello")
    for schedule in (kept, gone):
        await bench.pass_tick(schedule)
        await bench.await_ended(schedule, 1)
    await bench.control.do("delete_schedule", scheduleId=gone)
    report = await verify_store(bench.harness.store, rebuild=True)
    assert report.lines == []
    assert kept in await bench.harness.store.log.read_open(kept)
