"""A follow-up has the last ended task of its context as its source, without a stored edge (LT-13, LT-14)."""

from __future__ import annotations

import itertools
from typing import cast

import anyio
import pytest

from passerelle.core.commands import TurnAccepted
from passerelle.core.wire.json import JsonObject
from tests.integration.control.test_rollback import go_back, say
from tests.support.desk import Desk
from tests.support.scripted_tasks import Turn

pytestmark = pytest.mark.anyio


async def list_sources(desk: Desk, accepted: TurnAccepted) -> list[str]:
    """Returns the source tasks of a task, as its record shows them."""
    return find_sources(await desk.do("get_task", taskId=accepted.task_id))


def find_sources(record: JsonObject) -> list[str]:
    edges = cast("list[JsonObject]", record.get("relationships", []))
    return [str(one["target"]) for one in edges if one["kind"] == "source_task"]


@pytest.mark.requirement("LT-13", "LT-14")
@pytest.mark.parametrize("restarts", [False, True])
async def test_follow_up_without_references_has_the_task_before_as_source(
    desk: Desk, *, restarts: bool
) -> None:
    tasks = await say(desk, "one", "two", "three", "four", "five")
    if restarts:
        await desk.house.restart()
    assert len({one.task_id for one in tasks}) == 5
    assert len({one.context_id for one in tasks}) == 1
    assert [await list_sources(desk, one) for one in tasks] == [
        [],
        *([before.task_id] for before in tasks[:-1]),
    ]
    snapshot = await desk.do("get_session_tasks", sessionId=tasks[0].session_id)
    graph = cast("JsonObject", snapshot["graph"])
    edges = cast("list[JsonObject]", graph["edges"])
    drawn = {
        str(one["taskId"]): str(edge["target"])
        for one in edges
        if (edge := cast("JsonObject", one["edge"]))["kind"] == "source_task"
    }
    assert drawn == {later.task_id: before.task_id for before, later in itertools.pairwise(tasks)}
    thread = await desk.do("get_thread", threadId=tasks[0].thread_id)
    lines = {str(one["taskId"]): one for one in cast("list[JsonObject]", thread["tasks"])}
    assert [find_sources(lines[one.task_id]) for one in tasks[1:]] == [
        [before.task_id] for before in tasks[:-1]
    ]


async def test_source_edge_of_a_follow_up_is_not_stored(desk: Desk) -> None:
    first, second = await say(desk, "one", "two")
    assert await list_sources(desk, second) == [first.task_id]
    stored = (await desk.record(second.task_id)).relationships
    assert [edge.kind for edge in stored] == ["produced_artifact"]
    said = await desk.types(second.task_id)
    assert "task.dependency.updated" not in said
    assert "context.resolved" not in said


@pytest.mark.requirement("LT-13", "LT-18")
async def test_parallel_follow_ups_have_the_last_task_that_ended_before_them_as_source(
    desk: Desk,
) -> None:
    first = (await say(desk, "one"))[0]
    go_on = anyio.Event()

    async def work(turn: Turn) -> None:
        await turn.status("WORKING")
        await go_on.wait()
        await turn.status("COMPLETED")

    desk.house.peer.next(work, work)
    both = [
        await desk.house.send(text, context_id=first.context_id, wait="stream")
        for text in ("two", "three")
    ]
    go_on.set()
    for one in both:
        await desk.house.watch(one)
    assert [await list_sources(desk, one) for one in both] == [[first.task_id]] * 2
    fourth = await desk.house.send("four", context_id=first.context_id)
    await desk.house.hear(fourth)
    assert await list_sources(desk, fourth) == [both[1].task_id]


async def test_first_messages_of_two_contexts_have_no_source(desk: Desk) -> None:
    for text in ("one", "two"):
        (only,) = await say(desk, text)
        assert await list_sources(desk, only) == []


@pytest.mark.requirement("LT-11", "LT-13")
async def test_follow_up_of_another_agent_has_the_last_task_as_source_and_a_message_is_no_source(
    desk: Desk,
) -> None:
    first, spoken = await say(desk, "one", "message hello")
    other = await desk.house.send("two", agent="other", context_id=first.context_id)
    await desk.house.hear(other)
    assert await list_sources(desk, spoken) == [first.task_id]
    assert await list_sources(desk, other) == [first.task_id]


async def test_message_with_references_has_only_those_as_sources(desk: Desk) -> None:
    first, _ = await say(desk, "one", "two")
    message: JsonObject = {**desk.house.message("three"), "referenceTaskIds": [first.facade]}
    third = await desk.house.send("", context_id=first.context_id, message=message)
    await desk.house.hear(third)
    assert await list_sources(desk, third) == [first.task_id]


@pytest.mark.requirement("LT-13", "EXT-11")
async def test_rolled_back_task_is_no_source_of_later_tasks(desk: Desk) -> None:
    first, second = await say(desk, "one", "two")
    await go_back(desk, first)
    third = await desk.house.send("three", context_id=first.context_id)
    await desk.house.hear(third)
    assert await list_sources(desk, second) == [first.task_id], "it did go on from there"
    assert await list_sources(desk, third) == [first.task_id]


@pytest.mark.requirement("LT-13", "CMD-10")
async def test_retried_task_stays_the_source_of_its_follow_up(desk: Desk) -> None:
    first, second = await say(desk, "fail at it", "two")
    assert await list_sources(desk, second) == [first.task_id]
    await desk.do("retry_task", taskId=first.task_id, reason="now")
    assert await list_sources(desk, second) == [first.task_id]
