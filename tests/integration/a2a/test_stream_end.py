"""Where the stream of a message ends while its task waits, and how later events are followed."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import pytest

from passerelle.a2a_mapping.extensions import PERMISSION, RESUME
from passerelle.a2a_mapping.members import object_at, objects_at, text_at
from passerelle.core.commands import GetTask, RespondAction
from passerelle.core.principal import OWNER
from passerelle.delegation.runs.peer_profile import PeerTerms
from passerelle.permission_bridge.rules import Rule, make_policy
from tests.integration.a2a.rig import PATIENCE, Event, Rig
from tests.integration.a2a.test_follow_ups import stop_streaming
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from passerelle.core.wire.json import JsonObject
    from tests.support.scripted_tasks import Turn

pytestmark = pytest.mark.anyio

INPUT: Final = "TASK_STATE_INPUT_REQUIRED"
WORKING: Final = "TASK_STATE_WORKING"
AUTH: Final = "TASK_STATE_AUTH_REQUIRED"
COMPLETED: Final = "TASK_STATE_COMPLETED"
PATIENTLY: Final[JsonObject] = {PERMISSION: {"await_approval": True}}
ASKS: Final = make_policy((Rule("ask-first", "ask", about=frozenset({"delegations"})),))
ENDS_WITHIN_S: Final = 15


def read_state(event: Event) -> str:
    [holder] = event.result.values()
    return str(holder.get("status", {}).get("state", ""))


async def collect(rig: Rig, params: JsonObject) -> list[Event]:
    async with asyncio.timeout(ENDS_WITHIN_S):
        return await rig.collect("SendStreamingMessage", params)


def make_params(rig: Rig, text: str, metadata: JsonObject) -> JsonObject:
    """Returns message params with request metadata."""
    return {**rig.message(text), "metadata": metadata}


async def asks_twice(turn: Turn) -> None:
    await turn.status("WORKING")
    await turn.status("INPUT_REQUIRED", "Which colour?")


async def asks_again(turn: Turn) -> None:
    await turn.status("WORKING")
    await turn.status("INPUT_REQUIRED", "Which size?")


@pytest.mark.parametrize("streams", [True, False])
async def test_stream_ends_at_each_question_and_the_answer_has_its_own_stream(
    rig: Rig,
    streams: bool,  # noqa: FBT001  a case
) -> None:
    if not streams:
        stop_streaming(rig)
    rig.peer.next(asks_twice)
    first = await collect(rig, rig.message("paint it"))
    assert read_state(first[-1]) == INPUT
    task_id = first[0].result["task"]["id"]
    rig.peer.next(asks_again)
    second = await collect(rig, rig.message("blue", taskId=task_id))
    assert list(second[0].result) == ["task"]
    # A client that leaves at an interrupted state would leave at the Task as it was before the message.
    assert read_state(second[0]) == WORKING
    said = [part["text"] for one in second[0].result["task"]["history"] for part in one["parts"]]
    assert said == ["paint it", "Which colour?", "blue"]
    assert read_state(second[-1]) == INPUT
    assert "Which size?" in second[-1].data
    third = await collect(rig, rig.message("large", taskId=task_id))
    assert read_state(third[-1]) == COMPLETED
    texts = [part for message in rig.peer.messages for part in objects_at(message, "parts")]
    assert texts == [{"text": "paint it"}, {"text": "blue"}, {"text": "large"}]


async def test_stream_ends_at_a_credential_request_like_the_agents_stream(rig: Rig) -> None:
    events = await collect(rig, rig.message("auth"))
    assert read_state(events[-1]) == AUTH


async def test_stream_ends_at_a_credential_request_at_once_without_agent_streaming(
    rig: Rig,
) -> None:
    stop_streaming(rig)
    events = await collect(rig, rig.message("auth"))
    assert read_state(events[-1]) == AUTH


async def test_stream_stays_open_at_a_credential_request_while_the_agents_is_open(
    rig: Rig,
) -> None:
    rig.peer.hold()
    rig.peer.release(2)
    async with (
        asyncio.timeout(ENDS_WITHIN_S),
        rig.stream("SendStreamingMessage", rig.message("auth-resume")) as events,
    ):
        async for event in events:
            if read_state(event) == AUTH:
                break
        rig.peer.release_all()
        rest = [event async for event in events]
    assert read_state(rest[-1]) == COMPLETED


@pytest.mark.parametrize("who", ["caller", "operator"])
async def test_stream_waits_through_an_approval_on_request_or_by_setting(
    rig: Rig, who: str
) -> None:
    if who == "operator":
        rig.terms["echo"] = PeerTerms(PATIENCE, await_approval=True)
    rig.rules[0] = ASKS
    params = make_params(rig, "hello", PATIENTLY) if who == "caller" else rig.message("hello")
    async with (
        asyncio.timeout(ENDS_WITHIN_S),
        rig.stream("SendStreamingMessage", params) as events,
    ):
        first = await anext(events)
        assert read_state(first) == AUTH
        assert RESUME not in first.data
        await allow(rig, first)
        rest = [event async for event in events]
    assert read_state(rest[-1]) == COMPLETED


async def test_request_of_a_caller_overrides_the_setting(rig: Rig) -> None:
    rig.terms["echo"] = PeerTerms(PATIENCE, await_approval=True)
    rig.rules[0] = ASKS
    declines: JsonObject = {PERMISSION: {"await_approval": False}}
    events = await collect(rig, make_params(rig, "hello", declines))
    assert read_state(events[-1]) == AUTH


async def test_stream_waiting_through_approvals_still_ends_at_an_input_question(rig: Rig) -> None:
    events = await collect(rig, make_params(rig, "ask which?", PATIENTLY))
    assert read_state(events[-1]) == INPUT


async def test_malformed_flag_is_refused_and_nothing_is_sent(rig: Rig) -> None:
    wrong: JsonObject = {PERMISSION: {"await_approval": "yes"}}
    error = await rig.refuse("SendStreamingMessage", make_params(rig, "hello", wrong))
    assert error["code"] == -32602
    [_, bad_request] = error["data"]
    assert bad_request["fieldViolations"][0]["field"] == f"metadata.{PERMISSION}.await_approval"
    assert rig.counted() == 0


@pytest.mark.parametrize("ends_first", [True, False])
async def test_held_message_ends_its_stream_and_a_subscription_gets_the_rest(
    rig: Rig,
    ends_first: bool,  # noqa: FBT001  a case
) -> None:
    rig.rules[0] = ASKS
    [held] = await collect(rig, rig.message("hello"))
    assert read_state(held) == AUTH
    assert "SubscribeToTask" in held.data
    task = held.result["task"]
    cursor = task["metadata"][RESUME]["cursor"]
    assert cursor == held.id
    headers = {"A2A-Extensions": RESUME, "Last-Event-ID": cursor}
    if ends_first:
        await allow(rig, held)
        await wait_until(lambda: has_ended(rig, task["id"]), 15, "the task has ended")
    async with (
        asyncio.timeout(ENDS_WITHIN_S),
        rig.stream("SubscribeToTask", {"id": task["id"]}, **headers) as events,
    ):
        if not ends_first:
            await allow(rig, held)
        rest = [event async for event in events]
    assert read_state(rest[-1]) == COMPLETED
    assert AUTH not in rest[-1].data
    assert len(rig.peer.messages) == 1


async def has_ended(rig: Rig, task_id: str) -> bool:
    task = await rig.service.read(OWNER, GetTask(task_id, "echo", None))
    return text_at(object_at(task, "status"), "state") == COMPLETED


async def allow(rig: Rig, event: Event) -> None:
    """An approver allows the held message that ``event`` asks about."""
    [holder] = event.result.values()
    [asked] = [
        part["data"][PERMISSION]
        for part in holder["status"]["message"]["parts"]
        if PERMISSION in part.get("data", {})
    ]
    command = RespondAction(
        action_id=asked["action_id"],
        rev=asked["rev"],
        digest=asked["digest"],
        decision_id="dec_1",
        option_id="send",
    )
    await rig.service.execute(OWNER, command, None)


async def test_answer_to_a_credential_request_has_a_stream_to_the_end(rig: Rig) -> None:
    asked = await collect(rig, rig.message("auth"))
    task_id = asked[0].result["task"]["id"]
    answered = await collect(rig, rig.message("a token", taskId=task_id))
    assert read_state(answered[-1]) == COMPLETED
    assert len(rig.peer.messages) == 2


async def test_text_to_a_held_message_ends_its_stream_at_the_approval(rig: Rig) -> None:
    rig.rules[0] = ASKS
    [held] = await collect(rig, rig.message("hello"))
    task_id = held.result["task"]["id"]
    last_events = await collect(rig, rig.message("go on", taskId=task_id))
    assert read_state(last_events[-1]) == AUTH
    assert rig.counted() == 0


async def test_v03_stream_ends_at_a_credential_request_like_the_agents_stream(rig: Rig) -> None:
    message: JsonObject = {
        "messageId": "m-3",
        "role": "user",
        "parts": [{"kind": "text", "text": "auth"}],
    }
    version = {"A2A-Version": "0.3"}
    async with (
        asyncio.timeout(ENDS_WITHIN_S),
        rig.stream("message/stream", {"message": message}, **version) as events,
    ):
        last_events = [event async for event in events]
    assert last_events[-1].result["status"]["state"] == "auth-required"
