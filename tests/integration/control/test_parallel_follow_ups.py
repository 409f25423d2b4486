"""Follow-ups of one context that start in parallel, or after others of them have completed (LT-18, GR-2)."""

from __future__ import annotations

from typing import cast

import pytest

from passerelle.a2a_mapping.extensions import AFTER
from passerelle.core.commands import CancelTask, GetTask, SubmitTurn, TurnAccepted
from passerelle.core.errors import IdempotencyConflict, InvalidInput
from passerelle.core.task.requests import MOST_BEFORE
from passerelle.core.task.status import Status
from passerelle.core.wire.json import Json, JsonObject
from passerelle.delegation.verification.walk import verify_store
from tests.integration.control.test_rollback import say
from tests.support.desk import Desk
from tests.support.house import ADA
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio


async def send(desk: Desk, text: str, first: TurnAccepted, *after: str) -> TurnAccepted:
    """Sends a follow-up as an A2A caller does, with the tasks that must complete first."""
    message = desk.house.message(text)
    if after:
        message["metadata"] = {AFTER: [*after]}
    return await desk.house.send(text, message=message, context_id=first.context_id)


async def release_waiting(desk: Desk, ended: TurnAccepted, *waiting: TurnAccepted) -> None:
    """Handles the due rows of a completed task and of the tasks that wait for it."""
    await desk.until(ended.task_id, Status.COMPLETED)
    await desk.house.come_due("unblock", ended.task_id, after_ms=0)
    for one in waiting:
        await desk.house.come_due("queued", one.task_id, after_ms=0)


def get_texts(desk: Desk) -> list[str]:
    return desk.house.peer.texts


@pytest.mark.requirement("LT-18", "GR-2")
@pytest.mark.parametrize("restarts", [False, True])
async def test_two_follow_ups_start_in_parallel_and_a_third_after_one_of_them(
    desk: Desk, *, restarts: bool
) -> None:
    (flight,) = await say(desk, "book a flight to Helsinki")
    desk.house.peer.hold()
    hotel = await send(desk, "book a hotel", flight, flight.facade)
    snowmobile = await send(desk, "book a snowmobile", flight, flight.facade)
    spa = await send(desk, "add a spa reservation", flight, hotel.facade)
    await wait_until(lambda: len(get_texts(desk)) == 3, 10, "two of them are at the agent")
    waits = await desk.record(spa.task_id)
    assert (waits.status, waits.attempts) == (Status.BLOCKED, ())
    assert hotel.task_id in str(waits.status_reason)
    shown = await desk.house.read(spa)
    status = cast("JsonObject", shown["status"])
    assert status["state"] == "TASK_STATE_SUBMITTED"
    assert f"when task {hotel.task_id} has completed" in str(status["message"])
    both = [await desk.record(one.task_id) for one in (hotel, snowmobile)]
    assert [one.status for one in both] == [Status.RUNNING, Status.RUNNING]
    if restarts:
        await desk.house.restart()
        for one in (hotel, snowmobile):
            await desk.house.adopt(one)
    desk.house.peer.release_all()
    await release_waiting(desk, hotel, spa)
    for one in (spa, snowmobile):
        await desk.until(one.task_id, Status.COMPLETED)
    assert get_texts(desk) == [
        "book a flight to Helsinki",
        "book a hotel",
        "book a snowmobile",
        "add a spa reservation",
    ]
    sent = str(desk.house.peer.messages)
    assert not [one for one in (AFTER, hotel.task_id, flight.task_id) if one in sent]
    done = {one: await desk.record(one.task_id) for one in (hotel, spa)}
    assert str(done[hotel].ended_at) <= str(done[spa].started_at)
    edges = {
        (edge.kind, edge.target, edge.status)
        for one in done.values()
        for edge in one.relationships
        if edge.kind in {"blocks", "blocked_by"}
    }
    assert edges == {
        ("blocked_by", flight.task_id, "satisfied"),
        ("blocked_by", hotel.task_id, "satisfied"),
        ("blocks", spa.task_id, "satisfied"),
    }
    assert (await verify_store(desk.house.store)).ok


@pytest.mark.requirement("LT-18")
async def test_message_after_two_tasks_waits_for_both_of_them(desk: Desk) -> None:
    (first,) = await say(desk, "one")
    desk.house.peer.hold()
    two, three = [await send(desk, text, first) for text in ("two", "three")]
    four = await desk.do(
        "submit_turn",
        "k-4",
        agent="other",
        text="four",
        contextId=first.context_id,
        after=[two.facade, three.facade],
        metadata={"urn:example:trip": 1},
    )
    assert four["state"] == "accepted"
    repeated = await desk.do(
        "submit_turn",
        "k-4",
        agent="other",
        text="four",
        contextId=first.context_id,
        after=[two.facade, three.facade],
        metadata={"urn:example:trip": 1},
    )
    assert (repeated["taskId"], repeated["repeated"]) == (four["taskId"], True)
    with pytest.raises(IdempotencyConflict):
        await desk.do("submit_turn", "k-4", agent="other", text="four", contextId=first.context_id)
    task_id = str(four["taskId"])
    desk.house.peer.release_all()
    for one in (two, three):
        assert (await desk.record(task_id)).status is Status.BLOCKED
        await desk.until(one.task_id, Status.COMPLETED)
        await desk.house.come_due("unblock", one.task_id, after_ms=0)
    await desk.house.come_due("queued", task_id, after_ms=0)
    await desk.until(task_id, Status.COMPLETED)
    (sent,) = [one.params for one in desk.house.peers["other"].requests if "message" in one.params]
    assert sent["metadata"] == {"urn:example:trip": 1}


