"""The recorded error of a failed run and its task, for each kind of failure (TR-19, ATT-11)."""

from __future__ import annotations

from typing import Final

import pytest

from passerelle.core.errors import PasserelleError
from passerelle.core.facts import ErrorCategory, ErrorDetail, RetryPolicy
from passerelle.core.task.record import TaskRecord
from passerelle.core.task.status import Status
from passerelle.permission_bridge.rules import Rule, make_policy
from tests.support.harness import Harness
from tests.support.scripted_peer import ScriptedResponse
from tests.support.scripted_tasks import Turn

pytestmark = pytest.mark.anyio

DENIES: Final = make_policy(
    (Rule("nothing-leaves", "deny", reason="no", about=frozenset({"delegations"})),)
)


def errors_of(record: TaskRecord) -> tuple[ErrorDetail, ErrorDetail]:
    """The errors of the last run and of the task; each has a message."""
    run, task = record.attempts[-1].last_error, record.last_error
    assert run is not None
    assert task is not None
    assert run.message
    assert task.message
    return run, task


async def fail_by(harness: Harness, text: str, *, wait: str = "unary") -> TaskRecord:
    accepted = await harness.send(text, wait="stream" if wait == "stream" else "unary")
    if wait == "unary":
        with pytest.raises(PasserelleError):
            await harness.await_answer(accepted)
    return await harness.until(accepted, Status.FAILED)


@pytest.mark.requirement("TR-19", "ATT-11")
async def test_error_of_the_agent_is_recorded_with_its_code(harness: Harness) -> None:
    async def refuse(turn: Turn) -> None:
        await turn.refuse(-32603, "database on fire")

    harness.peer.next(refuse)
    run, task = errors_of(await fail_by(harness, "go"))
    assert (run.category, run.native, run.source) == (ErrorCategory.PEER, "-32603", "echo")
    assert (task.category, task.native) == (run.category, run.native)


@pytest.mark.requirement("TR-19", "ATT-11")
async def test_failed_state_of_the_agent_is_recorded_as_native_code(harness: Harness) -> None:
    run, task = errors_of(await fail_by(harness, "fail badly", wait="stream"))
    assert (run.category, run.native, run.retryable) == (
        *(ErrorCategory.PEER, "TASK_STATE_FAILED"),
        task.retryable,
    )


@pytest.mark.requirement("TR-19", "ATT-11")
async def test_time_limit_is_a_timeout_error(harness: Harness) -> None:
    harness.policy = RetryPolicy(total_timeout_ms=60_000)
    accepted = await harness.send("silent", wait="stream")
    await harness.until(accepted, Status.QUEUED)
    await harness.run_due("timeout", accepted.task_id, after_ms=60_000)
    record = await harness.until(accepted, Status.TIMED_OUT)
    run = record.attempts[-1].last_error
    assert run is not None
    assert (run.category, run.code) == (ErrorCategory.TIMEOUT, "timed_out")
    assert record.status_reason == "total limit"


@pytest.mark.requirement("TR-19", "ATT-11")
async def test_denying_rule_is_a_policy_error_and_nothing_is_sent(harness: Harness) -> None:
    harness.rules = DENIES
    accepted = await harness.send("go", wait="stream")
    record = await harness.until(accepted, Status.FAILED)
    run, task = errors_of(record)
    assert {run.category, task.category} == {ErrorCategory.POLICY}
    assert (run.code, run.retryable) == ("not_permitted", False)
    assert harness.peer.messages == []


@pytest.mark.requirement("TR-19", "ATT-11")
async def test_unreachable_agent_and_invalid_response_have_different_categories(
    harness: Harness,
) -> None:
    harness.peer.answer_next(ScriptedResponse(200, b"<html>hello</html>"))
    run, _ = errors_of(await fail_by(harness, "go"))
    assert run.category is ErrorCategory.PROTOCOL
    await harness.peer.stop()
    run, _ = errors_of(await fail_by(harness, "go"))
    assert run.category is ErrorCategory.TRANSPORT


@pytest.mark.requirement("TR-19")
async def test_cancel_is_recorded_as_the_callers_and_not_as_a_failure_of_the_agent(
    harness: Harness,
) -> None:
    accepted = await harness.send("silent", wait="stream")
    await harness.until(accepted, Status.QUEUED)
    await harness.cancel(accepted, "enough")
    record = await harness.until(accepted, Status.CANCELLED)
    run = record.attempts[-1].last_error
    assert run is not None
    assert (run.category, record.status_reason) == (ErrorCategory.CALLER, "by user")
