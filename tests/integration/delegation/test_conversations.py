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
from tests.support.house import ADA, House
from tests.support.scripted_tasks import Turn
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio


async def read_thread(house: House, thread_id: str) -> ThreadRecord:
    ref = EntityRef(EntityKind.THREAD, thread_id)
    record = (await house.parts.writes.load([ref]))[ref].record
    assert isinstance(record, ThreadRecord)
    return record


@pytest.mark.requirement("LT-2", "LT-3", "LT-4", "A2A-4", "ID-3", "ID-4", "TR-3")
async def test_returned_context_continues_the_thread_and_the_agents_context(
    house: House,
) -> None:
    first, _ = await house.talk("one")
    second = await house.send("two", context_id=first.context_id)
    await house.hear(second)
    third = await house.send("message three", context_id=first.context_id)
    await house.hear(third)
    assert {first.thread_id} == {second.thread_id, third.thread_id}
    assert len({first.task_id, second.task_id, third.task_id}) == 3
    remote = {str(message["contextId"]) for message in house.peer.messages}
    assert len(remote) == 1
    assert remote != {first.context_id}
    submitted = [
        event.fact.scope.turn_id
        for event in await house.events(first)
        if event.type == "turn.submitted"
    ]
    assert submitted == [first.turn_id, second.turn_id, third.turn_id]
    thread = await read_thread(house, first.thread_id)
    assert (thread.turns, thread.status, thread.active_turns) == (3, ThreadStatus.IDLE, ())
    assert (await house.read(second))["contextId"] == first.context_id


@pytest.mark.requirement("A2A-4")
async def test_each_agent_of_a_context_has_its_own_context(street: House) -> None:
    first, _ = await street.talk("one")
    for agent in ("other", "echo", "other"):
        again = await street.send("more", agent=agent, context_id=first.context_id)
        await street.hear(again)
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
async def test_context_id_chosen_by_the_agent_is_used_from_then_on(house: House) -> None:
    async def insist(turn: Turn) -> None:
        turn.context_id = "context-of-the-peer"
        await turn.status("COMPLETED")

    house.peer.next(insist)
    first, answer = await house.talk("one")
    assert "context-of-the-peer" not in str(answer)
    second = await house.send("two", context_id=first.context_id)
    await house.hear(second)
    assert house.peer.messages[1]["contextId"] == "context-of-the-peer"


@pytest.mark.requirement("ID-3")
async def test_context_cannot_be_moved_into_another_session(house: House) -> None:
    first, _ = await house.talk("one")
    other, _ = await house.talk("two")
    with pytest.raises(InvalidInput, match="sessionId"):
        await house.send("three", context_id=first.context_id, session_id=other.session_id)
    assert (await read_thread(house, first.thread_id)).session_id == first.session_id


@pytest.mark.requirement("ID-2")
async def test_session_with_a_further_context_lists_both_threads(house: House) -> None:
    first, _ = await house.talk("one")
    second = await house.send("two", session_id=first.session_id)
    await house.hear(second)
    assert second.session_id == first.session_id
    assert second.context_id != first.context_id
    ref = EntityRef(EntityKind.SESSION, first.session_id)
    session = (await house.parts.writes.load([ref]))[ref].record
    assert isinstance(session, SessionRecord)
    assert session.threads == (first.thread_id, second.thread_id)
    with pytest.raises(NotFound):
        await house.send("three", session_id="se_00zzzzzzzzzzzzzzzzzzzzzzzzzz")


@pytest.mark.requirement("LT-11")
async def test_further_message_in_a_context_returns_a_task_or_a_message(house: House) -> None:
    first, _ = await house.talk("draw a boat")
    task = await house.send("a red one", context_id=first.context_id)
    answer = cast("JsonObject", (await house.hear(task))["task"])
    assert answer["id"] not in {first.facade, None}
    message = await house.send("message it is red", context_id=first.context_id)
    answer = cast("JsonObject", (await house.hear(message))["message"])
    assert answer["contextId"] == first.context_id


@pytest.mark.requirement("LT-5", "A2A-9")
async def test_further_message_on_a_working_task_reaches_the_same_remote_task(
    house: House,
) -> None:
    first = await house.send("silent", wait="stream")
    await house.until(first, Status.QUEUED)
    (remote,) = house.peer.tasks
    second = await house.send("finish now", task=first.facade)
    answer = cast("JsonObject", (await house.hear(second))["task"])
    assert answer["id"] == first.facade
    assert cast("JsonObject", answer["status"])["state"] == "TASK_STATE_COMPLETED"
    sent = house.peer.messages[1]
    assert sent["taskId"] == remote
    assert sent["contextId"] == house.peer.messages[0]["contextId"]
    assert second.task_id == first.task_id
    thread = await read_thread(house, first.thread_id)
    assert thread.active_turns == ()


