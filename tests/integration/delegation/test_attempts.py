"""A failed run is followed by another: with the same agent, the next agent, or none (ATT, EXT-5, MK-7)."""

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
from tests.support.scripted_peer import ScriptedResponse
from tests.support.scripted_tasks import Turn
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio

THRICE = RetryPolicy(attempts=3, backoff_ms=1000, backoff_max_ms=8000)
FALLBACK = RetryPolicy(fallback=("other",))
_PAUSE_MS = 60_000
"""Longer than any delay between attempts."""


async def fail(turn: Turn) -> None:
    await turn.status("WORKING")
    await turn.status("FAILED", f"no luck with {turn.message['messageId']}")


async def fail_at_once(turn: Turn) -> None:
    await turn.status("FAILED", "no luck")


async def reject(turn: Turn) -> None:
    await turn.status("REJECTED", "not my work")


def state_of(task: JsonObject) -> str:
    return str(cast("JsonObject", task["status"])["state"]).removeprefix("TASK_STATE_")


async def list_due(harness: Harness, accepted: TurnAccepted) -> dict[str, str]:
    """The due rows of this task only."""
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
async def test_task_that_fails_twice_completes_in_the_third_attempt(harness: Harness) -> None:
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
    internal_ids = {record.task_id, *(one.run_id for one in record.attempts)}
    internal_ids |= {
        one for scope in scopes for one in (scope.turn_id, scope.step_id) if one is not None
    }
    assert not internal_ids & {str(message["messageId"]) for message in harness.peer.messages}

    frames = await watching
    assert "COMPLETED" in str(frames[-1])
    assert "TASK_STATE_FAILED" not in str(frames)
    life = [kind for kind in await harness.types(accepted) if kind.startswith("task.attempt.")]
    assert life == ["task.attempt.started", "task.attempt.failed"] * 2 + [
        "task.attempt.started",
        "task.attempt.completed",
    ]
    payloads = [event.fact.payload for event in await harness.events(accepted)]
    retries = [one for one in payloads if isinstance(one, TaskRetrying)]
    assert [(one.reason, one.ordinal, one.peer) for one in retries] == [
        ("retry", 2, "echo"),
        ("retry", 3, "echo"),
    ]
    assert await list_due(harness, accepted) == {}


async def test_unary_caller_waits_through_every_attempt(harness: Harness) -> None:
    harness.policy = THRICE
    harness.peer.next(fail_at_once)
    accepted = await harness.send("go")
    response = asyncio.create_task(harness.await_answer(accepted))
    record = await harness.until(accepted, Status.RETRYING)
    assert not record.shown
    await harness.run_due("retry", accepted.task_id, after_ms=_PAUSE_MS)
    task = cast("JsonObject", (await response)["task"])
    assert state_of(task) == "COMPLETED"
    (own,) = cast("list[JsonObject]", task["history"])
    assert own["messageId"] == "m-1"


@pytest.mark.requirement("ATT-10", "ATT-11")
async def test_exhausted_retries_end_the_task_with_the_last_error(harness: Harness) -> None:
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
async def test_refusal_of_the_agent_is_not_retried(harness: Harness, code: int) -> None:
    async def refuse(turn: Turn) -> None:
        await turn.refuse(code, "no")

    harness.policy = THRICE
    harness.peer.next(refuse)
    accepted = await harness.send("go")
    with pytest.raises(PeerRefused):
        await harness.await_answer(accepted)
    assert len((await harness.record(accepted)).attempts) == 1
    assert len(harness.peer.messages) == 1


