"""A run that fails is followed by another one: at the same agent, at the next one, or not at all (ATT, EXT-5, MK-7)."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import cast

import pytest

from passerelle.core.commands import GetRecord, GetTaskModel, TurnAccepted
from passerelle.core.errors import PeerRefused, PeerUnavailable
from passerelle.core.facts import RetryPolicy
from passerelle.core.payloads.routing import FallbackApplied
from passerelle.core.payloads.task import TaskRetrying
from passerelle.core.task.status import Status
from passerelle.core.wire.json import JsonObject
from passerelle.core.wire.times import parse_ms
from tests.support.harness import ADA, Harness
from tests.support.scripted_peer import HttpAnswer
from tests.support.scripted_tasks import Turn
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio

THRICE = RetryPolicy(attempts=3, backoff_ms=1000, backoff_max_ms=8000)
OTHERWISE = RetryPolicy(fallback=("other",))
_PAUSE_MS = 60_000
"""More than any pause between attempts."""


async def fail(turn: Turn) -> None:
    await turn.status("WORKING")
    await turn.status("FAILED", f"no luck with {turn.message['messageId']}")


async def fail_at_once(turn: Turn) -> None:
    await turn.status("FAILED", "no luck")


async def reject(turn: Turn) -> None:
    await turn.status("REJECTED", "not my work")


def state_of(task: JsonObject) -> str:
    return str(cast("JsonObject", task["status"])["state"]).removeprefix("TASK_STATE_")


async def owed(harness: Harness, accepted: TurnAccepted) -> dict[str, str]:
    """The due rows of the task alone."""
    rows = await harness.due(accepted.task_id)
    return {member: at for member, at in rows.items() if accepted.task_id in member}


@pytest.mark.requirement(
    "ID-6",
    "ID-13",
    "TR-15",
    "TR-16",
    "ST-11",
    "ATT-1",
    "ATT-9",
    "ATT-13",
    "MK-7",
    "TEV-10",
    "TEV-20",
)
async def test_task_that_fails_twice_works_the_third_time(harness: Harness) -> None:
    harness.policy = THRICE
    harness.peer.next(fail, fail)
    accepted = await harness.send("go", wait="stream")
    watching = asyncio.create_task(harness.watch(accepted))
    kept: list[object] = []
    for ordinal in (1, 2):
        record = await harness.until(accepted, Status.RETRYING)
        assert record.current_run_id is None
        assert record.retry_at is not None
        assert 0 < parse_ms(record.retry_at) - parse_ms(record.status_at) <= 1000 * ordinal
        assert state_of(await harness.read(accepted)) == "WORKING"
        assert [one.status for one in record.attempts] == [Status.FAILED] * ordinal
        assert list(record.attempts[:-1]) == kept
        kept = list(record.attempts)
        await harness.run_due("retry", accepted.task_id, after_ms=_PAUSE_MS)
    record = await harness.until(accepted, Status.COMPLETED)

    assert list(record.attempts[:2]) == kept
    assert [one.ordinal for one in record.attempts] == [1, 2, 3]
    assert len({one.run_id for one in record.attempts}) == 3
    assert len({one.remote_task_id for one in record.attempts}) == 3
    errors = [one.last_error.message for one in record.attempts if one.last_error]
    assert [error.partition(" with ")[0] for error in errors] == ["no luck", "no luck"]
    sent = [str(message["messageId"]) for message in harness.peer.messages]
    assert sent == ["m-1", "m-1~2", "m-1~3"]
    scopes = [event.fact.scope for event in await harness.events(accepted)]
    ours = {record.task_id, *(one.run_id for one in record.attempts)}
    ours |= {one for scope in scopes for one in (scope.turn_id, scope.step_id) if one is not None}
    assert not ours & {str(message["messageId"]) for message in harness.peer.messages}

    frames = await watching
    assert "COMPLETED" in str(frames[-1])
    assert "TASK_STATE_FAILED" not in str(frames)
    life = [kind for kind in await harness.types(accepted) if kind.startswith("task.attempt.")]
    assert life == ["task.attempt.started", "task.attempt.failed"] * 2 + [
        "task.attempt.started",
        "task.attempt.completed",
    ]
    said = [event.fact.payload for event in await harness.events(accepted)]
    retries = [one for one in said if isinstance(one, TaskRetrying)]
    assert [(one.reason, one.ordinal, one.peer) for one in retries] == [
        ("retry", 2, "echo"),
        ("retry", 3, "echo"),
    ]
    assert await owed(harness, accepted) == {}


async def test_caller_who_waits_for_the_answer_waits_through_every_attempt(
    harness: Harness,
) -> None:
    harness.policy = THRICE
    harness.peer.next(fail_at_once)
    accepted = await harness.send("go")
    hearing = asyncio.create_task(harness.await_answer(accepted))
    record = await harness.until(accepted, Status.RETRYING)
    assert not record.shown
    await harness.run_due("retry", accepted.task_id, after_ms=_PAUSE_MS)
    task = cast("JsonObject", (await hearing)["task"])
    assert state_of(task) == "COMPLETED"
    (own,) = cast("list[JsonObject]", task["history"])
    assert own["messageId"] == "m-1"


@pytest.mark.requirement("ATT-10", "ATT-11")
async def test_policy_that_is_used_up_ends_the_task_with_the_last_error(harness: Harness) -> None:
    harness.policy = replace(THRICE, attempts=2)
    harness.peer.next(fail, fail)
    accepted = await harness.send("go", wait="stream")
    await harness.until(accepted, Status.RETRYING)
    harness.policy = replace(THRICE, attempts=2, backoff_ms=7)
    await harness.run_due("retry", accepted.task_id, after_ms=_PAUSE_MS)
    record = await harness.until(accepted, Status.FAILED)
    assert record.last_error is not None
    assert record.last_error.message == "no luck with m-1~2"
    assert [one.retry_policy.backoff_ms for one in record.attempts] == [1000, 7]
    assert state_of(await harness.read(accepted)) == "FAILED"


@pytest.mark.parametrize("code", [-32602, -32004])
@pytest.mark.requirement("ATT-10", "MK-7")
async def test_refusal_of_the_agent_is_not_tried_again(harness: Harness, code: int) -> None:
    async def refuse(turn: Turn) -> None:
        await turn.refuse(code, "no")

    harness.policy = THRICE
    harness.peer.next(refuse)
    accepted = await harness.send("go")
    with pytest.raises(PeerRefused):
        await harness.await_answer(accepted)
    assert len((await harness.record(accepted)).attempts) == 1
    assert len(harness.peer.messages) == 1


async def test_agent_that_asks_for_time_gets_it_though_another_could_take_over(
    street: Harness,
) -> None:
    street.policy = replace(THRICE, fallback=("other",))
    street.peer.answer_next(HttpAnswer(503, headers={"Retry-After": "40"}))
    accepted = await street.send("go")
    hearing = asyncio.create_task(street.await_answer(accepted))
    await street.until(accepted, Status.RETRYING)
    at_ms = (await owed(street, accepted))[f"retry:{accepted.task_id}"]
    assert float(at_ms) > street.clock.now_ms() + 35_000
    await street.run_due("retry", accepted.task_id, after_ms=_PAUSE_MS)
    assert state_of(cast("JsonObject", (await hearing)["task"])) == "COMPLETED"
    # It never had the first one, so the second is no repeat.
    assert [message["messageId"] for message in street.peer.messages] == ["m-1", "m-1"]


@pytest.mark.requirement("ATT-16")
async def test_agent_that_is_busy_is_replaced_when_its_attempts_are_used_up(
    street: Harness,
) -> None:
    street.policy = OTHERWISE
    street.peer.answer_next(HttpAnswer(429, headers={"Retry-After": "40"}))
    accepted = await street.send("go")
    hearing = asyncio.create_task(street.await_answer(accepted))
    await street.until(accepted, Status.RETRYING)
    await street.run_due("retry", accepted.task_id, after_ms=0)
    assert state_of(cast("JsonObject", (await hearing)["task"])) == "COMPLETED"
    assert [len(peer.messages) for peer in street.peers.values()] == [1, 1]


async def test_further_attempt_that_is_held_back_goes_out_with_everything(harness: Harness) -> None:
    harness.policy = THRICE
    harness.peer.next(fail)
    accepted = await harness.send("go", wait="stream")
    await harness.until(accepted, Status.RETRYING)
    harness.peer.answer_next(HttpAnswer(429, headers={"Retry-After": "60"}))
    await harness.run_due("retry", accepted.task_id, after_ms=_PAUSE_MS)
    await harness.until(accepted, Status.WAITING_RESOURCE)
    await harness.restart()
    await harness.adopt(accepted)
    harness.clock.ahead_ms += 60_000
    await harness.run_due("send", accepted.task_id, after_ms=0)
    record = await harness.until(accepted, Status.COMPLETED)
    assert len(record.attempts) == 2
    sent = [(message["messageId"], message["parts"]) for message in harness.peer.messages]
    assert [one for one, _ in sent] == ["m-1", "m-1~2", "m-1~2"]
    assert sent[2][1] == sent[0][1]


@pytest.mark.requirement("ATT-16", "TEV-10", "A2A-13", "EXT-5")
async def test_rejected_task_goes_to_the_next_agent(street: Harness) -> None:
    street.policy = OTHERWISE
    street.peer.next(reject)
    accepted = await street.send("go", wait="stream")
    watching = asyncio.create_task(street.watch(accepted))
    await street.until(accepted, Status.RETRYING)
    await street.run_due("retry", accepted.task_id, after_ms=0)
    record = await street.until(accepted, Status.COMPLETED)
    assert [one.worker.peer for one in record.attempts] == ["echo", "other"]
    assert [one.status for one in record.attempts] == [Status.FAILED, Status.COMPLETED]
    contexts = {one.remote_context_id for one in record.attempts}
    assert len(contexts) == 2
    said = [event.fact for event in await street.events(accepted)]
    (applied,) = [one for one in said if isinstance(one.payload, FallbackApplied)]
    assert applied.payload == FallbackApplied("echo", "other", "rejected", 2)
    assert applied.scope.run_id == record.attempts[0].run_id
    (retrying,) = [one.payload for one in said if isinstance(one.payload, TaskRetrying)]
    assert (retrying.reason, retrying.ordinal, retrying.peer) == ("fallback", 2, "other")
    assert "REJECTED" not in str(await watching)
    assert [len(peer.messages) for peer in street.peers.values()] == [1, 1]
    # Its caller asked one agent, and sees the task there.
    assert record.kind == "echo"
    read = await street.service.read(ADA, GetRecord(accepted.task_id))
    assert len(cast("list[object]", read["attempts"])) == 2


@pytest.mark.requirement("ATT-16")
async def test_agent_that_is_away_is_replaced_at_once(street: Harness) -> None:
    street.policy = replace(OTHERWISE, attempts=3)
    await street.peer.stop()
    accepted = await street.send("go")
    hearing = asyncio.create_task(street.await_answer(accepted))
    await street.until(accepted, Status.RETRYING)
    await street.run_due("retry", accepted.task_id, after_ms=0)
    assert state_of(cast("JsonObject", (await hearing)["task"])) == "COMPLETED"
    record = await street.record(accepted)
    assert [one.worker.peer for one in record.attempts] == ["echo", "other"]
    first = record.attempts[0].last_error
    assert first is not None
    assert first.code == "peer_unavailable"
    (sent,) = street.peers["other"].messages
    assert sent["messageId"] == "m-1"


async def test_nobody_left_to_try_is_the_error_of_the_last_one(street: Harness) -> None:
    street.policy = OTHERWISE
    for peer in street.peers.values():
        await peer.stop()
    accepted = await street.send("go")
    hearing = asyncio.create_task(street.await_answer(accepted))
    await street.until(accepted, Status.RETRYING)
    await street.run_due("retry", accepted.task_id, after_ms=0)
    with pytest.raises(PeerUnavailable, match="'other' cannot be reached"):
        await hearing
    record = await street.record(accepted)
    assert [one.worker.peer for one in record.attempts] == ["echo", "other"]


async def vanish(turn: Turn) -> None:
    await turn.drop()


@pytest.mark.requirement("ATT-14")
async def test_lost_task_is_sent_again_only_where_that_is_safe(harness: Harness) -> None:
    harness.policy = replace(THRICE, idempotent=True)
    harness.peer.next(vanish)
    accepted = await harness.send("go")
    hearing = asyncio.create_task(harness.await_answer(accepted))
    record = await harness.until(accepted, Status.RETRYING)
    assert record.attempts[0].status is Status.LOST
    await harness.run_due("retry", accepted.task_id, after_ms=_PAUSE_MS)
    assert state_of(cast("JsonObject", (await hearing)["task"])) == "COMPLETED"
    record = await harness.record(accepted)
    assert [one.status for one in record.attempts] == [Status.LOST, Status.COMPLETED]
    # The agent may have it already, so it is told by the id that it is the same message.
    assert [message["messageId"] for message in harness.peer.messages] == ["m-1", "m-1"]


async def test_lost_task_of_an_agent_that_may_do_harm_twice_is_not_sent_again(
    street: Harness,
) -> None:
    street.policy = replace(THRICE, fallback=("other",))
    street.peer.next(vanish)
    accepted = await street.send("go")
    assert state_of(cast("JsonObject", (await street.await_answer(accepted))["task"])) == "FAILED"
    assert [len(peer.messages) for peer in street.peers.values()] == [1, 0]


@pytest.mark.requirement("VAL-6")
async def test_instance_that_dies_between_two_attempts_loses_none_and_doubles_none(
    harness: Harness,
) -> None:
    harness.policy = THRICE
    harness.peer.next(fail)
    accepted = await harness.send("go", wait="stream")
    record = await harness.until(accepted, Status.RETRYING)
    await harness.restart()
    first = harness.run_due("retry", accepted.task_id, after_ms=_PAUSE_MS)
    again = harness.run_due("retry", accepted.task_id, after_ms=0)
    outcomes = await asyncio.gather(first, again, return_exceptions=True)
    done = await harness.until(accepted, Status.COMPLETED)
    assert done.attempts[:1] == record.attempts
    assert len(done.attempts) == 2
    assert len(harness.peer.messages) == 2, outcomes


async def test_wish_to_cancel_ends_a_task_that_waits_for_its_next_attempt(harness: Harness) -> None:
    harness.policy = THRICE
    harness.peer.next(fail)
    accepted = await harness.send("go", wait="stream")
    watching = asyncio.create_task(harness.watch(accepted))
    await harness.until(accepted, Status.RETRYING)
    assert state_of(await harness.cancel(accepted)) == "CANCELED"
    assert "CANCELED" in str((await watching)[-1])
    assert await owed(harness, accepted) == {}
    assert len(harness.peer.messages) == 1


async def test_further_attempt_is_told_everything_that_its_task_was_told(harness: Harness) -> None:
    harness.policy = THRICE
    harness.peer.hold()
    harness.peer.next(fail)
    accepted = await harness.send("go", wait="stream")
    harness.peer.release(2)  # the task as submitted, and that it works

    async def works() -> bool:
        record = await harness.record(accepted)
        return record.shown and record.attempts[-1].native_status == "TASK_STATE_WORKING"

    await wait_until(works, 15, "callers see that the agent is at work")

    async def listen(turn: Turn) -> None:
        del turn

    harness.peer.next(listen)
    await harness.send("and mind the gap", task=accepted.facade)
    await wait_until(lambda: len(harness.peer.messages) == 2, 15, "the agent was told more")
    harness.peer.release_all()
    await harness.until(accepted, Status.RETRYING)
    await harness.run_due("retry", accepted.task_id, after_ms=_PAUSE_MS)
    await harness.until(accepted, Status.COMPLETED)
    parts = cast("list[JsonObject]", harness.peer.messages[-1]["parts"])
    assert [part["text"] for part in parts] == ["go", "and mind the gap"]


async def test_message_of_a_later_attempt_completes_the_task_that_callers_see(
    harness: Harness,
) -> None:
    async def answer(turn: Turn) -> None:
        await turn.answer("here it is")

    harness.policy = THRICE
    harness.peer.next(fail, answer)
    accepted = await harness.send("go", wait="stream")
    await harness.until(accepted, Status.RETRYING)
    await harness.run_due("retry", accepted.task_id, after_ms=_PAUSE_MS)
    await harness.until(accepted, Status.COMPLETED)
    task = await harness.read(accepted)
    assert state_of(task) == "COMPLETED"
    assert "here it is" in str(task["artifacts"])


@pytest.mark.requirement("MK-7")
async def test_task_that_is_stopped_in_its_first_attempt_gets_no_second_one(
    harness: Harness,
) -> None:
    harness.policy = THRICE
    accepted = await harness.send("silent", wait="stream")
    await harness.until(accepted, Status.QUEUED)
    await harness.cancel(accepted)
    record = await harness.until(accepted, Status.CANCELLED)
    assert len(record.attempts) == len(harness.peer.messages) == 1
    assert not [member for member in await owed(harness, accepted) if member.startswith("retry:")]


@pytest.mark.requirement("ATT-3", "ATT-10", "ATT-11")
async def test_run_that_takes_too_long_is_tried_again_where_that_is_safe(harness: Harness) -> None:
    harness.policy = replace(THRICE, idempotent=True, total_timeout_ms=5_000)
    accepted = await harness.send("silent", wait="stream")
    watching = asyncio.create_task(harness.watch(accepted))
    await harness.until(accepted, Status.QUEUED)
    await harness.run_due("timeout", accepted.task_id, after_ms=5_000)
    record = await harness.until(accepted, Status.RETRYING)
    await wait_until(
        lambda: harness.peer.count("CancelTask") == 1, 15, "the agent was told to stop"
    )
    first = record.attempts[0]
    assert first.last_error is not None
    assert (first.status, first.last_error.code) == (Status.TIMED_OUT, "timed_out")
    rows = await owed(harness, accepted)
    assert set(rows) == {f"retry:{accepted.task_id}"}, "the limit of the first run is over"
    harness.peer.next(fail_at_once)
    harness.policy = replace(harness.policy, attempts=1)
    await harness.run_due("retry", accepted.task_id, after_ms=_PAUSE_MS)
    record = await harness.until(accepted, Status.FAILED)
    assert [one.status for one in record.attempts] == [Status.TIMED_OUT, Status.FAILED]
    assert "FAILED" in str((await watching)[-1])


async def test_run_that_takes_too_long_may_still_be_at_work_so_its_task_ends(
    harness: Harness,
) -> None:
    harness.policy = replace(THRICE, total_timeout_ms=5_000)
    accepted = await harness.send("silent", wait="stream")
    await harness.until(accepted, Status.QUEUED)
    await harness.run_due("timeout", accepted.task_id, after_ms=5_000)
    record = await harness.until(accepted, Status.TIMED_OUT)
    assert len(record.attempts) == 1


async def lose(harness: Harness, accepted: TurnAccepted) -> None:
    """The agent's task is gone, and the limit for finding it passes twice."""
    driver = harness.parts.dispatch.find(accepted.task_id)
    assert driver is not None
    for status in (Status.LOST, Status.RETRYING):
        harness.clock.ahead_ms += 121_000
        driver.wake()
        await harness.until(accepted, status)


