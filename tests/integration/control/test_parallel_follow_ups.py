"""Follow-ups of one context that begin beside each other, or when others of them have completed (LT-18, GR-2)."""

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
from tests.support.control_client import ControlClient
from tests.support.harness import ADA
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio


async def send(control: ControlClient, text: str, first: TurnAccepted, *after: str) -> TurnAccepted:
    """A follow-up as a caller of A2A sends it, with the tasks that have to complete first."""
    message = control.harness.message(text)
    if after:
        message["metadata"] = {AFTER: [*after]}
    return await control.harness.send(text, message=message, context_id=first.context_id)


async def let_go(control: ControlClient, ended: TurnAccepted, *waiting: TurnAccepted) -> None:
    """What the due rows of an ended task, and of those that it lets go, come to."""
    await control.until(ended.task_id, Status.COMPLETED)
    await control.harness.run_due("unblock", ended.task_id, after_ms=0)
    for one in waiting:
        await control.harness.run_due("queued", one.task_id, after_ms=0)


def get_texts(control: ControlClient) -> list[str]:
    return control.harness.peer.texts


@pytest.mark.requirement("LT-18", "GR-2")
@pytest.mark.parametrize("restarts", [False, True])
async def test_two_follow_ups_begin_beside_each_other_and_a_third_after_one_of_them(
    control: ControlClient, *, restarts: bool
) -> None:
    (flight,) = await say(control, "book a flight to Helsinki")
    control.harness.peer.hold()
    hotel = await send(control, "book a hotel", flight, flight.facade)
    snowmobile = await send(control, "book a snowmobile", flight, flight.facade)
    spa = await send(control, "add a spa reservation", flight, hotel.facade)
    await wait_until(lambda: len(get_texts(control)) == 3, 10, "two of them are at the agent")
    waits = await control.record(spa.task_id)
    assert (waits.status, waits.attempts) == (Status.BLOCKED, ())
    assert hotel.task_id in str(waits.status_reason)
    shown = await control.harness.read(spa)
    status = cast("JsonObject", shown["status"])
    assert status["state"] == "TASK_STATE_SUBMITTED"
    assert f"when task {hotel.task_id} has completed" in str(status["message"])
    both = [await control.record(one.task_id) for one in (hotel, snowmobile)]
    assert [one.status for one in both] == [Status.RUNNING, Status.RUNNING]
    if restarts:
        await control.harness.restart()
        for one in (hotel, snowmobile):
            await control.harness.adopt(one)
    control.harness.peer.release_all()
    await let_go(control, hotel, spa)
    for one in (spa, snowmobile):
        await control.until(one.task_id, Status.COMPLETED)
    assert get_texts(control) == [
        "book a flight to Helsinki",
        "book a hotel",
        "book a snowmobile",
        "add a spa reservation",
    ]
    told = str(control.harness.peer.messages)
    assert not [one for one in (AFTER, hotel.task_id, flight.task_id) if one in told]
    done = {one: await control.record(one.task_id) for one in (hotel, spa)}
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
    assert (await verify_store(control.harness.store)).ok