async def test_retry_after_is_honoured_before_a_fallback(
    street: Harness,
) -> None:
    street.policy = replace(THRICE, fallback=("other",))
    street.peer.answer_next(ScriptedResponse(503, headers={"Retry-After": "40"}))
    accepted = await street.send("go")
    response = asyncio.create_task(street.await_answer(accepted))
    await street.until(accepted, Status.RETRYING)
    at_ms = (await list_due(street, accepted))[f"retry:{accepted.task_id}"]
    assert float(at_ms) > street.clock.now_ms() + 35_000
    await street.run_due("retry", accepted.task_id, after_ms=_PAUSE_MS)
    assert state_of(cast("JsonObject", (await response)["task"])) == "COMPLETED"
    # The agent did not accept the first message, so the second is no repeat.
    assert [message["messageId"] for message in street.peer.messages] == ["m-1", "m-1"]


@pytest.mark.requirement("ATT-16")
async def test_busy_agent_is_replaced_when_its_attempts_are_exhausted(street: Harness) -> None:
    street.policy = FALLBACK
    street.peer.answer_next(ScriptedResponse(429, headers={"Retry-After": "40"}))
    accepted = await street.send("go")
    response = asyncio.create_task(street.await_answer(accepted))
    await street.until(accepted, Status.RETRYING)
    await street.run_due("retry", accepted.task_id, after_ms=0)
    assert state_of(cast("JsonObject", (await response)["task"])) == "COMPLETED"
    assert [len(peer.messages) for peer in street.peers.values()] == [1, 1]


async def test_further_attempt_sent_after_a_wait_contains_the_whole_message(
    harness: Harness,
) -> None:
    harness.policy = THRICE
    harness.peer.next(fail)
    accepted = await harness.send("go", wait="stream")
    await harness.until(accepted, Status.RETRYING)
    harness.peer.answer_next(ScriptedResponse(429, headers={"Retry-After": "60"}))
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
async def test_rejected_task_is_sent_to_the_next_agent(street: Harness) -> None:
    street.policy = FALLBACK
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
    facts = [event.fact for event in await street.events(accepted)]
    (applied,) = [one for one in facts if isinstance(one.payload, FallbackApplied)]
    assert applied.payload == FallbackApplied("echo", "other", "rejected", 2)
    assert applied.scope.run_id == record.attempts[0].run_id
    (retrying,) = [one.payload for one in facts if isinstance(one.payload, TaskRetrying)]
    assert (retrying.reason, retrying.ordinal, retrying.peer) == ("fallback", 2, "other")
    assert "REJECTED" not in str(await watching)
    assert [len(peer.messages) for peer in street.peers.values()] == [1, 1]
    # The caller addressed one agent, and sees the task there.
    assert record.kind == "echo"
    read = await street.service.read(ADA, GetRecord(accepted.task_id))
    assert len(cast("list[object]", read["attempts"])) == 2


@pytest.mark.requirement("ATT-16")
async def test_unreachable_agent_is_replaced_at_once(street: Harness) -> None:
    street.policy = replace(FALLBACK, attempts=3)
    await street.peer.stop()
    accepted = await street.send("go")
    response = asyncio.create_task(street.await_answer(accepted))
    await street.until(accepted, Status.RETRYING)
    await street.run_due("retry", accepted.task_id, after_ms=0)
    assert state_of(cast("JsonObject", (await response)["task"])) == "COMPLETED"
    record = await street.record(accepted)
    assert [one.worker.peer for one in record.attempts] == ["echo", "other"]
    first = record.attempts[0].last_error
    assert first is not None
    assert first.code == "peer_unavailable"
    (sent,) = street.peers["other"].messages
    assert sent["messageId"] == "m-1"


async def test_task_without_a_further_fallback_ends_with_the_last_error(street: Harness) -> None:
    street.policy = FALLBACK
    for peer in street.peers.values():
        await peer.stop()
    accepted = await street.send("go")
    response = asyncio.create_task(street.await_answer(accepted))
    await street.until(accepted, Status.RETRYING)
    await street.run_due("retry", accepted.task_id, after_ms=0)
    with pytest.raises(PeerUnavailable, match="'other' cannot be reached"):
        await response
    record = await street.record(accepted)
    assert [one.worker.peer for one in record.attempts] == ["echo", "other"]


async def drop_connection(turn: Turn) -> None:
    await turn.drop()


