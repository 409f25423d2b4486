"""Responses to callers, and what is stored of them: Tasks, Messages, refusals."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from passerelle.core.commands import GetRecord, GetTask, ListTasks
from passerelle.core.errors import InvalidAgentResponse, NotFound, PeerRefused, PeerUnavailable
from passerelle.core.task.status import Status
from passerelle.core.wire.json import JsonObject
from tests.support.harness import ADA, BOB, Harness
from tests.support.scripted_peer import ScriptedResponse
from tests.support.scripted_tasks import Turn
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio


@pytest.mark.requirement("LT-1", "LT-3", "A2A-1", "A2A-3", "ID-5")
async def test_unary_turn_returns_a_task_in_two_appends(harness: Harness) -> None:
    harness.peer.use_task_ids("remote-task-77")
    accepted, answer = await harness.talk("hello")
    task = cast("JsonObject", answer["task"])
    assert task["id"] == accepted.facade
    assert task["contextId"] == accepted.context_id
    assert cast("JsonObject", task["status"])["state"] == "TASK_STATE_COMPLETED"
    assert "remote-task-77" not in str(answer)
    assert await harness.read(accepted) == task
    assert len(harness.log.stored) == 2
    record = await harness.record(accepted)
    assert record.attempts[-1].remote_task_id == "remote-task-77"
    assert accepted.task_id not in {"remote-task-77", accepted.context_id}
    wire = await harness.service.read(ADA, GetRecord(accepted.facade))
    assert {"attempts", "relationships", "progress", "artifacts"} <= set(wire)


@pytest.mark.requirement("LT-1", "LT-3", "LT-6")
async def test_bare_message_is_returned_and_not_listed(harness: Harness) -> None:
    accepted, answer = await harness.talk("message good day")
    message = cast("JsonObject", answer["message"])
    assert message["parts"] == [{"text": "good day"}]
    assert message["contextId"] == accepted.context_id
    assert "taskId" not in message
    page = await harness.service.read(ADA, ListTasks("echo"))
    assert (page["tasks"], page["totalSize"]) == ([], 0)
    with pytest.raises(NotFound):
        await harness.read(accepted)
    record = await harness.record(accepted)
    assert (record.status, record.family, record.shown) == (Status.COMPLETED, "message", False)
    types = await harness.types(accepted)
    assert types.count("turn.submitted") == types.count("turn.completed") == 1


@pytest.mark.requirement("LT-1")
async def test_stream_sends_the_stored_frames(harness: Harness) -> None:
    accepted = await harness.send("chunks 3", wait="stream")
    frames = await harness.watch(accepted)
    stored = [event for event in await harness.events(accepted) if event.fact.frame is not None]
    assert len(frames) == len(stored)
    assert list(frames[0]) == ["task"]
    texts = [
        part["text"]
        for frame in frames
        if "artifactUpdate" in frame
        for part in cast("list[JsonObject]", artifact_of(frame)["parts"])
    ]
    assert texts == ["chunk-1 ", "chunk-2 ", "chunk-3 "]
    types = await harness.types(accepted)
    assert types.count("artifact.changed") == 1


def artifact_of(frame: JsonObject) -> JsonObject:
    return cast("JsonObject", cast("JsonObject", frame["artifactUpdate"])["artifact"])


async def test_message_over_a_stream_is_its_only_frame(harness: Harness) -> None:
    accepted = await harness.send("message so be it", wait="stream")
    (frame,) = await harness.watch(accepted)
    assert cast("JsonObject", frame["message"])["parts"] == [{"text": "so be it"}]


@pytest.mark.requirement("A2A-12", "ID-5")
async def test_equal_task_ids_of_two_agents_do_not_collide(street: Harness) -> None:
    for peer in street.peers.values():
        peer.use_task_ids("same-task-id")
    first, _ = await street.talk("one")
    second, _ = await street.talk("two", agent="other")
    assert first.facade != second.facade
    one, two = await street.read(first), await street.read(second)
    assert "one" in str(one["artifacts"])
    assert "two" in str(two["artifacts"])
    records = [await street.record(first), await street.record(second)]
    assert [record.attempts[-1].remote_task_id for record in records] == ["same-task-id"] * 2
    with pytest.raises(NotFound):
        await street.service.read(ADA, GetTask(first.facade, agent="other"))


@pytest.mark.requirement("TR-10")
async def test_task_of_another_caller_is_not_found(harness: Harness) -> None:
    accepted, _ = await harness.talk("hello")
    for query in (GetTask(accepted.facade), GetRecord(accepted.facade)):
        with pytest.raises(NotFound):
            await harness.service.read(BOB, query)
    with pytest.raises(NotFound):
        await harness.send("more", who=BOB, task=accepted.facade)
    assert (await harness.service.read(BOB, ListTasks("echo")))["totalSize"] == 0
    by_context = ListTasks("echo", context_id=accepted.context_id)
    assert (await harness.service.read(BOB, by_context))["totalSize"] == 0
    theirs = await harness.send("mine", who=BOB, context_id=accepted.context_id)
    assert theirs.thread_id != accepted.thread_id
    await harness.await_answer(theirs, who=BOB)


@pytest.mark.parametrize("how", ["unary", "stream"])
async def test_refused_message_is_an_error_without_the_agents_ids_and_without_a_task(
    harness: Harness, how: str
) -> None:
    async def refuse(turn: Turn) -> None:
        await turn.refuse(-32602, "Task 8f14e45f-ceea-467a cannot take that")

    harness.peer.next(refuse)
    accepted = await harness.send("hello", wait="stream" if how == "stream" else "unary")
    with pytest.raises(PeerRefused) as caught:
        await (harness.watch(accepted) if how == "stream" else harness.await_answer(accepted))
    assert "8f14e45f" not in str(caught.value)
    await assert_hidden_failure(harness, accepted.facade)


async def assert_hidden_failure(harness: Harness, facade: str) -> None:
    with pytest.raises(NotFound):
        await harness.service.read(ADA, GetTask(facade))
    wire = await harness.service.read(ADA, GetRecord(facade))
    assert wire["status"] == "failed"
    assert wire.get("shown", False) is False
    assert (await harness.service.read(ADA, ListTasks("echo")))["totalSize"] == 0


async def test_unreachable_agent_is_an_error_and_no_task_is_shown(harness: Harness) -> None:
    await harness.talk("hello")
    await harness.peer.stop()
    accepted = await harness.send("anybody there")
    with pytest.raises(PeerUnavailable, match="cannot be reached"):
        await harness.await_answer(accepted)
    wire = await harness.service.read(ADA, GetRecord(accepted.facade))
    assert (wire["status"], cast("JsonObject", wire["lastError"])["code"]) == (
        "failed",
        "peer_unavailable",
    )
    await harness.peer.start()


async def test_invalid_response_is_an_error_and_no_task_is_shown(harness: Harness) -> None:
    harness.peer.answer_next(ScriptedResponse(200, b'{"jsonrpc": "2.0", "id": 1, "result": 7}'))
    accepted = await harness.send("hello")
    with pytest.raises(InvalidAgentResponse):
        await harness.await_answer(accepted)
    await assert_hidden_failure(harness, accepted.facade)


async def test_every_waiter_gets_the_response_also_after_another_was_cancelled(
    harness: Harness,
) -> None:
    may_answer = asyncio.Event()

    async def answer(turn: Turn) -> None:
        await may_answer.wait()
        await turn.answer("here")

    harness.peer.next(answer)
    accepted = await harness.send("go")
    waiting = [asyncio.create_task(harness.await_answer(accepted)) for _ in range(3)]
    await wait_until(lambda: harness.peer.texts == ["go"], 15, "the agent has the message")
    waiting[1].cancel()
    await asyncio.wait([waiting[1]])
    late = asyncio.create_task(harness.await_answer(accepted))
    may_answer.set()
    answers = await asyncio.gather(waiting[0], waiting[2], late)
    assert [list(answer) for answer in answers] == [["message"]] * 3
    assert waiting[1].cancelled()
