"""Messages over a quota that may be waited for: they are kept, report quota and reset time, and continue in order."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from passerelle.a2a_mapping.extensions import AFTER
from passerelle.core.agent_name import ROUTER
from passerelle.core.commands import GetTaskModel, SubmitTurn, TurnAccepted, WaitMode
from passerelle.core.errors import Limited, UnsupportedOperation
from passerelle.core.oversight_requests import PauseAgent, ResumeAgent
from passerelle.core.payloads.limit import CostEstimated, QuotaBlocked
from passerelle.core.principal import OWNER, Principal
from passerelle.core.task.record import TaskRecord
from passerelle.core.task.requests import (
    CreateTask,
    GiveTask,
    PauseTask,
    ResumeTask,
    StartTask,
    TaskChanged,
)
from passerelle.core.task.status import Status
from passerelle.core.wire.json import JsonObject
from passerelle.core.wire.times import format_ms
from passerelle.delegation.runs import admission
from passerelle.delegation.runs.quota_waits import QuotaWaits, name_line
from passerelle.runtime.limits.account import PeriodName, Quota, find_period
from passerelle.runtime.limits.costs import Charge, Price, Shortage, Spending
from passerelle.runtime.limits.limiter import Limiter
from tests.integration.delegation.test_endings import state_of
from tests.support.harness import ADA, BOB, Harness
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio

PERIOD: PeriodName = "month"
"""Long enough that no period ends during a test unless the test moves the clock."""


class Refused:
    """Collects the callers whose calls were refused."""

    def __init__(self) -> None:
        self.callers: list[str] = []

    def add(self, principal: Principal, _meter: str, _fact: QuotaBlocked) -> None:
        self.callers.append(principal.id)


async def have_quota(
    harness: Harness, *quotas: Quota, price: Price | None = None, who: str = "ada"
) -> Refused:
    """Gives these quotas to a caller from now on."""
    refused = Refused()
    limiter = Limiter(harness.store.limits, "inst_house", harness.clock)
    await harness.stack.enter_async_context(limiter)
    prices = {} if price is None else {"echo": price}
    harness.spending = Spending(limiter, harness.clock, {who: quotas}, prices, refused.add)
    await harness.restart()
    return refused


def calls(limit: int) -> Quota:
    return Quota(limit, PERIOD, waits=True)


def end_of_period(harness: Harness) -> int:
    return find_period(PERIOD, harness.clock.now_ms())[1]


def begin_next_period(harness: Harness) -> None:
    """Moves the clock into the next period."""
    harness.clock.ahead_ms += end_of_period(harness) - harness.clock.now_ms() + 10


async def run_due_rows(harness: Harness, *accepted: TurnAccepted) -> None:
    for one in accepted:
        await harness.run_due("queued", one.task_id, after_ms=0)


async def read(harness: Harness, task_id: str) -> TaskRecord:
    record = await harness.parts.dispatch.read_task(task_id)
    assert record is not None
    return record


async def waits(harness: Harness, accepted: TurnAccepted) -> bool:
    return (await harness.record(accepted)).status is Status.WAITING_RESOURCE


@pytest.mark.requirement("ST-8", "CF-7", "EXT-7", "TEV-7")
@pytest.mark.parametrize("wait", ["unary", "stream", "none"])
async def test_message_over_a_quota_waits_with_quota_and_reset_time_and_continues(
    harness: Harness, wait: WaitMode
) -> None:
    refused = await have_quota(harness, calls(1))
    await harness.talk("covered")
    until = format_ms(end_of_period(harness))
    accepted = await harness.send("over", wait=wait)
    task = cast("JsonObject", (await harness.await_answer(accepted))["task"])
    assert state_of(task) == "WORKING"
    assert cast("JsonObject", task["metadata"])["urn:passerelle:status"] == {
        "reason": "caller_quota",
        "peer": "echo",
        "until": until,
    }
    reason = (
        f"the quota of 1 call a month is used up; the message is sent when it resets at {until}; "
        "it is the next one, and can be cancelled"
    )
    assert reason in str(task["status"])
    record = await harness.record(accepted)
    assert (record.status, record.attempts, record.status_reason) == (
        Status.WAITING_RESOURCE,
        (),
        reason,
    )
    assert await harness.resources(accepted) == ["quota"]
    assert f"queued:{accepted.task_id}" in await harness.due(accepted.task_id)
    explained = await harness.service.read(ADA, GetTaskModel(accepted.task_id, "explain"))
    assert [one["text"] for one in cast("list[JsonObject]", explained["waiting"])] == [reason]
    assert cast("JsonObject", explained["blocked"])["status"] == "waiting_resource"
    [met] = cast("list[JsonObject]", explained["limits"])
    assert met["text"] == f"caller ada: 1 of 1 calls were used, until {until}"
    assert harness.peer.texts == ["covered"]
    assert refused.callers == [], "nothing was refused"

    begin_next_period(harness)
    await run_due_rows(harness, accepted)
    record = await harness.until(accepted, Status.COMPLETED)
    assert harness.peer.texts == ["covered", "over"]
    assert f"queued:{accepted.task_id}" not in await harness.due(accepted.task_id)
    assert state_of(await harness.read(accepted)) == "COMPLETED"
    # It has used the new period's quota: the next message waits for the period after.
    further = await harness.send("further", wait="none")
    assert (await harness.record(further)).status is Status.WAITING_RESOURCE


async def test_quota_without_waiting_refuses_the_message(harness: Harness) -> None:
    refused = await have_quota(harness, Quota(1, PERIOD))
    await harness.talk("covered")
    with pytest.raises(Limited, match="the quota of this month is used up"):
        await harness.send("over")
    assert refused.callers == ["ada"]


async def test_message_that_no_period_covers_or_over_the_waiting_limit_is_refused(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    budget = Quota(100_000, PERIOD, currency="EUR", waits=True)
    price = Price("EUR", "per_call", 100_001)
    refused = await have_quota(harness, budget, price=price)
    with pytest.raises(Limited, match="budget"):
        await harness.send("too dear")
    harness.spending = None
    await have_quota(harness, calls(0))
    with pytest.raises(Limited, match="quota"):
        await harness.send("never")
    await have_quota(harness, calls(1))
    await harness.talk("covered")
    monkeypatch.setattr(admission, "MOST_WAITING", 1)
    await harness.send("waits", wait="none")
    with pytest.raises(Limited, match="quota"):
        await harness.send("one too many")
    assert refused.callers == ["ada"]


async def test_waiting_messages_continue_in_order_and_the_rest_get_a_new_reset_time(
    harness: Harness,
) -> None:
    await have_quota(harness, calls(2))
    for text in ("a", "b"):
        await harness.talk(text)
    sent = [await harness.send(f"over {number}", wait="none") for number in range(3)]
    places = [str((await harness.record(one)).status_reason) for one in sent]
    for reason, place in zip(
        places, ("it is the next one", "1 waits before it", "2 wait before it"), strict=True
    ):
        assert place in reason
    before = await harness.record(sent[2])
    begin_next_period(harness)
    # The order of due rows does not matter.
    await run_due_rows(harness, sent[2])
    for one in sent[:2]:
        await harness.until(one, Status.COMPLETED)
    first, second = [await harness.record(one) for one in sent[:2]]
    assert (first.started_at or "") <= (second.started_at or "")
    assert sorted(harness.peer.texts[2:]) == ["over 0", "over 1"]

    until_ms = end_of_period(harness)

    def is_known() -> bool:
        known = harness.parts.queues.quotas.find(name_line(ADA.key))
        return known is not None and known.till_ms == until_ms

    await wait_until(is_known, 10, "the third one was tried")
    await run_due_rows(harness, sent[2])
    after = await harness.record(sent[2])
    until = format_ms(until_ms)
    assert (after.status, after.status_at) == (Status.WAITING_RESOURCE, before.status_at)
    assert after.queued is not None
    assert before.queued is not None
    assert (after.queued.until, after.queued.since) == (until, before.queued.since)
    assert f"resets at {until}" in str((await harness.read(sent[2]))["status"])
    begin_next_period(harness)
    await run_due_rows(harness, sent[2])
    await harness.until(sent[2], Status.COMPLETED)


async def test_message_after_the_reset_waits_behind_earlier_messages(
    harness: Harness,
) -> None:
    await have_quota(harness, calls(1))
    await harness.talk("covered")
    early = await harness.send("early", wait="none")
    begin_next_period(harness)
    late = await harness.send("late", wait="none")
    await harness.until(early, Status.COMPLETED)
    assert (await harness.record(late)).status is Status.WAITING_RESOURCE
    assert "it is queued behind other messages of its caller" in str(
        (await harness.read(late))["status"]
    )
    assert harness.peer.texts == ["covered", "early"]


async def test_stream_of_a_message_over_a_quota_begins_with_the_reason(
    harness: Harness,
) -> None:
    await have_quota(harness, calls(1))
    await harness.talk("covered")
    accepted = await harness.send("chunks 2", wait="stream")
    watching = asyncio.create_task(harness.watch(accepted))
    begin_next_period(harness)
    await run_due_rows(harness, accepted)
    first, *rest = await watching
    task = cast("JsonObject", first["task"])
    assert state_of(task) == "WORKING"
    assert "is used up" in str(task["status"])
    assert len(rest) >= 3, "the chunks and the end follow"
    assert state_of(await harness.read(accepted)) == "COMPLETED"


async def test_quota_of_one_caller_does_not_delay_others(harness: Harness) -> None:
    await have_quota(harness, calls(1))
    await harness.talk("covered")
    waiting = await harness.send("over", wait="none")
    other = await harness.send("bob's", who=BOB)
    assert (
        state_of(cast("JsonObject", (await harness.await_answer(other, who=BOB))["task"]))
        == "COMPLETED"
    )
    assert (await harness.record(waiting)).status is Status.WAITING_RESOURCE


async def test_waiting_task_can_be_cancelled_and_paused_and_transferred(harness: Harness) -> None:
    await have_quota(harness, calls(1))
    await harness.talk("covered")
    cancelled, paused, given = [
        await harness.send(text, wait="none") for text in ("cancelled", "paused", "given")
    ]
    assert state_of(await harness.cancel(cancelled)) == "CANCELED"
    await harness.service.execute(ADA, PauseTask(paused.task_id), None)
    await harness.service.execute(ADA, GiveTask(given.task_id, "bob"), None)
    await run_due_rows(harness, given)
    await harness.until(given, Status.COMPLETED)
    begin_next_period(harness)
    await run_due_rows(harness, paused)
    assert (await harness.record(paused)).status is Status.PAUSED
    await harness.service.execute(ADA, ResumeTask(paused.task_id), None)
    assert (await harness.record(paused)).status is Status.WAITING_RESOURCE
    await run_due_rows(harness, paused)
    await harness.until(paused, Status.COMPLETED)
    assert harness.peer.texts == ["covered", "given", "paused"]
    assert (await harness.record(cancelled)).status is Status.CANCELLED


async def test_queued_turn_waits_for_its_context_and_then_for_the_quota(
    harness: Harness,
) -> None:
    await have_quota(harness, calls(1))
    accepted, _ = await harness.talk("covered")
    first = await harness.send("first", wait="none", context_id=accepted.context_id)
    concurrent = await harness.send("beside", wait="none", context_id=accepted.context_id)
    command = SubmitTurn(
        "echo",
        {**harness.message("queued"), "contextId": accepted.context_id},
        "http",
        "none",
        context_id=accepted.context_id,
        when_busy="queue",
    )
    queued = cast("TurnAccepted", await harness.service.execute(ADA, command, None))
    record = await harness.record(queued)
    assert (record.status, queued.position) == (Status.QUEUED, 1)
    assert record.queued is not None
    assert (record.queued.cause, record.queued.unpaid) == ("turn", True)
    for number, text in enumerate(("first", "beside")):
        begin_next_period(harness)
        await run_due_rows(harness, (first, concurrent)[number])
        await harness.until((first, concurrent)[number], Status.COMPLETED)
        assert harness.peer.texts[-1] == text
    record = await harness.until(queued, Status.WAITING_RESOURCE)
    assert record.queued is not None
    assert record.queued.until == format_ms(end_of_period(harness))
    task = cast("JsonObject", (await harness.await_answer(queued))["task"])
    assert state_of(task) == "WORKING"
    assert "is used up" in str(task["status"])
    begin_next_period(harness)
    await run_due_rows(harness, queued)
    await harness.until(queued, Status.COMPLETED)
    assert harness.peer.texts == ["covered", "first", "beside", "queued"]


async def test_started_task_waits_for_the_quota_like_a_message(harness: Harness) -> None:
    await have_quota(harness, calls(1))
    await harness.talk("covered")
    created = await harness.service.execute(ADA, CreateTask("echo", "dig a hole"), None)
    task_id = str(cast("TaskChanged", created).task["taskId"])
    started = await harness.service.execute(ADA, StartTask(task_id, "http"), None)
    assert cast("TaskChanged", started).task["status"] == "waiting_resource"
    with pytest.raises(UnsupportedOperation, match="queued"):
        await harness.service.execute(ADA, StartTask(task_id, "http"), None)
    begin_next_period(harness)
    await harness.run_due("queued", task_id, after_ms=0)

    async def is_done() -> bool:
        return (await read(harness, task_id)).status is Status.COMPLETED

    await wait_until(is_done, 10, "it is done")
    assert harness.peer.texts == ["covered", "dig a hole"]


async def test_routed_message_waits_with_its_chosen_agent(
    street: Harness,
) -> None:
    await have_quota(street, calls(1))
    await street.talk("covered", agent=ROUTER)
    accepted = await street.send("over", agent=ROUTER, wait="none")
    record = await street.record(accepted)
    assert (record.status, record.peer) == (Status.WAITING_RESOURCE, "echo")
    types = await street.types(accepted)
    assert types.count("routing.decided") == 1
    begin_next_period(street)
    await run_due_rows(street, accepted)
    await street.until(accepted, Status.COMPLETED)
    assert street.peers["echo"].texts == ["covered", "over"]


async def test_agent_paused_meanwhile_is_waited_for_and_charged_once(harness: Harness) -> None:
    await have_quota(harness, calls(2))
    for text in ("a", "b"):
        await harness.talk(text)
    accepted = await harness.send("over", wait="none")
    await harness.service.execute(OWNER, PauseAgent("echo"), None)
    begin_next_period(harness)
    await run_due_rows(harness, accepted)
    record = await harness.until(accepted, Status.QUEUED)
    assert record.queued is not None
    assert (record.queued.cause, record.queued.unpaid) == ("paused", None)
    await harness.service.execute(OWNER, ResumeAgent("echo"), None)
    await harness.until(accepted, Status.COMPLETED)
    await harness.talk("the other one of this period")
    further = await harness.send("further", wait="none")
    assert (await harness.record(further)).status is Status.WAITING_RESOURCE


async def test_message_after_another_task_waits_for_task_and_quota(harness: Harness) -> None:
    await have_quota(harness, calls(1))
    harness.peer.hold()
    first = await harness.send("first", wait="none")
    await wait_until(lambda: harness.peer.texts == ["first"], 10, "the agent works at it")
    message = {
        **harness.message("then"),
        "contextId": first.context_id,
        "metadata": {AFTER: [first.facade]},
    }
    command = SubmitTurn(
        "echo", cast("JsonObject", message), "a2a", "none", context_id=first.context_id
    )
    then = cast("TurnAccepted", await harness.service.execute(ADA, command, None))
    assert (await harness.record(then)).status is Status.BLOCKED
    harness.peer.release_all()
    await harness.until(first, Status.COMPLETED)
    await harness.run_due("unblock", first.task_id, after_ms=0)
    await harness.until(then, Status.WAITING_RESOURCE)
    begin_next_period(harness)
    await run_due_rows(harness, then)
    await harness.until(then, Status.COMPLETED)
    assert harness.peer.texts == ["first", "then"]


async def test_estimated_cost_is_recorded_when_the_run_is_charged(harness: Harness) -> None:
    budget = Quota(150_000, PERIOD, currency="EUR", waits=True)
    await have_quota(harness, budget, price=Price("EUR", "per_call", 100_000))
    await harness.talk("covered")
    accepted = await harness.send("over", wait="none")
    assert "the budget of 0.15 EUR a month is used up" in str(
        (await harness.record(accepted)).status_reason
    )

    async def list_cost_facts() -> list[type]:
        kinds = {CostEstimated, QuotaBlocked}
        types = [type(one.fact.payload) for one in await harness.events(accepted)]
        return [one for one in types if one in kinds]

    assert await list_cost_facts() == [QuotaBlocked]
    begin_next_period(harness)
    await run_due_rows(harness, accepted)
    await harness.until(accepted, Status.COMPLETED)
    assert await list_cost_facts() == [QuotaBlocked, CostEstimated]


async def test_waiting_messages_continue_on_the_next_instance(
    harness: Harness,
) -> None:
    await have_quota(harness, calls(1))
    await harness.talk("covered")
    sent = [await harness.send(text, wait="none") for text in ("one", "two")]
    await harness.restart()
    for one, text in zip(sent, ("one", "two"), strict=True):
        begin_next_period(harness)
        await run_due_rows(harness, *[each for each in sent if await waits(harness, each)])
        await harness.until(one, Status.COMPLETED)
        assert harness.peer.texts[-1] == text
    assert harness.peer.texts == ["covered", "one", "two"]


async def test_repeat_of_a_waiting_message_is_the_same_turn(harness: Harness) -> None:
    await have_quota(harness, calls(1))
    await harness.talk("covered")
    message = harness.message("over")
    first = await harness.send("over", wait="none", idem="key-1", message=message)
    second = await harness.send("over", wait="none", idem="key-1", message=message)
    assert (second.task_id, second.repeated) == (first.task_id, True)
    assert await harness.store.queues.count([name_line(ADA.key)]) == [1]


async def test_raised_quota_sends_the_waiting_message_at_once(harness: Harness) -> None:
    await have_quota(harness, calls(1))
    await harness.talk("covered")
    accepted = await harness.send("over", wait="none")
    assert harness.spending is not None
    harness.spending.reload({"ada": (calls(2),)}, {})
    harness.parts.queues.look_at_quotas()
    await harness.until(accepted, Status.COMPLETED)


async def test_further_message_to_a_waiting_task_is_kept(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried, pay = asyncio.Event(), QuotaWaits.pay

    async def pay_and_set(quotas: QuotaWaits, record: TaskRecord) -> Charge | Shortage:
        paid = await pay(quotas, record)
        tried.set()
        return paid

    monkeypatch.setattr(QuotaWaits, "pay", pay_and_set)
    await have_quota(harness, calls(2))
    await harness.talk("covered")
    await harness.talk("covered too")
    accepted = await harness.send("over", wait="none")
    # From here on its queue is idle, and does not claim the call that the next message uses.
    await asyncio.wait_for(tried.wait(), 10)
    assert harness.spending is not None
    harness.spending.reload({"ada": (calls(3),)}, {})
    more = await harness.send("more", task=accepted.facade, context_id=accepted.context_id)
    task = cast("JsonObject", (await harness.await_answer(more))["task"])
    assert state_of(task) == "WORKING"
    assert (await harness.record(accepted)).status is Status.WAITING_RESOURCE
