"""A follow-up goes on from the task of its context that had ended, though nobody wrote it down (LT-13, LT-14)."""

from __future__ import annotations

import itertools
from typing import cast

import anyio
import pytest

from passerelle.core.commands import TurnAccepted
from passerelle.core.wire.json import JsonObject
from tests.integration.control.test_rollback import go_back, say
from tests.support.control_client import ControlClient
from tests.support.scripted_tasks import Turn

pytestmark = pytest.mark.anyio


async def list_sources(control: ControlClient, accepted: TurnAccepted) -> list[str]:
    """The tasks that one goes on from, as its record is read."""
    return find_sources(await control.do("get_task", taskId=accepted.task_id))


def find_sources(record: JsonObject) -> list[str]:
    edges = cast("list[JsonObject]", record.get("relationships", []))
    return [str(one["target"]) for one in edges if one["kind"] == "source_task"]


@pytest.mark.requirement("LT-13", "LT-14")
@pytest.mark.parametrize("restarts", [False, True])
async def test_follow_up_that_refers_to_nothing_goes_on_from_the_task_before(
    control: ControlClient, *, restarts: bool
) -> None:
    tasks = await say(control, "one", "two", "three", "four", "five")
    if restarts:
        await control.harness.restart()
    assert len({one.task_id for one in tasks}) == 5
    assert len({one.context_id for one in tasks}) == 1
    assert [await list_sources(control, one) for one in tasks] == [
        [],
        *([before.task_id] for before in tasks[:-1]),
    ]
    snapshot = await control.do("get_session_tasks", sessionId=tasks[0].session_id)
    graph = cast("JsonObject", snapshot["graph"])
    edges = cast("list[JsonObject]", graph["edges"])
    drawn = {
        str(one["taskId"]): str(edge["target"])
        for one in edges
        if (edge := cast("JsonObject", one["edge"]))["kind"] == "source_task"
    }
    assert drawn == {later.task_id: before.task_id for before, later in itertools.pairwise(tasks)}
    thread = await control.do("get_thread", threadId=tasks[0].thread_id)
    lines = {str(one["taskId"]): one for one in cast("list[JsonObject]", thread["tasks"])}
    assert [find_sources(lines[one.task_id]) for one in tasks[1:]] == [
        [before.task_id] for before in tasks[:-1]
    ]


async def test_edge_of_a_follow_up_is_no_fact_and_no_member_of_a_snapshot(
    control: ControlClient,
) -> None:
    first, second = await say(control, "one", "two")
    assert await list_sources(control, second) == [first.task_id]
    stored = (await control.record(second.task_id)).relationships
    assert [edge.kind for edge in stored] == ["produced_artifact"]
    said = await control.types(second.task_id)
    assert "task.dependency.updated" not in said
    assert "context.resolved" not in said


@pytest.mark.requirement("LT-13", "LT-18")
async def test_follow_ups_in_parallel_go_on_from_what_had_ended_before_them(
    control: ControlClient,
) -> None:
    first = (await say(control, "one"))[0]
    go_on = anyio.Event()

    async def work(turn: Turn) -> None:
        await turn.status("WORKING")
        await go_on.wait()
        await turn.status("COMPLETED")

    control.harness.peer.next(work, work)
    both = [
        await control.harness.send(text, context_id=first.context_id, wait="stream")
        for text in ("two", "three")
    ]
    go_on.set()
    for one in both:
        await control.harness.watch(one)
    assert [await list_sources(control, one) for one in both] == [[first.task_id]] * 2
    fourth = await control.harness.send("four", context_id=first.context_id)
    await control.harness.await_answer(fourth)
    assert await list_sources(control, fourth) == [both[1].task_id]


async def test_first_messages_of_two_contexts_have_no_source(control: ControlClient) -> None:
    for text in ("one", "two"):
        (only,) = await say(control, text)
        assert await list_sources(control, only) == []


@pytest.mark.requirement("LT-11", "LT-13")
async def test_follow_up_of_another_agent_goes_on_from_it_and_a_message_is_no_source(
    control: ControlClient,
) -> None:
    first, spoken = await say(control, "one", "message hello")
    other = await control.harness.send("two", agent="other", context_id=first.context_id)
    await control.harness.await_answer(other)
    assert await list_sources(control, spoken) == [first.task_id]
    assert await list_sources(control, other) == [first.task_id]


async def test_message_that_refers_to_a_task_goes_on_from_that_one_alone(
    control: ControlClient,
) -> None:
    first, _ = await say(control, "one", "two")
    message: JsonObject = {**control.harness.message("three"), "referenceTaskIds": [first.facade]}
    third = await control.harness.send("", context_id=first.context_id, message=message)
    await control.harness.await_answer(third)
    assert await list_sources(control, third) == [first.task_id]


@pytest.mark.requirement("LT-13", "EXT-11")
async def test_what_a_thread_went_back_behind_is_no_source_of_what_comes_then(
    control: ControlClient,
) -> None:
    first, second = await say(control, "one", "two")
    await go_back(control, first)
    third = await control.harness.send("three", context_id=first.context_id)
    await control.harness.await_answer(third)
    assert await list_sources(control, second) == [first.task_id], "it did go on from there"
    assert await list_sources(control, third) == [first.task_id]


@pytest.mark.requirement("LT-13", "CMD-10")
async def test_task_that_is_tried_again_stays_the_source_of_its_follow_up(
    control: ControlClient,
) -> None:
    first, second = await say(control, "fail at it", "two")
    assert await list_sources(control, second) == [first.task_id]
    await control.do("retry_task", taskId=first.task_id, reason="now")
    assert await list_sources(control, second) == [first.task_id]
