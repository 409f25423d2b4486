"""Several turns: in one context after another, in one context with several agents, on one task."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from passerelle.core.batch import EntityKind, EntityRef, Incarnation
from passerelle.core.commands import ListTasks
from passerelle.core.errors import InvalidInput, NotFound, UnsupportedOperation
from passerelle.core.session.machine import SessionRecord
from passerelle.core.session.thread import ThreadRecord, ThreadStatus
from passerelle.core.task.status import Status
from passerelle.core.wire.json import JsonObject
from tests.support.harness import ADA, Harness
from tests.support.scripted_tasks import Turn
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio


async def read_thread(harness: Harness, thread_id: str) -> ThreadRecord:
    ref = EntityRef(EntityKind.THREAD, thread_id)
    record = (await harness.parts.writes.load_one(ref)).record
    assert isinstance(record, ThreadRecord)
    return record


@pytest.mark.requirement("LT-2", "LT-3", "LT-4", "A2A-4", "ID-3", "ID-4", "TR-3")
async def test_returned_context_continues_the_thread_and_the_agents_context(
    harness: Harness,
) -> None:
    first, _ = await harness.talk("one")
    second = await harness.send("two", context_id=first.context_id)
    await harness.await_answer(second)
    third = await harness.send("message three", context_id=first.context_id)
    await harness.await_answer(third)
    assert {first.thread_id} == {second.thread_id, third.thread_id}
    assert len({first.task_id, second.task_id, third.task_id}) == 3
    remote = {str(message["contextId"]) for message in harness.peer.messages}
    assert len(remote) == 1
    assert remote != {first.context_id}
    submitted = [
        event.fact.scope.turn_id
        for event in await harness.events(first)
        if event.type == "turn.submitted"
    ]
    assert submitted == [first.turn_id, second.turn_id, third.turn_id]
    thread = await read_thread(harness, first.thread_id)
    assert (thread.turns, thread.status, thread.active_turns) == (3, ThreadStatus.IDLE, ())
    assert (await harness.read(second))["contextId"] == first.context_id


@pytest.mark.requirement("A2A-4")
async def test_each_agent_of_a_context_has_its_own_context(street: Harness) -> None:
    first, _ = await street.talk("one")
    for agent in ("other", "echo", "other"):
        again = await street.send("more", agent=agent, context_id=first.context_id)
        await street.await_answer(again)
        assert again.thread_id == first.thread_id
    sent = {
        name: {str(message["contextId"]) for message in peer.messages}
        for name, peer in street.peers.items()
    }
    assert [len(contexts) for contexts in sent.values()] == [1, 1]
    assert not sent["echo"] & sent["other"]
    thread = await read_thread(street, first.thread_id)
    assert {name: {context} for name, context in thread.remotes.items()} == sent


@pytest.mark.requirement("A2A-4")
async def test_context_id_chosen_by_the_agent_is_used_from_then_on(harness: Harness) -> None:
    async def insist(turn: Turn) -> None:
        turn.context_id = "context-of-the-peer"
        await turn.status("COMPLETED")

    harness.peer.next(insist)
    first, answer = await harness.talk("one")
    assert "context-of-the-peer" not in str(answer)
    second = await harness.send("two", context_id=first.context_id)
    await harness.await_answer(second)
    assert harness.peer.messages[1]["contextId"] == "context-of-the-peer"


@pytest.mark.requirement("ID-3")
async def test_context_cannot_be_moved_into_another_session(harness: Harness) -> None:
    first, _ = await harness.talk("one")
    other, _ = await harness.talk("two")
    with pytest.raises(InvalidInput, match="sessionId"):
        await harness.send("three", context_id=first.context_id, session_id=other.session_id)
    assert (await read_thread(harness, first.thread_id)).session_id == first.session_id


@pytest.mark.requirement("ID-2")
async def test_session_with_a_further_context_lists_both_threads(harness: Harness) -> None:
    first, _ = await harness.talk("one")
    second = await harness.send("two", session_id=first.session_id)
    await harness.await_answer(second)
    assert second.session_id == first.session_id
    assert second.context_id != first.context_id
    ref = EntityRef(EntityKind.SESSION, first.session_id)
    session = (await harness.parts.writes.load_one(ref)).record
    assert isinstance(session, SessionRecord)
    assert session.threads == (first.thread_id, second.thread_id)
    with pytest.raises(NotFound):
        await harness.send("three", session_id="se_00zzzzzzzzzzzzzzzzzzzzzzzzzz")


@pytest.mark.requirement("LT-11")
async def test_further_message_in_a_context_returns_a_task_or_a_message(harness: Harness) -> None:
    first, _ = await harness.talk("draw a boat")
    task = await harness.send("a red one", context_id=first.context_id)
    answer = cast("JsonObject", (await harness.await_answer(task))["task"])
    assert answer["id"] not in {first.facade, None}
    message = await harness.send("message it is red", context_id=first.context_id)
    answer = cast("JsonObject", (await harness.await_answer(message))["message"])
    assert answer["contextId"] == first.context_id


@pytest.mark.requirement("LT-5", "A2A-9")
async def test_further_message_on_a_working_task_reaches_the_same_remote_task(
    harness: Harness,
) -> None:
    first = await harness.send("silent", wait="stream")
    await harness.until(first, Status.QUEUED)
    (remote,) = harness.peer.tasks
    second = await harness.send("finish now", task=first.facade)
    answer = cast("JsonObject", (await harness.await_answer(second))["task"])
    assert answer["id"] == first.facade
    assert cast("JsonObject", answer["status"])["state"] == "TASK_STATE_COMPLETED"
    sent = harness.peer.messages[1]
    assert sent["taskId"] == remote
    assert sent["contextId"] == harness.peer.messages[0]["contextId"]
    assert second.task_id == first.task_id
    thread = await read_thread(harness, first.thread_id)
    assert thread.active_turns == ()


async def test_first_caller_gets_its_response_when_a_second_message_ends_the_task(
    harness: Harness,
) -> None:
    harness.peer.hold()
    first = await harness.send("slow 0", wait="unary")
    response = asyncio.create_task(harness.await_answer(first))
    await wait_until(lambda: harness.peer.messages, 15, "the peer has the message")
    harness.peer.release_all()
    await response
    third = await harness.send("silent", wait="stream")
    await harness.until(third, Status.QUEUED)
    response = asyncio.create_task(harness.await_answer(third))
    fourth = await harness.send("finish now", task=third.facade)
    await harness.await_answer(fourth)
    answer = cast("JsonObject", (await response)["task"])
    assert cast("JsonObject", answer["status"])["state"] == "TASK_STATE_COMPLETED"


@pytest.mark.requirement("LT-5")
@pytest.mark.parametrize("with_context", [False, True], ids=["task alone", "task and context"])
async def test_task_is_continued_by_its_id_with_or_without_its_context_id(
    harness: Harness, *, with_context: bool
) -> None:
    accepted, _ = await harness.talk("ask which one")
    context = accepted.context_id if with_context else None
    second = await harness.send("blue", task=accepted.facade, context_id=context)
    assert (second.task_id, second.context_id) == (accepted.task_id, accepted.context_id)
    answer = cast("JsonObject", (await harness.await_answer(second))["task"])
    assert answer["id"] == accepted.facade
    sent = harness.peer.messages
    assert sent[1]["contextId"] == sent[0]["contextId"]
    assert len(harness.peer.tasks) == 1


@pytest.mark.requirement("LT-5")
async def test_mismatched_context_and_unknown_task_are_refused_before_the_agent_is_called(
    harness: Harness,
) -> None:
    accepted, _ = await harness.talk("ask which one")
    with pytest.raises(InvalidInput, match="contextId"):
        await harness.send("blue", task=accepted.facade, context_id="another-context")
    for unknown in ("task_00zzzzzzzzzzzzzzzzzzzzzzzzzz", accepted.facade + "~2", "nonsense"):
        with pytest.raises(NotFound):
            await harness.send("blue", task=unknown)
    assert len(harness.peer.messages) == 1


@pytest.mark.requirement("LT-12")
async def test_ended_task_refuses_messages_and_does_not_change(harness: Harness) -> None:
    accepted, _ = await harness.talk("hello")
    before = await harness.record(accepted)
    with pytest.raises(UnsupportedOperation):
        await harness.send("more", task=accepted.facade)
    with pytest.raises(UnsupportedOperation):
        await harness.watch(accepted.facade)
    assert await harness.record(accepted) == before
    assert len(harness.peer.messages) == 1
    later = await harness.send("more", context_id=accepted.context_id)
    await harness.await_answer(later)
    assert later.facade != accepted.facade


@pytest.mark.requirement("LT-7")
async def test_running_task_can_be_got_followed_listed_and_cancelled(harness: Harness) -> None:
    accepted = await harness.send("silent", wait="stream")
    await harness.until(accepted, Status.QUEUED)
    assert (await harness.read(accepted))["id"] == accepted.facade
    watching = asyncio.create_task(harness.watch(accepted.facade))
    page = await harness.service.read(ADA, ListTasks("echo"))
    assert [task["id"] for task in cast("list[JsonObject]", page["tasks"])] == [accepted.facade]
    await harness.cancel(accepted)
    frames = await watching
    assert list(frames[0]) == ["task"]
    assert "TASK_STATE_CANCELED" in str(frames[-1])


@pytest.mark.requirement("LT-9")
async def test_message_after_a_task_becomes_a_status_update_and_a_warning(harness: Harness) -> None:
    accepted = await harness.send("message-after-task", wait="stream")
    frames = await harness.watch(accepted)
    assert not any("message" in frame for frame in frames)
    remarks = [frame for frame in frames if "a message after the task" in str(frame)]
    assert [list(frame) for frame in remarks] == [["statusUpdate"]]
    events = await harness.events(accepted)
    warnings = [event for event in events if event.type == "runtime.warning"]
    assert [event.fact.payload.code for event in warnings] == ["message_after_task"]  # type: ignore[union-attr]
    assert (await harness.record(accepted)).status is Status.COMPLETED


@pytest.mark.requirement("LT-9")
async def test_bare_message_to_a_run_moved_meanwhile_is_recorded(harness: Harness) -> None:
    harness.peer.subscribes = False
    accepted = await harness.send("close", wait="stream")
    await harness.await_answer(accepted, at_once=True)
    harness.peer.hold()
    await harness.send("message noted by the agent", wait="stream", task=accepted.facade)
    await wait_until(lambda: len(harness.peer.messages) == 2, 10, "the agent has the message")
    await harness.replace_driver(accepted, Incarnation("inst_other", 1))
    harness.peer.release_all()

    async def is_kept() -> bool:
        return "ROLE_AGENT" in str(await harness.read(accepted))

    await wait_until(is_kept, 10, "the agent's message is recorded")