@pytest.mark.requirement("LT-18")
async def test_message_after_a_completed_task_starts_at_once(desk: Desk) -> None:
    (first,) = await say(desk, "one")
    second = await send(desk, "two", first, first.facade)
    await desk.house.hear(second)
    record = await desk.record(second.task_id)
    assert record.status is Status.COMPLETED
    assert "task.blocked" not in await desk.types(second.task_id)
    assert [edge.status for edge in record.relationships if edge.kind == "blocked_by"] == [
        "satisfied"
    ]


@pytest.mark.requirement("LT-18", "GR-2")
async def test_message_after_a_failed_task_stays_blocked_and_can_be_cancelled(
    desk: Desk,
) -> None:
    (first,) = await say(desk, "one")
    desk.house.peer.hold()
    second = await send(desk, "fail at it", first)
    third = await send(desk, "three", first, second.facade)
    answer = await desk.house.hear(third)
    assert cast("JsonObject", answer["task"])["id"] == third.facade, (
        "its caller is not kept waiting"
    )
    desk.house.peer.release_all()
    await desk.until(second.task_id, Status.FAILED)
    await desk.house.come_due("unblock", second.task_id, after_ms=0)
    waits = await desk.record(third.task_id)
    assert waits.status is Status.BLOCKED
    assert f"task {second.task_id} ended as failed" in str(waits.status_reason)
    shown = cast("JsonObject", (await desk.house.read(third))["status"])
    assert shown["state"] == "TASK_STATE_SUBMITTED"
    assert f"task {second.task_id} ended as failed" in str(shown["message"])
    await desk.house.service.execute(ADA, CancelTask(third.facade), None)
    await desk.until(third.task_id, Status.CANCELLED)
    assert "three" not in get_texts(desk)


BAD: tuple[tuple[Json, str], ...] = (
    ("task_of_nobody", "message.metadata"),
    (["task_of_nobody"], "message.metadata"),
    ([3], "message.metadata"),
    ([f"task-{number}" for number in range(MOST_BEFORE + 1)], "message.metadata"),
)


@pytest.mark.requirement("LT-18")
@pytest.mark.parametrize(("given", "field"), BAD)
async def test_reference_outside_the_context_is_refused_with_the_field(
    desk: Desk, given: Json, field: str
) -> None:
    (first,) = await say(desk, "one")
    message: JsonObject = {**desk.house.message("two"), "metadata": {AFTER: given}}
    with pytest.raises(InvalidInput) as refused:
        await desk.house.send("", message=message, context_id=first.context_id)
    assert refused.value.field.startswith(f"{field}.{AFTER}")
    assert len(get_texts(desk)) == 1


@pytest.mark.requirement("LT-18", "CMD-33")
async def test_after_is_refused_for_another_context_and_for_a_message_to_a_task(
    desk: Desk,
) -> None:
    (first,), (other,) = await say(desk, "ask which?"), await say(desk, "one")
    wishes: tuple[dict[str, Json], ...] = (
        {"contextId": other.context_id},
        {},
        {"taskId": first.facade},
    )
    for given in wishes:
        params: dict[str, Json] = {"agent": "echo", "text": "x", "after": [first.facade], **given}
        with pytest.raises(InvalidInput) as refused:
            await desk.do("submit_turn", "k-1", **params)
        assert refused.value.field == "after"
    assert len(get_texts(desk)) == 2


@pytest.mark.requirement("LT-18")
async def test_queued_message_with_a_dependency_starts_when_both_have_ended(
    desk: Desk,
) -> None:
    (first,) = await say(desk, "one")
    desk.house.peer.hold()
    second = await send(desk, "two", first)
    command = SubmitTurn(
        "echo",
        desk.house.message("three"),
        "http",
        "none",
        context_id=first.context_id,
        when_busy="queue",
        after=(second.facade,),
    )
    third = cast("TurnAccepted", await desk.house.service.execute(ADA, command, None))
    assert third.position == 1
    desk.house.peer.release_all()
    await release_waiting(desk, second, third)
    await desk.until(third.task_id, Status.COMPLETED)
    shown = await desk.house.service.read(ADA, GetTask(third.facade))
    assert cast("JsonObject", shown["status"])["state"] == "TASK_STATE_COMPLETED"
