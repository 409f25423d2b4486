"""Messages over a quota that may be waited for: they are kept, report quota and reset time, and continue in order."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from passerelle.a2a_mapping.extensions import AFTER
from passerelle.core.agent_name import ROUTER
from passerelle.core.commands import GetTaskModel, SubmitTurn, TurnAccepted, WaitMode
from passerelle.core.errors import Limited, UnsupportedOperation
from passerelle.core.payloads.limit import CostEstimated, QuotaBlocked
from passerelle.core.principal import OWNER, Principal
from passerelle.core.session.agent_requests import PauseAgent, ResumeAgent
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
from tests.support.house import ADA, BOB, House
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
    house: House, *quotas: Quota, price: Price | None = None, who: str = "ada"
) -> Refused:
    """Gives these quotas to a caller from now on."""
    refused = Refused()
    limiter = Limiter(house.store.limits, "inst_house", house.clock)
    await house.stack.enter_async_context(limiter)
    prices = {} if price is None else {"echo": price}
    house.spending = Spending(limiter, house.clock, {who: quotas}, prices, refused.add)
    await house.restart()
    return refused


def calls(limit: int) -> Quota:
    return Quota(limit, PERIOD, waits=True)


def end_of_period(house: House) -> int:
    return find_period(PERIOD, house.clock.now_ms())[1]


def begin_next_period(house: House) -> None:
    """Moves the clock into the next period."""
    house.clock.ahead_ms += end_of_period(house) - house.clock.now_ms() + 10


async def run_due_rows(house: House, *accepted: TurnAccepted) -> None:
    for one in accepted:
        await house.come_due("queued", one.task_id, after_ms=0)


async def read(house: House, task_id: str) -> TaskRecord:
    record = await house.parts.dispatch.read_task(task_id)
    assert record is not None
    return record


async def waits(house: House, accepted: TurnAccepted) -> bool:
    return (await house.record(accepted)).status is Status.WAITING_RESOURCE


@pytest.mark.requirement("ST-8", "CF-7", "EXT-7", "TEV-7")
@pytest.mark.parametrize("wait", ["unary", "stream", "none"])
async def test_message_over_a_quota_waits_with_quota_and_reset_time_and_continues(
    house: House, wait: WaitMode
) -> None:
    refused = await have_quota(house, calls(1))
    await house.talk("covered")
    until = format_ms(end_of_period(house))
    accepted = await house.send("over", wait=wait)
    task = cast("JsonObject", (await house.hear(accepted))["task"])
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
    record = await house.record(accepted)
    assert (record.status, record.attempts, record.status_reason) == (
        Status.WAITING_RESOURCE,
        (),
        reason,
    )
    assert await house.resources(accepted) == ["quota"]
    assert f"queued:{accepted.task_id}" in await house.due(accepted.task_id)
    explained = await house.service.read(ADA, GetTaskModel(accepted.task_id, "explain"))
    assert [one["text"] for one in cast("list[JsonObject]", explained["waiting"])] == [reason]
    assert cast("JsonObject", explained["blocked"])["status"] == "waiting_resource"
    [met] = cast("list[JsonObject]", explained["limits"])
    assert met["text"] == f"caller ada: 1 of 1 calls were used, until {until}"
    assert house.peer.texts == ["covered"]
    assert refused.callers == [], "nothing was refused"

    begin_next_period(house)
    await run_due_rows(house, accepted)
    record = await house.until(accepted, Status.COMPLETED)
    assert house.peer.texts == ["covered", "over"]
    assert f"queued:{accepted.task_id}" not in await house.due(accepted.task_id)
    assert state_of(await house.read(accepted)) == "COMPLETED"
    # It has used the new period's quota: the next message waits for the period after.
    further = await house.send("further", wait="none")
    assert (await house.record(further)).status is Status.WAITING_RESOURCE


async def test_quota_without_waiting_refuses_the_message(house: House) -> None:
    refused = await have_quota(house, Quota(1, PERIOD))
    await house.talk("covered")
    with pytest.raises(Limited, match="the quota of this month is used up"):
        await house.send("over")
    assert refused.callers == ["ada"]


async def test_message_that_no_period_covers_or_over_the_waiting_limit_is_refused(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    budget = Quota(100_000, PERIOD, currency="EUR", waits=True)
    price = Price("EUR", "per_call", 100_001)
    refused = await have_quota(house, budget, price=price)
    with pytest.raises(Limited, match="budget"):
        await house.send("too dear")
    house.spending = None
    await have_quota(house, calls(0))
    with pytest.raises(Limited, match="quota"):
        await house.send("never")
    await have_quota(house, calls(1))
    await house.talk("covered")
    monkeypatch.setattr(admission, "MOST_WAITING", 1)
    await house.send("waits", wait="none")
    with pytest.raises(Limited, match="quota"):
        await house.send("one too many")
    assert refused.callers == ["ada"]


async def test_waiting_messages_continue_in_order_and_the_rest_get_a_new_reset_time(
    house: House,
) -> None:
    await have_quota(house, calls(2))
    for text in ("a", "b"):
        await house.talk(text)
    sent = [await house.send(f"over {number}", wait="none") for number in range(3)]
    places = [str((await house.record(one)).status_reason) for one in sent]
    for reason, place in zip(
        places, ("it is the next one", "1 waits before it", "2 wait before it"), strict=True
    ):
        assert place in reason
    before = await house.record(sent[2])
    begin_next_period(house)
    # The order of due rows does not matter.
    await run_due_rows(house, sent[2])
    for one in sent[:2]:
        await house.until(one, Status.COMPLETED)
    first, second = [await house.record(one) for one in sent[:2]]
    assert (first.started_at or "") <= (second.started_at or "")
    assert sorted(house.peer.texts[2:]) == ["over 0", "over 1"]

    until_ms = end_of_period(house)

    def is_known() -> bool:
        known = house.parts.queues.quotas.find(name_line(ADA.key))
        return known is not None and known.till_ms == until_ms

    await wait_until(is_known, 10, "the third one was tried")
    await run_due_rows(house, sent[2])
    after = await house.record(sent[2])
    until = format_ms(until_ms)
    assert (after.status, after.status_at) == (Status.WAITING_RESOURCE, before.status_at)
    assert after.queued is not None
    assert before.queued is not None
    assert (after.queued.until, after.queued.since) == (until, before.queued.since)
    assert f"resets at {until}" in str((await house.read(sent[2]))["status"])
    begin_next_period(house)
    await run_due_rows(house, sent[2])
    await house.until(sent[2], Status.COMPLETED)


async def test_message_after_the_reset_waits_behind_earlier_messages(
    house: House,
) -> None:
    await have_quota(house, calls(1))
    await house.talk("covered")
    early = await house.send("early", wait="none")
    begin_next_period(house)
    late = await house.send("late", wait="none")
    await house.until(early, Status.COMPLETED)
    assert (await house.record(late)).status is Status.WAITING_RESOURCE
    assert "it is queued behind other messages of its caller" in str(
        (await house.read(late))["status"]
    )
    assert house.peer.texts == ["covered", "early"]


async def test_stream_of_a_message_over_a_quota_begins_with_the_reason(
    house: House,
) -> None:
    await have_quota(house, calls(1))
    await house.talk("covered")
    accepted = await house.send("chunks 2", wait="stream")
    watching = asyncio.create_task(house.watch(accepted))
    begin_next_period(house)
    await run_due_rows(house, accepted)
    first, *rest = await watching
    task = cast("JsonObject", first["task"])
    assert state_of(task) == "WORKING"
    assert "is used up" in str(task["status"])
    assert len(rest) >= 3, "the chunks and the end follow"
    assert state_of(await house.read(accepted)) == "COMPLETED"


async def test_quota_of_one_caller_does_not_delay_others(house: House) -> None:
    await have_quota(house, calls(1))
    await house.talk("covered")
    waiting = await house.send("over", wait="none")
    other = await house.send("bob's", who=BOB)
    assert state_of(cast("JsonObject", (await house.hear(other, who=BOB))["task"])) == "COMPLETED"
    assert (await house.record(waiting)).status is Status.WAITING_RESOURCE


async def test_waiting_task_can_be_cancelled_and_paused_and_transferred(house: House) -> None:
    await have_quota(house, calls(1))
    await house.talk("covered")
    cancelled, paused, given = [
        await house.send(text, wait="none") for text in ("cancelled", "paused", "given")
    ]
    assert state_of(await house.cancel(cancelled)) == "CANCELED"
    await house.service.execute(ADA, PauseTask(paused.task_id), None)
    await house.service.execute(ADA, GiveTask(given.task_id, "bob"), None)
    await run_due_rows(house, given)
    await house.until(given, Status.COMPLETED)
    begin_next_period(house)
    await run_due_rows(house, paused)
    assert (await house.record(paused)).status is Status.PAUSED
    await house.service.execute(ADA, ResumeTask(paused.task_id), None)
    assert (await house.record(paused)).status is Status.WAITING_RESOURCE
    await run_due_rows(house, paused)
    await house.until(paused, Status.COMPLETED)
    assert house.peer.texts == ["covered", "given", "paused"]
    assert (await house.record(cancelled)).status is Status.CANCELLED


async def test_queued_turn_waits_for_its_context_and_then_for_the_quota(
    house: House,
) -> None:
    await have_quota(house, calls(1))
    accepted, _ = await house.talk("covered")
    first = await house.send("first", wait="none", context_id=accepted.context_id)
    concurrent = await house.send("beside", wait="none", context_id=accepted.context_id)
    command = SubmitTurn(
        "echo",
        {**house.message("queued"), "contextId": accepted.context_id},
        "http",
        "none",
        context_id=accepted.context_id,
        when_busy="queue",
    )
    queued = cast("TurnAccepted", await house.service.execute(ADA, command, None))
    record = await house.record(queued)
    assert (record.status, queued.position) == (Status.QUEUED, 1)
    assert record.queued is not None
    assert (record.queued.cause, record.queued.unpaid) == ("turn", True)
    for number, text in enumerate(("first", "beside")):
        begin_next_period(house)
        await run_due_rows(house, (first, concurrent)[number])
        await house.until((first, concurrent)[number], Status.COMPLETED)
        assert house.peer.texts[-1] == text
    record = await house.until(queued, Status.WAITING_RESOURCE)
    assert record.queued is not None
    assert record.queued.until == format_ms(end_of_period(house))
    task = cast("JsonObject", (await house.hear(queued))["task"])
    assert state_of(task) == "WORKING"
    assert "is used up" in str(task["status"])
    begin_next_period(house)
    await run_due_rows(house, queued)
    await house.until(queued, Status.COMPLETED)
    assert house.peer.texts == ["covered", "first", "beside", "queued"]


async def test_started_task_waits_for_the_quota_like_a_message(house: House) -> None:
    await have_quota(house, calls(1))
    await house.talk("covered")
    created = await house.service.execute(ADA, CreateTask("echo", "dig a hole"), None)
    task_id = str(cast("TaskChanged", created).task["taskId"])
    started = await house.service.execute(ADA, StartTask(task_id, "http"), None)
    assert cast("TaskChanged", started).task["status"] == "waiting_resource"
    with pytest.raises(UnsupportedOperation, match="queued"):
        await house.service.execute(ADA, StartTask(task_id, "http"), None)
    begin_next_period(house)
    await house.come_due("queued", task_id, after_ms=0)

    async def is_done() -> bool:
        return (await read(house, task_id)).status is Status.COMPLETED

    await wait_until(is_done, 10, "it is done")
    assert house.peer.texts == ["covered", "dig a hole"]


async def test_routed_message_waits_with_its_chosen_agent(
    street: House,
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


async def test_agent_paused_meanwhile_is_waited_for_and_charged_once(house: House) -> None:
    await have_quota(house, calls(2))
    for text in ("a", "b"):
        await house.talk(text)
    accepted = await house.send("over", wait="none")
    await house.service.execute(OWNER, PauseAgent("echo"), None)
    begin_next_period(house)
    await run_due_rows(house, accepted)
    record = await house.until(accepted, Status.QUEUED)
    assert record.queued is not None
    assert (record.queued.cause, record.queued.unpaid) == ("paused", None)
    await house.service.execute(OWNER, ResumeAgent("echo"), None)
    await house.until(accepted, Status.COMPLETED)
    await house.talk("the other one of this period")
    further = await house.send("further", wait="none")
    assert (await house.record(further)).status is Status.WAITING_RESOURCE


async def test_message_after_another_task_waits_for_task_and_quota(house: House) -> None:
    await have_quota(house, calls(1))
    house.peer.hold()
    first = await house.send("first", wait="none")
    await wait_until(lambda: house.peer.texts == ["first"], 10, "the agent works at it")
    message = {
        **house.message("then"),
        "contextId": first.context_id,
        "metadata": {AFTER: [first.facade]},
    }
    command = SubmitTurn(
        "echo", cast("JsonObject", message), "a2a", "none", context_id=first.context_id
    )
    then = cast("TurnAccepted", await house.service.execute(ADA, command, None))
    assert (await house.record(then)).status is Status.BLOCKED
    house.peer.release_all()
    await house.until(first, Status.COMPLETED)
    await house.come_due("unblock", first.task_id, after_ms=0)
    await house.until(then, Status.WAITING_RESOURCE)
    begin_next_period(house)
    await run_due_rows(house, then)
    await house.until(then, Status.COMPLETED)
    assert house.peer.texts == ["first", "then"]


async def test_estimated_cost_is_recorded_when_the_run_is_charged(house: House) -> None:
    budget = Quota(150_000, PERIOD, currency="EUR", waits=True)
    await have_quota(house, budget, price=Price("EUR", "per_call", 100_000))
    await house.talk("covered")
    accepted = await house.send("over", wait="none")
    assert "the budget of 0.15 EUR a month is used up" in str(
        (await house.record(accepted)).status_reason
    )

    async def list_cost_facts() -> list[type]:
        kinds = {CostEstimated, QuotaBlocked}
        types = [type(one.fact.payload) for one in await house.events(accepted)]
        return [one for one in types if one in kinds]

    assert await list_cost_facts() == [QuotaBlocked]
    begin_next_period(house)
    await run_due_rows(house, accepted)
    await house.until(accepted, Status.COMPLETED)
    assert await list_cost_facts() == [QuotaBlocked, CostEstimated]


async def test_waiting_messages_continue_on_the_next_instance(
    house: House,
) -> None:
    await have_quota(house, calls(1))
    await house.talk("covered")
    sent = [await house.send(text, wait="none") for text in ("one", "two")]
    await house.restart()
    for one, text in zip(sent, ("one", "two"), strict=True):
        begin_next_period(house)
        await run_due_rows(house, *[each for each in sent if await waits(house, each)])
        await house.until(one, Status.COMPLETED)
        assert house.peer.texts[-1] == text
    assert house.peer.texts == ["covered", "one", "two"]


async def test_repeat_of_a_waiting_message_is_the_same_turn(house: House) -> None:
    await have_quota(house, calls(1))
    await house.talk("covered")
    message = house.message("over")
    first = await house.send("over", wait="none", idem="key-1", message=message)
    second = await house.send("over", wait="none", idem="key-1", message=message)
    assert (second.task_id, second.repeated) == (first.task_id, True)
    assert await house.store.queues.count([name_line(ADA.key)]) == [1]


async def test_raised_quota_sends_the_waiting_message_at_once(house: House) -> None:
    await have_quota(house, calls(1))
    await house.talk("covered")
    accepted = await house.send("over", wait="none")
    assert house.spending is not None
    house.spending.reload({"ada": (calls(2),)}, {})
    house.parts.queues.look_at_quotas()
    await house.until(accepted, Status.COMPLETED)


async def test_further_message_to_a_waiting_task_is_kept(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried, pay = asyncio.Event(), QuotaWaits.pay

    async def pay_and_set(quotas: QuotaWaits, record: TaskRecord) -> Charge | Shortage:
        paid = await pay(quotas, record)
        tried.set()
        return paid

    monkeypatch.setattr(QuotaWaits, "pay", pay_and_set)
    await have_quota(house, calls(2))
    await house.talk("covered")
    await house.talk("covered too")
    accepted = await house.send("over", wait="none")
    # From here on its queue is idle, and does not claim the call that the next message uses.
    await asyncio.wait_for(tried.wait(), 10)
    assert house.spending is not None
    house.spending.reload({"ada": (calls(3),)}, {})
    more = await house.send("more", task=accepted.facade, context_id=accepted.context_id)
    task = cast("JsonObject", (await house.hear(more))["task"])
    assert state_of(task) == "WORKING"
    assert (await house.record(accepted)).status is Status.WAITING_RESOURCE
