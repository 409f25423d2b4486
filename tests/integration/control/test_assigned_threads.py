"""A task is resumed on another thread: the old edge and the facts stay, and the next attempt runs there (GR-6)."""

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
from tests.support.desk import Desk
from tests.support.house import BOB
from tests.support.scripted_tasks import Turn

pytestmark = pytest.mark.anyio


async def begin(desk: Desk, text: str, session_id: str | None = None) -> TurnAccepted:
    """Sends the first turn of a thread, in a session that may have other threads."""
    accepted = await desk.house.send(text, session_id=session_id)
    await desk.house.hear(accepted)
    return accepted


async def fail_first(desk: Desk, session_id: str) -> TurnAccepted:
    """Starts a task in its own thread; its second attempt is due in a minute, and the task is paused."""
    desk.house.policy = RetryPolicy(attempts=3, backoff_ms=60_000, backoff_max_ms=60_000)

    async def fail(turn: Turn) -> None:
        await turn.status("WORKING")
        await turn.status("FAILED", "not now")

    desk.house.peer.next(fail)
    accepted = await desk.house.send("work", session_id=session_id, wait="none")
    await desk.until(accepted.task_id, Status.RETRYING)
    await desk.do("pause_task", taskId=accepted.task_id)
    return accepted


def contexts(desk: Desk) -> list[str]:
    """Returns the context ids of the messages that the agent received."""
    return [str(one["contextId"]) for one in desk.house.peer.messages]


async def draw(desk: Desk, task_id: str) -> list[tuple[str, str]]:
    graph = await desk.do("get_task_graph", taskId=task_id)
    edges = [cast("JsonObject", one["edge"]) for one in cast("list[JsonObject]", graph["edges"])]
    return [
        (str(one["target"]), str(one["status"]))
        for one in edges
        if one["kind"] == "assigned_thread"
    ]


@pytest.mark.requirement("GR-6", "CMD-8")
@pytest.mark.parametrize("restarts", [False, True])
async def test_task_resumed_on_another_thread_continues_in_its_context(
    desk: Desk, *, restarts: bool
) -> None:
    other = await begin(desk, "echo there")
    task = await fail_first(desk, other.session_id)
    assert await draw(desk, task.task_id) == [(task.thread_id, "open")]
    await desk.do("resume_task", taskId=task.task_id, threadId=other.thread_id)
    moved = [(task.thread_id, "removed"), (other.thread_id, "open")]
    assert await draw(desk, task.task_id) == moved
    said = [event.fact.payload for event in await desk.events(task.task_id)]
    assert [
        (one.target, one.status, one.reason)
        for one in said
        if isinstance(one, TaskDependencyUpdated) and one.kind == "assigned_thread"
    ] == [(*one, f"resumed by ada on {other.thread_id}") for one in moved]
    if restarts:
        await desk.house.restart()
    await desk.house.come_due("retry", task.task_id, after_ms=61_000)
    record = await desk.until(task.task_id, Status.COMPLETED)
    assert len(record.attempts) == 2
    there, own, again = contexts(desk)
    assert (again == there, again == own) == (True, False)
    begun = [
        event.fact.scope.thread_id
        for event in await desk.events(task.task_id)
        if isinstance(event.fact.payload, TaskAttemptStarted)
    ]
    assert begun == [task.thread_id, other.thread_id]
    assert (await read_thread(desk, task.thread_id)).remotes == {"echo": own}
    assert (await read_thread(desk, other.thread_id)).remotes == {"echo": there}
    follow = await desk.house.send("more", context_id=task.context_id)
    await desk.house.hear(follow)
    assert contexts(desk)[-1] == own, "its own thread goes on where it was"
    assert (await verify_store(desk.house.store)).ok


@pytest.mark.requirement("GR-6")
async def test_task_assigned_before_its_start_starts_in_that_thread(
    desk: Desk,
) -> None:
    other = await begin(desk, "echo there")
    task_id = await desk.create("work", sessionId=other.session_id)
    await desk.do("pause_task", taskId=task_id)
    await desk.do("resume_task", taskId=task_id, threadId=other.thread_id)
    await desk.do("start_task", taskId=task_id)
    await desk.until(task_id, Status.COMPLETED)
    there, own = contexts(desk)
    assert own == there
    assert (await verify_store(desk.house.store)).ok


@pytest.mark.requirement("GR-6")
async def test_task_moves_back_and_not_to_a_thread_of_another_session_or_owner(desk: Desk) -> None:
    other = await begin(desk, "echo there")
    elsewhere = await begin(desk, "echo elsewhere")
    task = await fail_first(desk, other.session_id)
    for thread, error in (
        ("th_nobody", NotFound),
        (task.task_id, NotFound),
        (elsewhere.thread_id, InvalidInput),
    ):
        with pytest.raises(error):
            await desk.do("resume_task", taskId=task.task_id, threadId=thread)
    with pytest.raises(NotFound):
        await desk.do("resume_task", None, BOB, taskId=task.task_id, threadId=other.thread_id)
    assert await draw(desk, task.task_id) == [(task.thread_id, "open")]
    for thread in (other.thread_id, task.thread_id):
        await desk.do("resume_task", taskId=task.task_id, threadId=thread)
        await desk.do("pause_task", taskId=task.task_id)
    assert await draw(desk, task.task_id) == [
        (other.thread_id, "removed"),
        (task.thread_id, "open"),
    ]