@pytest.mark.requirement("ATT-14", "ATT-3")
async def test_agent_that_dies_is_followed_by_the_next_one_and_its_run_stays_lost(
    street: Harness,
) -> None:
    street.policy = replace(OTHERWISE, idempotent=True)
    accepted = await street.send("silent", wait="stream")
    await street.until(accepted, Status.QUEUED)
    await street.peer.stop()
    await lose(street, accepted)
    await street.run_due("retry", accepted.task_id, after_ms=0)
    record = await street.until(accepted, Status.QUEUED)
    assert [one.worker.peer for one in record.attempts] == ["echo", "other"]
    first, second = record.attempts
    assert (first.status, second.ended_at) == (Status.LOST, None)
    assert [len(peer.messages) for peer in street.peers.values()] == [1, 1]


@pytest.mark.requirement("ATT-2", "ATT-15", "VAL-6")
@pytest.mark.parametrize("forgetful", [False, True])
async def test_crash_leads_to_a_second_attempt_only_where_the_agent_has_forgotten_the_task(
    harness: Harness, *, forgetful: bool
) -> None:
    harness.policy = replace(THRICE, idempotent=True)
    accepted = await harness.send("silent", wait="stream")
    before = await harness.until(accepted, Status.QUEUED)
    await harness.restart()
    assert (await harness.record(accepted)).attempts[0].run_id == before.attempts[0].run_id
    (remote,) = harness.peer.tasks.values()
    if forgetful:
        harness.peer.tasks.clear()
    await harness.adopt(accepted)
    if forgetful:
        await lose(harness, accepted)
        harness.peer.next(work)
        await harness.run_due("retry", accepted.task_id, after_ms=_PAUSE_MS)
    else:
        remote.status("COMPLETED")
    record = await harness.until(accepted, Status.COMPLETED)
    assert len(record.attempts) == (2 if forgetful else 1)