@pytest.mark.requirement("LT-18")
async def test_message_after_two_tasks_waits_for_both_of_them(control: ControlClient) -> None:
    (first,) = await say(control, "one")
    control.harness.peer.hold()
    two, three = [await send(control, text, first) for text in ("two", "three")]
    four = await control.do(
        "submit_turn",
        "k-4",
        agent="other",
        text="four",
        contextId=first.context_id,
        after=[two.facade, three.facade],
        metadata={"urn:example:trip": 1},
    )
    assert four["state"] == "accepted"
    repeated = await control.do(
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
        await control.do(
            "submit_turn", "k-4", agent="other", text="four", contextId=first.context_id
        )
    task_id = str(four["taskId"])
    control.harness.peer.release_all()
    for one in (two, three):
        assert (await control.record(task_id)).status is Status.BLOCKED
        await control.until(one.task_id, Status.COMPLETED)
        await control.harness.run_due("unblock", one.task_id, after_ms=0)
    await control.harness.run_due("queued", task_id, after_ms=0)
    await control.until(task_id, Status.COMPLETED)
    (sent,) = [
        one.params for one in control.harness.peers["other"].requests if "message" in one.params
    ]
    assert sent["metadata"] == {"urn:example:trip": 1}


@pytest.mark.requirement("LT-18")
async def test_message_after_what_has_completed_begins_at_once(control: ControlClient) -> None:
    (first,) = await say(control, "one")
    second = await send(control, "two", first, first.facade)
    await control.harness.await_answer(second)
    record = await control.record(second.task_id)
    assert record.status is Status.COMPLETED
    assert "task.blocked" not in await control.types(second.task_id)
    assert [edge.status for edge in record.relationships if edge.kind == "blocked_by"] == [
        "satisfied"
    ]


@pytest.mark.requirement("LT-18", "GR-2")
async def test_message_after_a_task_that_fails_stays_blocked_and_can_be_cancelled(
    control: ControlClient,
) -> None:
    (first,) = await say(control, "one")
    control.harness.peer.hold()
    second = await send(control, "fail at it", first)
    third = await send(control, "three", first, second.facade)
    answer = await control.harness.await_answer(third)
    assert cast("JsonObject", answer["task"])["id"] == third.facade, (
        "its caller is not kept waiting"
    )
    control.harness.peer.release_all()
    await control.until(second.task_id, Status.FAILED)
    await control.harness.run_due("unblock", second.task_id, after_ms=0)
    waits = await control.record(third.task_id)
    assert waits.status is Status.BLOCKED
    assert f"task {second.task_id} ended as failed" in str(waits.status_reason)
    shown = cast("JsonObject", (await control.harness.read(third))["status"])
    assert shown["state"] == "TASK_STATE_SUBMITTED"
    assert f"task {second.task_id} ended as failed" in str(shown["message"])
    await control.harness.service.execute(ADA, CancelTask(third.facade), None)
    await control.until(third.task_id, Status.CANCELLED)
    assert "three" not in get_texts(control)


BAD: tuple[tuple[Json, str], ...] = (
    ("task_of_nobody", "message.metadata"),
    (["task_of_nobody"], "message.metadata"),
    ([3], "message.metadata"),
    ([f"task-{number}" for number in range(MOST_BEFORE + 1)], "message.metadata"),
)


@pytest.mark.requirement("LT-18")
@pytest.mark.parametrize(("given", "field"), BAD)
async def test_what_is_no_task_of_the_context_is_refused_with_the_field(
    control: ControlClient, given: Json, field: str
) -> None:
    (first,) = await say(control, "one")
    message: JsonObject = {**control.harness.message("two"), "metadata": {AFTER: given}}
    with pytest.raises(InvalidInput) as refused:
        await control.harness.send("", message=message, context_id=first.context_id)
    assert refused.value.field.startswith(f"{field}.{AFTER}")
    assert len(get_texts(control)) == 1


@pytest.mark.requirement("LT-18", "CMD-33")
async def test_task_of_another_context_and_a_message_to_a_task_wait_for_nothing(
    control: ControlClient,
) -> None:
    (first,), (other,) = await say(control, "ask which?"), await say(control, "one")
    wishes: tuple[dict[str, Json], ...] = (
        {"contextId": other.context_id},
        {},
        {"taskId": first.facade},
    )
    for given in wishes:
        params: dict[str, Json] = {"agent": "echo", "text": "x", "after": [first.facade], **given}
        with pytest.raises(InvalidInput) as refused:
            await control.do("submit_turn", "k-1", **params)
        assert refused.value.field == "after"
    assert len(get_texts(control)) == 2


@pytest.mark.requirement("LT-18")
async def test_message_that_waits_for_its_turn_as_well_goes_on_when_both_are_over(
    control: ControlClient,
) -> None:
    (first,) = await say(control, "one")
    control.harness.peer.hold()
    second = await send(control, "two", first)
    command = SubmitTurn(
        "echo",
        control.harness.message("three"),
        "http",
        "none",
        context_id=first.context_id,
        when_busy="queue",
        after=(second.facade,),
    )
    third = cast("TurnAccepted", await control.harness.service.execute(ADA, command, None))
    assert third.position == 1
    control.harness.peer.release_all()
    await let_go(control, second, third)
    await control.until(third.task_id, Status.COMPLETED)
    shown = await control.harness.service.read(ADA, GetTask(third.facade))
    assert cast("JsonObject", shown["status"])["state"] == "TASK_STATE_COMPLETED"
