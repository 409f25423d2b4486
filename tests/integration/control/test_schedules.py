"""Schedules over a real engine: made, fired, held up, interrupted, and read by those who own them (AP-7, OBJ-8)."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import Any, Final, cast

import pytest

from passerelle.a2a_mapping.rpc import Method
from passerelle.core.agent_name import ROUTER
from passerelle.core.commands import SubmitTurn, TurnAccepted
from passerelle.core.errors import (
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
from passerelle.core.principal import Principal
from passerelle.core.task.status import Status
from passerelle.core.wire.json import Json, JsonObject
from passerelle.core.wire.times import parse_ms
from passerelle.delegation.verification.walk import verify_store
from passerelle.permission_bridge.rules import Rule, make_policy
from passerelle.store.connection import pack
from tests.integration.control.test_lag import carry
from tests.support.control_client import ControlClient
from tests.support.harness import ADA, BOB, Harness
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio

MINUTE_MS: Final = 60_000


async def _keep(_shard: Shard, _row: DueRow) -> bool:
    return False


def _find_nobody(_name: str, _tenant: str) -> Principal | None:
    return None


@dataclass(frozen=True)
class Wall:
    """The schedules of a desk, and the hand that moves the clock."""

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
        """Lets time pass, and has the row of the schedule handled, as the due loop does."""
        self.harness.clock.ahead_ms += ahead_ms
        member = f"schedule:{schedule}"
        token = (await self.harness.due(schedule)).get(member)
        if token is None:
            return
        row, now_ms = DueRow(member, token), self.harness.clock.now_ms()
        runner = self.harness.parts.schedules.runner
        await runner.on_due(shard_of(schedule), row, now_ms, _keep)

    async def pass_tick(self, schedule: str, late_ms: int = 1) -> None:
        """The next tick, and so much later."""
        shown = await self.show(schedule)
        ahead_ms = parse_ms(shown["nextAt"]) + late_ms - self.harness.clock.now_ms()
        await self.visit(schedule, ahead_ms)

    async def count_tasks(self, schedule: str) -> int:
        entries = await self.harness.entries(schedule)
        facts = [decode_event(one.data, one.frame, one.facade).fact for one in entries]
        return sum(isinstance(fact.payload, TaskCreated) for fact in facts)

    async def ended(self, schedule: str, count: int) -> Any:  # noqa: ANN401  JSON
        """The schedule once so many of its newest runs have ended."""

        async def look() -> JsonObject | None:
            shown = await self.show(schedule)
            over = [one for one in shown.get("recent", []) if one.get("status") == "completed"]
            return shown if len(over) >= count else None

        return await wait_until(look, 10, f"{count} runs have ended")


@pytest.fixture
def wall(control: ControlClient) -> Wall:
    return Wall(control)


@pytest.mark.requirement("AP-7", "OBJ-7")
async def test_tick_becomes_a_task_like_any_other(wall: Wall) -> None:
    schedule = await wall.make("echo done")
    await wall.pass_tick(schedule)
    shown = await wall.ended(schedule, 1)
    [run] = shown["recent"]
    assert (run["number"], run["cause"], shown["runs"]) == (1, "due", 1)
    record = await wall.control.until(run["taskId"], Status.COMPLETED)
    assert record.session_id == schedule
    listed: Any = await wall.control.do("list_tasks", agent="echo")
    assert run["taskId"] in [one["taskId"] for one in listed["tasks"]]
    [message] = wall.harness.peer.messages
    assert message["parts"] == [{"text": "echo done"}]


@pytest.mark.requirement("AP-7")
async def test_hundred_ticks_with_nothing_to_do_make_no_task(wall: Wall) -> None:
    schedule = await wall.make(missed="skip")
    for _ in range(100):
        await wall.pass_tick(schedule, late_ms=45_000)
    shown = await wall.show(schedule)
    assert (shown["missedTicks"], shown["runs"], shown.get("recent")) == (100, 0, [])
    assert await wall.count_tasks(schedule) == 0
    assert wall.harness.peer.messages == []
    history: Any = await wall.control.do("get_schedule_history", scheduleId=schedule, limit=200)
    token, paged = "", list[Any]()
    while not paged or token:
        page: Any = await wall.control.do(
            "get_schedule_history", scheduleId=schedule, pageSize=30, pageToken=token
        )
        paged += page["steps"]
        token = page["nextPageToken"]
    assert paged == history["steps"]
    assert [one["change"]["step"] for one in history["steps"]] == ["created"] + 100 * ["ticked"]


@pytest.mark.requirement("OBJ-8")
@pytest.mark.parametrize(("missed", "runs"), [("skip", 0), ("once", 1), ("all", 5)])
async def test_ticks_of_an_outage_come_to_what_the_policy_says(
    wall: Wall, missed: str, runs: int
) -> None:
    schedule = await wall.make(missed=missed, overlap="allow")
    await wall.visit(schedule, 5 * MINUTE_MS + 45_000)
    shown = await wall.ended(schedule, runs)
    assert (shown["runs"], shown["missedTicks"]) == (runs, 5 - runs)
    assert [one["cause"] for one in shown["recent"]] == runs * ["missed"]
    await wall.visit(schedule)
    assert await wall.count_tasks(schedule) == runs


async def test_tick_that_grew_late_behind_its_row_is_judged_as_late(wall: Wall) -> None:
    schedule = await wall.make(missed="skip")
    shown = await wall.show(schedule)
    wall.harness.clock.ahead_ms += parse_ms(shown["nextAt"]) + 1 - wall.harness.clock.now_ms()
    member, came_ms = f"schedule:{schedule}", wall.harness.clock.now_ms()
    row = DueRow(member, (await wall.harness.due(schedule))[member])
    # the process stands still between the claim and the judgement
    wall.harness.clock.ahead_ms += 31_000
    await wall.harness.parts.schedules.runner.on_due(shard_of(schedule), row, came_ms, _keep)
    shown = await wall.show(schedule)
    assert (shown["runs"], shown["missedTicks"]) == (0, 1)
    assert await wall.count_tasks(schedule) == 0


async def test_late_runs_come_one_after_the_other(wall: Wall) -> None:
    schedule = await wall.make(missed="all", overlap="skip")
    await wall.visit(schedule, 3 * MINUTE_MS + 45_000)
    for count in (1, 2, 3):
        await wall.ended(schedule, count)
        assert await wall.count_tasks(schedule) == count
        await wall.visit(schedule)
    assert (await wall.show(schedule))["skippedTicks"] == 0


@pytest.mark.parametrize(
    ("overlap", "begun", "skipped"), [("skip", 1, 1), ("wait", 1, 0), ("allow", 2, 0)]
)
async def test_tick_that_meets_a_run(wall: Wall, overlap: str, begun: int, skipped: int) -> None:
    wall.harness.peer.hold()
    schedule = await wall.make(overlap=overlap)
    await wall.pass_tick(schedule)
    await wall.pass_tick(schedule)
    shown = await wall.show(schedule)
    assert (len(shown["recent"]), shown["skippedTicks"]) == (begun, skipped)
    wall.harness.peer.release_all()
    if overlap == "wait":
        await wall.ended(schedule, 1)
        await wall.visit(schedule)
    assert await wall.count_tasks(schedule) == (1 if overlap == "skip" else 2)


async def test_run_takes_the_place_of_the_one_before(wall: Wall) -> None:
    schedule = await wall.make("ask which one", overlap="replace")
    await wall.pass_tick(schedule)
    [first] = (await wall.show(schedule))["recent"]
    await wall.pass_tick(schedule)
    await wall.control.until(first["taskId"], Status.CANCELLED)
    assert await wall.count_tasks(schedule) == 2


@pytest.mark.requirement("EXT-5", "OBJ-8")
async def test_run_may_be_given_to_the_agent_that_the_gateway_chooses(wall: Wall) -> None:
    schedule = await wall.make(agent="passerelle")
    await wall.pass_tick(schedule)
    await wall.ended(schedule, 1)
    [run] = (await wall.show(schedule))["recent"]
    record = await wall.control.record(run["taskId"])
    assert (record.kind, record.peer in {"echo", "other"}) == (ROUTER, True)


@pytest.mark.requirement("EXT-1")
@pytest.mark.parametrize(("by", "code"), [("rule", "policy"), ("grant", "forbidden")])
async def test_run_fails_that_may_not_take_the_place_of_another_and_later_ones_are_not_held_up(
    wall: Wall, by: str, code: str
) -> None:
    schedule = await wall.make("ask which one", overlap="replace")
    await wall.pass_tick(schedule)
    first = (await wall.show(schedule))["recent"][0]["taskId"]
    await wall.control.until(first, Status.WAITING_INPUT)
    if by == "rule":
        wall.harness.rules = make_policy((Rule("no-stop", "deny", about=frozenset({"commands"})),))
    else:
        sends = replace(ADA, operations={"echo": frozenset({Method.SEND_MESSAGE})})
        runner = wall.harness.parts.schedules.runner

        def find(_name: str, _tenant: str) -> Principal:
            return sends

        object.__setattr__(runner, "find_principal", find)
    for _ in range(2):
        await wall.pass_tick(schedule)
    shown = await wall.show(schedule)
    assert [one.get("error", {}).get("code") for one in shown["recent"]] == [code, code, None]
    assert (await wall.control.record(first)).status is Status.WAITING_INPUT
    assert await wall.count_tasks(schedule) == 1


# ---------------------------------------------------------------- whoever has it fire dies


class Killed(Exception):
    """The process ends here."""


@pytest.mark.requirement("OBJ-8")
@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("dies", ["before the turn", "behind the turn"])
async def test_process_that_dies_at_a_tick_neither_loses_nor_repeats_it(
    wall: Wall,
    dies: str,
    late: bool,  # noqa: FBT001
) -> None:
    schedule = await wall.make()
    runner = wall.harness.parts.schedules.runner
    submit = runner.submit

    async def die(principal: Principal, command: SubmitTurn, key: str) -> TurnAccepted:
        if dies == "behind the turn":
            await submit(principal, command, key)
        raise Killed

    object.__setattr__(runner, "submit", die)
    with pytest.raises(Killed):
        await wall.pass_tick(schedule)
    object.__setattr__(runner, "submit", submit)
    await wall.harness.restart()
    if late:
        # Behind the time for which the store remembers the key.
        for key in await _list_keys(wall.harness, schedule):
            await wall.harness.store.nodes.update(shard_of(schedule), key)
    await wall.visit(schedule)
    await wall.visit(schedule)
    shown = (
        await wall.ended(schedule, 1) if dies == "before the turn" else await wall.show(schedule)
    )
    assert (shown["runs"], len(shown["recent"])) == (1, 1)
    assert await wall.count_tasks(schedule) == 1


async def _list_keys(harness: Harness, session: str) -> list[bytes]:
    shard = shard_of(session)
    (names,) = await harness.store.nodes.read(shard, pack("KEYS", f"{{{shard.tag}}}:idem:*"))
    return [pack("DEL", name) for name in cast("list[bytes]", names)]


async def test_store_that_is_away_at_a_tick_only_delays_it(wall: Wall) -> None:
    schedule = await wall.make()
    wall.harness.log.refuses_writes = True
    with pytest.raises(StoreUnavailable):
        await wall.pass_tick(schedule)
    wall.harness.log.refuses_writes = False
    await wall.visit(schedule)
    await wall.ended(schedule, 1)
    assert await wall.count_tasks(schedule) == 1


async def test_two_who_handle_one_row_begin_one_run(wall: Wall) -> None:
    schedule = await wall.make()
    wall.harness.clock.ahead_ms += MINUTE_MS + 1_000
    member = f"schedule:{schedule}"
    row = DueRow(member, (await wall.harness.due(schedule))[member])
    runner, now_ms = wall.harness.parts.schedules.runner, wall.harness.clock.now_ms()
    await asyncio.gather(
        *(runner.on_due(shard_of(schedule), row, now_ms, _keep) for _ in range(4)),
        return_exceptions=True,
    )
    await wall.visit(schedule)
    await wall.ended(schedule, 1)
    assert await wall.count_tasks(schedule) == 1


# ---------------------------------------------------------------- commands and reads


async def test_pause_resume_run_and_delete(wall: Wall) -> None:
    schedule = await wall.make()
    paused: Any = await wall.control.do("pause_schedule", scheduleId=schedule)
    assert paused["schedule"]["status"] == "paused"
    assert f"schedule:{schedule}" not in await wall.harness.due(schedule)
    with pytest.raises(UnsupportedOperation):
        await wall.control.do("pause_schedule", scheduleId=schedule)
    await wall.control.do("run_schedule", scheduleId=schedule)
    await wall.visit(schedule)
    shown = await wall.ended(schedule, 1)
    assert [one["cause"] for one in shown["recent"]] == ["requested"]
    wall.harness.clock.ahead_ms += 10 * MINUTE_MS
    resumed: Any = await wall.control.do("resume_schedule", scheduleId=schedule)
    assert resumed["schedule"]["missedTicks"] == 0
    await wall.pass_tick(schedule)
    assert await wall.count_tasks(schedule) == 2
    listed: Any = await wall.control.do("list_schedules")
    assert [one["scheduleId"] for one in listed["schedules"]] == [schedule]
    await wall.control.do("delete_schedule", scheduleId=schedule)
    listed = await wall.control.do("list_schedules")
    assert listed["schedules"] == []
    assert f"schedule:{schedule}" not in await wall.harness.due(schedule)
    assert schedule not in await wall.harness.store.log.read_open(schedule)
    with pytest.raises(UnsupportedOperation):
        await wall.control.do("run_schedule", scheduleId=schedule)


async def test_same_key_is_carried_out_once(wall: Wall) -> None:
    given: dict[str, Json] = {"title": "t", "agent": "echo", "text": "echo done", "everyS": 60}
    first: Any = await wall.control.do("create_schedule", "k", **given)
    again: Any = await wall.control.do("create_schedule", "k", **given)
    assert again["repeated"] is True
    schedule = first["schedule"]["scheduleId"]
    assert again["schedule"]["scheduleId"] == schedule
    with pytest.raises(IdempotencyConflict):
        await wall.control.do("create_schedule", "k", **{**given, "text": "another"})
    for _ in range(2):
        await wall.control.do("run_schedule", "r", scheduleId=schedule)
    await wall.visit(schedule)
    await wall.ended(schedule, 1)
    assert await wall.count_tasks(schedule) == 1
    for method in ("pause_schedule", "resume_schedule", "delete_schedule"):
        one: Any = await wall.control.do(method, f"k-{method}", scheduleId=schedule)
        stored = len(await wall.harness.entries(schedule))
        two: Any = await wall.control.do(method, f"k-{method}", scheduleId=schedule)
        assert (one["repeated"], two["repeated"]) == (False, True), method
        assert len(await wall.harness.entries(schedule)) == stored, method


async def test_schedule_of_somebody_else_is_none(wall: Wall) -> None:
    schedule = await wall.make()
    for method in ("get_schedule", "pause_schedule", "delete_schedule", "get_schedule_history"):
        with pytest.raises(NotFound):
            await wall.control.do(method, None, BOB, scheduleId=schedule)
    listed: Any = await wall.control.do("list_schedules", None, BOB)
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
async def test_terms_that_are_none_are_refused(
    wall: Wall, members: dict[str, Any], field: str
) -> None:
    with pytest.raises(InvalidInput) as caught:
        await wall.make(**members)
    assert caught.value.field == field


async def test_a_caller_has_so_many_schedules_and_room_again_once_one_is_deleted(
    wall: Wall, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("passerelle.control.schedules.MOST_SCHEDULES", 2)
    first, _ = await wall.make(), await wall.make()
    with pytest.raises(UnsupportedOperation, match="at most 2 schedules") as refused:
        await wall.make()
    assert refused.value.details["limit"] == 2
    assert (await wall.control.do("list_schedules", None, BOB))["schedules"] == []
    await wall.control.do(
        "create_schedule", None, BOB, title="his own", agent="echo", text="hi", everyS=60
    )
    await wall.control.do("delete_schedule", None, scheduleId=first)
    await carry(wall.control)
    await wall.make()
    listed: Any = await wall.control.do("list_schedules", None)
    assert len(listed["schedules"]) == 2


async def test_owner_who_may_not_come_in_any_more_has_no_runs(wall: Wall) -> None:
    schedule = await wall.make()
    runner = wall.harness.parts.schedules.runner
    object.__setattr__(runner, "find_principal", _find_nobody)
    await wall.pass_tick(schedule)
    [run] = (await wall.show(schedule))["recent"]
    assert run["error"]["code"] == "owner_gone"
    assert await wall.count_tasks(schedule) == 0


async def test_whoever_follows_the_session_is_told_of_every_step(wall: Wall) -> None:
    schedule = await wall.make()
    await wall.pass_tick(schedule)
    await wall.ended(schedule, 1)
    page = await wall.harness.store.log.read_page(StreamRef(StreamKind.SESSION, schedule), 0)
    payloads = [decode_event(one.data, one.frame, one.facade).fact.payload for one in page]
    steps = [
        one.schedule.step for one in payloads if isinstance(one, SessionUpdated) and one.schedule
    ]
    assert steps == ["created", "ticked", "begun"]


@pytest.mark.requirement("AP-7")
async def test_store_with_schedules_is_whole(wall: Wall) -> None:
    kept, gone = await wall.make(), await wall.make("message hello")
    for schedule in (kept, gone):
        await wall.pass_tick(schedule)
        await wall.ended(schedule, 1)
    await wall.control.do("delete_schedule", scheduleId=gone)
    report = await verify_store(wall.harness.store, rebuild=True)
    assert report.lines == []
    assert kept in await wall.harness.store.log.read_open(kept)