async def work(turn: Turn) -> None:
    await turn.status("WORKING")
    await turn.status("COMPLETED")


@pytest.mark.requirement("ATT-8", "ATT-9", "SNAP-17")
async def test_attempts_are_read_with_their_times_errors_and_outputs(harness: Harness) -> None:
    harness.policy = THRICE
    harness.peer.next(fail)
    accepted = await harness.send("go", wait="stream")
    record = await harness.until(accepted, Status.RETRYING)
    read = await harness.service.read(ADA, GetTaskModel(accepted.task_id, "attempts"))
    (first,) = cast("list[JsonObject]", read["attempts"])
    assert first["endedAt"] == record.attempts[0].ended_at is not None
    await harness.run_due("retry", accepted.task_id, after_ms=_PAUSE_MS)
    await harness.until(accepted, Status.COMPLETED)
    read = await harness.service.read(ADA, GetTaskModel(accepted.task_id, "attempts"))
    first, second = cast("list[JsonObject]", read["attempts"])
    assert (first["status"], second["status"]) == ("failed", "completed")
    assert (second["ordinal"], second["reason"]) == (2, "retry")
    assert cast("JsonObject", first["lastError"])["message"] == "no luck with m-1"
    assert str(first["startedAt"]) < str(first["endedAt"]) < str(second["startedAt"])
    assert second["outputRefs"]