async def test_first_caller_gets_its_response_when_a_second_message_ends_the_task(
    house: House,
) -> None:
    house.peer.hold()
    first = await house.send("slow 0", wait="unary")
    response = asyncio.create_task(house.hear(first))
    await wait_until(lambda: house.peer.messages, 15, "the peer has the message")
    house.peer.release_all()
    await response
    third = await house.send("silent", wait="stream")
    await house.until(third, Status.QUEUED)
    response = asyncio.create_task(house.hear(third))
    fourth = await house.send("finish now", task=third.facade)
    await house.hear(fourth)
    answer = cast("JsonObject", (await response)["task"])
    assert cast("JsonObject", answer["status"])["state"] == "TASK_STATE_COMPLETED"


@pytest.mark.requirement("LT-5")
@pytest.mark.parametrize("with_context", [False, True], ids=["task alone", "task and context"])
async def test_task_is_continued_by_its_id_with_or_without_its_context_id(
    house: House, *, with_context: bool
) -> None:
    accepted, _ = await house.talk("ask which one")
    context = accepted.context_id if with_context else None
    second = await house.send("blue", task=accepted.facade, context_id=context)
    assert (second.task_id, second.context_id) == (accepted.task_id, accepted.context_id)
    answer = cast("JsonObject", (await house.hear(second))["task"])
    assert answer["id"] == accepted.facade
    sent = house.peer.messages
    assert sent[1]["contextId"] == sent[0]["contextId"]
    assert len(house.peer.tasks) == 1


@pytest.mark.requirement("LT-5")
async def test_mismatched_context_and_unknown_task_are_refused_before_the_agent_is_called(
    house: House,
) -> None:
    accepted, _ = await house.talk("ask which one")
    with pytest.raises(InvalidInput, match="contextId"):
        await house.send("blue", task=accepted.facade, context_id="another-context")
    for unknown in ("task_00zzzzzzzzzzzzzzzzzzzzzzzzzz", accepted.facade + "~2", "nonsense"):
        with pytest.raises(NotFound):
            await house.send("blue", task=unknown)
    assert len(house.peer.messages) == 1


@pytest.mark.requirement("LT-12")
async def test_ended_task_refuses_messages_and_does_not_change(house: House) -> None:
    accepted, _ = await house.talk("hello")
    before = await house.record(accepted)
    with pytest.raises(UnsupportedOperation):
        await house.send("more", task=accepted.facade)
    with pytest.raises(UnsupportedOperation):
        await house.watch(accepted.facade)
    assert await house.record(accepted) == before
    assert len(house.peer.messages) == 1
    later = await house.send("more", context_id=accepted.context_id)
    await house.hear(later)
    assert later.facade != accepted.facade


@pytest.mark.requirement("LT-7")
async def test_running_task_can_be_got_followed_listed_and_cancelled(house: House) -> None:
    accepted = await house.send("silent", wait="stream")
    await house.until(accepted, Status.QUEUED)
    assert (await house.read(accepted))["id"] == accepted.facade
    watching = asyncio.create_task(house.watch(accepted.facade))
    page = await house.service.read(ADA, ListTasks("echo"))
    assert [task["id"] for task in cast("list[JsonObject]", page["tasks"])] == [accepted.facade]
    await house.cancel(accepted)
    frames = await watching
    assert list(frames[0]) == ["task"]
    assert "TASK_STATE_CANCELED" in str(frames[-1])


@pytest.mark.requirement("LT-9")
async def test_message_after_a_task_becomes_a_status_update_and_a_warning(house: House) -> None:
    accepted = await house.send("message-after-task", wait="stream")
    frames = await house.watch(accepted)
    assert not any("message" in frame for frame in frames)
    remarks = [frame for frame in frames if "a message after the task" in str(frame)]
    assert [list(frame) for frame in remarks] == [["statusUpdate"]]
    events = await house.events(accepted)
    warnings = [event for event in events if event.type == "runtime.warning"]
    assert [event.fact.payload.code for event in warnings] == ["message_after_task"]  # type: ignore[union-attr]
    assert (await house.record(accepted)).status is Status.COMPLETED


@pytest.mark.requirement("LT-9")
async def test_bare_message_to_a_run_moved_meanwhile_is_recorded(house: House) -> None:
    house.peer.subscribes = False
    accepted = await house.send("close", wait="stream")
    await house.hear(accepted, at_once=True)
    house.peer.hold()
    await house.send("message noted by the agent", wait="stream", task=accepted.facade)
    await wait_until(lambda: len(house.peer.messages) == 2, 10, "the agent has the message")
    await house.give_away(accepted, Incarnation("inst_other", 1))
    house.peer.release_all()

    async def is_kept() -> bool:
        return "ROLE_AGENT" in str(await house.read(accepted))

    await wait_until(is_kept, 10, "the agent's message is recorded")