@pytest.mark.requirement("ATT-14")
async def test_lost_task_is_resent_if_the_agent_is_idempotent(harness: Harness) -> None:
    harness.policy = replace(THRICE, idempotent=True)
    harness.peer.next(drop_connection)
    accepted = await harness.send("go")
    response = asyncio.create_task(harness.await_answer(accepted))
    record = await harness.until(accepted, Status.RETRYING)
    assert record.attempts[0].status is Status.LOST
    await harness.run_due("retry", accepted.task_id, after_ms=_PAUSE_MS)
    assert state_of(cast("JsonObject", (await response)["task"])) == "COMPLETED"
    record = await harness.record(accepted)
    assert [one.status for one in record.attempts] == [Status.LOST, Status.COMPLETED]
    # The agent may have the message already, so it gets the same message id.
    assert [message["messageId"] for message in harness.peer.messages] == ["m-1", "m-1"]


async def test_lost_task_is_not_resent_if_the_agent_is_not_idempotent(
    street: Harness,
) -> None:
    street.policy = replace(THRICE, fallback=("other",))
    street.peer.next(drop_connection)
    accepted = await street.send("go")
    assert state_of(cast("JsonObject", (await street.await_answer(accepted))["task"])) == "FAILED"
    assert [len(peer.messages) for peer in street.peers.values()] == [1, 0]