async def test_message_while_the_next_attempt_is_owed_goes_out_with_it(harness: Harness) -> None:
    harness.policy = THRICE
    harness.peer.next(fail)
    accepted = await harness.send("go", wait="stream")
    await harness.until(accepted, Status.RETRYING)
    await harness.send("and mind the gap", task=accepted.facade)
    assert len(harness.peer.messages) == 1, "there is no run that could take it"
    await harness.run_due("retry", accepted.task_id, after_ms=_PAUSE_MS)
    await harness.until(accepted, Status.COMPLETED)
    (_, sent) = harness.peer.messages
    parts = cast("list[JsonObject]", sent["parts"])
    assert [part["text"] for part in parts] == ["go", "and mind the gap"]
    history = cast("list[JsonObject]", (await harness.read(accepted))["history"])
    said = [message["messageId"] for message in history if message["role"] == "ROLE_USER"]
    assert said == ["m-1", "m-2"]


@pytest.mark.requirement("ATT-13")
async def test_attempt_that_brings_less_than_was_asked_for_is_followed_by_another(
    harness: Harness,
) -> None:
    async def bring(turn: Turn) -> None:
        await turn.artifact("the report", artifact_id="a-1")
        await turn.status("COMPLETED")

    async def forget(turn: Turn) -> None:
        await turn.status("COMPLETED", "all done!")

    harness.acceptance = ({"artifact": {}},)
    harness.policy = THRICE
    harness.peer.next(forget, bring)
    accepted = await harness.send("go", wait="stream")
    watching = asyncio.create_task(harness.watch(accepted))
    record = await harness.until(accepted, Status.RETRYING)
    assert record.attempts[0].last_error is not None
    assert record.attempts[0].last_error.code == "acceptance"
    await harness.run_due("retry", accepted.task_id, after_ms=_PAUSE_MS)
    record = await harness.until(accepted, Status.COMPLETED)
    assert [one.status for one in record.attempts] == [Status.FAILED, Status.COMPLETED]
    frames = await watching
    assert "all done!" not in str(frames)
    assert "the report" in str((await harness.read(accepted))["artifacts"])
