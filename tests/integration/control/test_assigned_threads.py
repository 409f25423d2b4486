"""A task that is resumed on another thread: the edge moves, both facts stay, and its next attempt runs there (GR-6)."""

from __future__ import annotations

from typing import cast

import pytest

from passerelle.core.commands import TurnAccepted
from passerelle.core.errors import InvalidInput, NotFound
from passerelle.core.facts import RetryPolicy
from passerelle.core.payloads.task import TaskAttemptStarted, TaskDependencyUpdated
from passerelle.core.task.status import Status
from passerelle.core.wire.json import JsonObject
from passerelle.delegation.verification.walk import verify_store
from tests.integration.control.test_rollback import read_thread
from tests.support.control_client import ControlClient
from tests.support.harness import BOB
from tests.support.scripted_tasks import Turn

pytestmark = pytest.mark.anyio


async def begin(control: ControlClient, text: str, session_id: str | None = None) -> TurnAccepted:
    """The first turn of a thread, in a session that may have others."""
    accepted = await control.harness.send(text, session_id=session_id)
    await control.harness.await_answer(accepted)
    return accepted


async def fail_first(control: ControlClient, session_id: str) -> TurnAccepted:
    """A task of a thread of its own whose second attempt is owed in a minute, and that is paused meanwhile."""
    control.harness.policy = RetryPolicy(attempts=3, backoff_ms=60_000, backoff_max_ms=60_000)

    async def fail(turn: Turn) -> None:
        await turn.status("WORKING")
        await turn.status("FAILED", "not now")

    control.harness.peer.next(fail)
    accepted = await control.harness.send("work", session_id=session_id, wait="none")
    await control.until(accepted.task_id, Status.RETRYING)
    await control.do("pause_task", taskId=accepted.task_id)
    return accepted


def contexts(control: ControlClient) -> list[str]:
    """The contexts of the messages that the agent got."""
    return [str(one["contextId"]) for one in control.harness.peer.messages]


async def draw(control: ControlClient, task_id: str) -> list[tuple[str, str]]:
    graph = await control.do("get_task_graph", taskId=task_id)
    edges = [cast("JsonObject", one["edge"]) for one in cast("list[JsonObject]", graph["edges"])]
    return [
        (str(one["target"]), str(one["status"]))
        for one in edges
        if one["kind"] == "assigned_thread"
    ]


@pytest.mark.requirement("GR-6", "CMD-8")
@pytest.mark.parametrize("restarts", [False, True])
async def test_task_that_is_resumed_on_another_thread_goes_on_in_its_context(
    control: ControlClient, *, restarts: bool
) -> None:
    other = await begin(control, "echo there")
    task = await fail_first(control, other.session_id)
    assert await draw(control, task.task_id) == [(task.thread_id, "open")]
    await control.do("resume_task", taskId=task.task_id, threadId=other.thread_id)
    moved = [(task.thread_id, "removed"), (other.thread_id, "open")]
    assert await draw(control, task.task_id) == moved
    said = [event.fact.payload for event in await control.events(task.task_id)]
    assert [
        (one.target, one.status, one.reason)
        for one in said
        if isinstance(one, TaskDependencyUpdated) and one.kind == "assigned_thread"
    ] == [(*one, f"resumed by ada on {other.thread_id}") for one in moved]
    if restarts:
        await control.harness.restart()
    await control.harness.run_due("retry", task.task_id, after_ms=61_000)
    record = await control.until(task.task_id, Status.COMPLETED)
    assert len(record.attempts) == 2
    there, own, again = contexts(control)
    assert (again == there, again == own) == (True, False)
    begun = [
        event.fact.scope.thread_id
        for event in await control.events(task.task_id)
        if isinstance(event.fact.payload, TaskAttemptStarted)
    ]
    assert begun == [task.thread_id, other.thread_id]
    assert (await read_thread(control, task.thread_id)).remotes == {"echo": own}
    assert (await read_thread(control, other.thread_id)).remotes == {"echo": there}
    follow = await control.harness.send("more", context_id=task.context_id)
    await control.harness.await_answer(follow)
    assert contexts(control)[-1] == own, "its own thread goes on where it was"
    assert (await verify_store(control.harness.store)).ok


@pytest.mark.requirement("GR-6")
async def test_task_that_was_never_started_starts_in_the_thread_that_it_was_given(
    control: ControlClient,
) -> None:
    other = await begin(control, "echo there")
    task_id = await control.create("work", sessionId=other.session_id)
    await control.do("pause_task", taskId=task_id)
    await control.do("resume_task", taskId=task_id, threadId=other.thread_id)
    await control.do("start_task", taskId=task_id)
    await control.until(task_id, Status.COMPLETED)
    there, own = contexts(control)
    assert own == there
    assert (await verify_store(control.harness.store)).ok


@pytest.mark.requirement("GR-6")
async def test_task_moves_back_and_to_no_thread_of_others(control: ControlClient) -> None:
    other = await begin(control, "echo there")
    elsewhere = await begin(control, "echo elsewhere")
    task = await fail_first(control, other.session_id)
    for thread, error in (
        ("th_nobody", NotFound),
        (task.task_id, NotFound),
        (elsewhere.thread_id, InvalidInput),
    ):
        with pytest.raises(error):
            await control.do("resume_task", taskId=task.task_id, threadId=thread)
    with pytest.raises(NotFound):
        await control.do("resume_task", None, BOB, taskId=task.task_id, threadId=other.thread_id)
    assert await draw(control, task.task_id) == [(task.thread_id, "open")]
    for thread in (other.thread_id, task.thread_id):
        await control.do("resume_task", taskId=task.task_id, threadId=thread)
        await control.do("pause_task", taskId=task.task_id)
    assert await draw(control, task.task_id) == [
        (other.thread_id, "removed"),
        (task.thread_id, "open"),
    ]