@pytest.mark.requirement("VAL-6")
async def test_instance_that_dies_between_two_attempts_loses_and_repeats_none(
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


async def test_cancel_ends_a_task_that_waits_for_its_next_attempt(harness: Harness) -> None:
    harness.policy = THRICE
    harness.peer.next(fail)
    accepted = await harness.send("go", wait="stream")
    watching = asyncio.create_task(harness.watch(accepted))
    await harness.until(accepted, Status.RETRYING)
    assert state_of(await harness.cancel(accepted)) == "CANCELED"
    assert "CANCELED" in str((await watching)[-1])
    assert await list_due(harness, accepted) == {}
    assert len(harness.peer.messages) == 1


async def test_further_attempt_contains_every_message_of_its_task(harness: Harness) -> None:
    harness.policy = THRICE
    harness.peer.hold()
    harness.peer.next(fail)
    accepted = await harness.send("go", wait="stream")
    harness.peer.release(2)  # the submitted task, and its WORKING status

    async def works() -> bool:
        record = await harness.record(accepted)
        return record.shown and record.attempts[-1].native_status == "TASK_STATE_WORKING"

    await wait_until(works, 15, "callers see that the agent is at work")

    async def ignore(turn: Turn) -> None:
        del turn

    harness.peer.next(ignore)
    await harness.send("and mind the gap", task=accepted.facade)
    await wait_until(
        lambda: len(harness.peer.messages) == 2, 15, "the agent has the second message"
    )
    harness.peer.release_all()
    await harness.until(accepted, Status.RETRYING)
    await harness.run_due("retry", accepted.task_id, after_ms=_PAUSE_MS)
    await harness.until(accepted, Status.COMPLETED)
    parts = cast("list[JsonObject]", harness.peer.messages[-1]["parts"])
    assert [part["text"] for part in parts] == ["go", "and mind the gap"]


async def test_bare_message_of_a_later_attempt_completes_the_visible_task(
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
async def test_task_cancelled_in_its_first_attempt_gets_no_second_one(harness: Harness) -> None:
    harness.policy = THRICE
    accepted = await harness.send("silent", wait="stream")
    await harness.until(accepted, Status.QUEUED)
    await harness.cancel(accepted)
    record = await harness.until(accepted, Status.CANCELLED)
    assert len(record.attempts) == len(harness.peer.messages) == 1
    assert not [
        member for member in await list_due(harness, accepted) if member.startswith("retry:")
    ]


@pytest.mark.requirement("ATT-3", "ATT-10", "ATT-11")
async def test_timed_out_run_is_retried_if_the_agent_is_idempotent(harness: Harness) -> None:
    harness.policy = replace(THRICE, idempotent=True, total_timeout_ms=5_000)
    accepted = await harness.send("silent", wait="stream")
    watching = asyncio.create_task(harness.watch(accepted))
    await harness.until(accepted, Status.QUEUED)
    await harness.run_due("timeout", accepted.task_id, after_ms=5_000)
    record = await harness.until(accepted, Status.RETRYING)
    await wait_until(lambda: harness.peer.count("CancelTask") == 1, 15, "the agent has the cancel")
    first = record.attempts[0]
    assert first.last_error is not None
    assert (first.status, first.last_error.code) == (Status.TIMED_OUT, "timed_out")
    rows = await list_due(harness, accepted)
    assert set(rows) == {f"retry:{accepted.task_id}"}, "the time limit of the first run is removed"
    harness.peer.next(fail_at_once)
    harness.policy = replace(harness.policy, attempts=1)
    await harness.run_due("retry", accepted.task_id, after_ms=_PAUSE_MS)
    record = await harness.until(accepted, Status.FAILED)
    assert [one.status for one in record.attempts] == [Status.TIMED_OUT, Status.FAILED]
    assert "FAILED" in str((await watching)[-1])


async def test_timed_out_run_ends_the_task_if_the_agent_is_not_idempotent(harness: Harness) -> None:
    harness.policy = replace(THRICE, total_timeout_ms=5_000)
    accepted = await harness.send("silent", wait="stream")
    await harness.until(accepted, Status.QUEUED)
    await harness.run_due("timeout", accepted.task_id, after_ms=5_000)
    record = await harness.until(accepted, Status.TIMED_OUT)
    assert len(record.attempts) == 1


async def lose(harness: Harness, accepted: TurnAccepted) -> None:
    """Loses the agent's task: its time limit passes twice."""
    driver = harness.parts.dispatch.find(accepted.task_id)
    assert driver is not None
    for status in (Status.LOST, Status.RETRYING):
        harness.clock.ahead_ms += 121_000
        driver.wake()
        await harness.until(accepted, status)


@pytest.mark.requirement("ATT-14", "ATT-3")
async def test_run_of_a_dead_agent_stays_lost_and_the_next_agent_follows(
    street: Harness,
) -> None:
    street.policy = replace(FALLBACK, idempotent=True)
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
async def test_crash_causes_a_second_attempt_only_if_the_agent_has_lost_the_task(
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


async def test_message_sent_before_a_due_attempt_is_part_of_it(harness: Harness) -> None:
    harness.policy = THRICE
    harness.peer.next(fail)
    accepted = await harness.send("go", wait="stream")
    await harness.until(accepted, Status.RETRYING)
    await harness.send("and mind the gap", task=accepted.facade)
    assert len(harness.peer.messages) == 1, "no run is active"
    await harness.run_due("retry", accepted.task_id, after_ms=_PAUSE_MS)
    await harness.until(accepted, Status.COMPLETED)
    (_, sent) = harness.peer.messages
    parts = cast("list[JsonObject]", sent["parts"])
    assert [part["text"] for part in parts] == ["go", "and mind the gap"]
    history = cast("list[JsonObject]", (await harness.read(accepted))["history"])
    sent_ids = [message["messageId"] for message in history if message["role"] == "ROLE_USER"]
    assert sent_ids == ["m-1", "m-2"]


@pytest.mark.requirement("ATT-13")
async def test_attempt_that_misses_its_conditions_is_followed_by_another(
    harness: Harness,
) -> None:
    async def send_report(turn: Turn) -> None:
        await turn.artifact("the report", artifact_id="a-1")
        await turn.status("COMPLETED")

    async def complete_without_report(turn: Turn) -> None:
        await turn.status("COMPLETED", "all done!")

    harness.acceptance = ({"artifact": {}},)
    harness.policy = THRICE
    harness.peer.next(complete_without_report, send_report)
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
