"""The behaviour of every peer transport, with the scripted peer and with an SDK agent."""

from __future__ import annotations

import asyncio
import gc
import sys
import weakref
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import cast

import pytest

from passerelle.core.peer import (
    Answered,
    Closed,
    Peer,
    RefusedByPeer,
    StreamOutcome,
    Unknown,
    Unreached,
)
from passerelle.core.wire.json import JsonObject

pytestmark = pytest.mark.anyio


def say(text: str, **ids: str) -> JsonObject:
    """The params of a send with one text part."""
    return {
        "message": {
            "messageId": "message-1",
            "role": "ROLE_USER",
            "parts": [{"text": text}],
            **ids,
        }
    }


def result_of(outcome: StreamOutcome) -> JsonObject:
    assert isinstance(outcome, Answered), outcome
    return outcome.result


def task_of(outcome: StreamOutcome) -> JsonObject:
    return cast("JsonObject", result_of(outcome)["task"])


def state_of(task: JsonObject) -> str:
    return str(cast("JsonObject", task["status"])["state"])


def texts_of(task: JsonObject) -> list[str]:
    """The text parts of the first artifact."""
    artifact = cast("list[JsonObject]", task["artifacts"])[0]
    return [str(part["text"]) for part in cast("list[JsonObject]", artifact["parts"])]


def is_legacy(kind: str) -> bool:
    return kind.endswith("/0.3")


def is_refused_subscription(outcome: StreamOutcome, kind: str, code: int) -> bool:
    """The SDK opens a stream of HTTP+JSON 0.3 before it checks the task, and breaks it off then."""
    if kind == "HTTP+JSON/0.3":
        return isinstance(outcome, Unknown)
    return isinstance(outcome, RefusedByPeer) and outcome.code == code


async def read_all(frames: AsyncIterator[StreamOutcome]) -> list[StreamOutcome]:
    """All remaining frames, within ten seconds."""
    async with asyncio.timeout(10):
        return [frame async for frame in frames]


@pytest.mark.requirement("A2A-2")
async def test_card_names_endpoint_hash_and_streaming(peer: Peer, kind: str) -> None:
    card = await peer.describe()
    assert "127.0.0.1:" in card.endpoint
    assert len(card.sha256) == 64
    assert card.streaming
    assert card.protocol == ("a2a/0.3" if is_legacy(kind) else "a2a/1.0")
    assert card.lists is not is_legacy(kind)
    assert not card.stale


async def test_send_answers_with_a_completed_task_and_its_artifact(peer: Peer) -> None:
    task = task_of(await peer.send(say("good morning")))
    assert state_of(task) == "TASK_STATE_COMPLETED"
    assert texts_of(task) == ["good morning"]


async def test_send_answers_with_a_bare_message(peer: Peer) -> None:
    result = result_of(await peer.send(say("message well met")))
    message = cast("JsonObject", result["message"])
    assert cast("list[JsonObject]", message["parts"])[0]["text"] == "well met"
    assert "task" not in result


async def test_callers_context_is_kept(peer: Peer) -> None:
    task = task_of(await peer.send(say("hello", contextId="a-context-of-ours")))
    assert task["contextId"] == "a-context-of-ours"


async def test_input_request_waits_and_a_follow_up_completes_the_same_task(peer: Peer) -> None:
    asked = task_of(await peer.send(say("ask Which colour?")))
    assert state_of(asked) == "TASK_STATE_INPUT_REQUIRED"
    ids = {"taskId": str(asked["id"]), "contextId": str(asked["contextId"])}
    done = task_of(await peer.send(say("blue", **ids)))
    assert done["id"] == asked["id"]
    assert state_of(done) == "TASK_STATE_COMPLETED"


async def test_sign_in_request_is_an_answer(peer: Peer) -> None:
    task = task_of(await peer.send(say("auth Sign in.")))
    assert state_of(task) == "TASK_STATE_AUTH_REQUIRED"


async def test_stream_gives_task_first_then_updates_and_closes_in_order(peer: Peer) -> None:
    *frames, last = await read_all(peer.stream(say("chunks 3")))
    assert last == Closed()
    kinds = [next(iter(result_of(frame))) for frame in frames]
    assert kinds[0] == "task"
    assert kinds.count("artifactUpdate") == 3
    final = cast("JsonObject", result_of(frames[-1])["statusUpdate"])
    assert state_of(final) == "TASK_STATE_COMPLETED"


async def test_stream_of_a_message_is_that_message_alone(peer: Peer) -> None:
    frame, last = await read_all(peer.stream(say("message hi")))
    assert "message" in result_of(frame)
    assert last == Closed()


async def test_get_reads_the_task_and_limits_its_history(peer: Peer, kind: str) -> None:
    task = task_of(await peer.send(say("chunks 2")))
    read = result_of(await peer.get(str(task["id"])))
    assert read["id"] == task["id"]
    assert texts_of(read) == ["chunk-1 ", "chunk-2 "]
    assert read["history"]
    if not is_legacy(kind):  # where 0 means no limit
        without = result_of(await peer.get(str(task["id"]), history_length=0))
        assert not without.get("history")


async def test_list_finds_the_tasks_of_a_context(peer: Peer, kind: str) -> None:
    if is_legacy(kind):
        refused = await peer.list({"contextId": "shared"})
        assert isinstance(refused, RefusedByPeer)
        assert refused.code == -32004
        return
    first = task_of(await peer.send(say("one", contextId="shared")))
    second = task_of(await peer.send(say("two", contextId="shared")))
    await peer.send(say("three"))
    page = result_of(await peer.list({"contextId": "shared", "historyLength": 5}))
    tasks = cast("list[JsonObject]", page["tasks"])
    assert sorted(str(task["id"]) for task in tasks) == sorted(
        [str(first["id"]), str(second["id"])]
    )
    assert page["nextPageToken"] == ""
    assert cast("list[JsonObject]", tasks[0]["history"])[0]["messageId"] == "message-1"


async def test_unknown_task_is_refused_by_get_cancel_and_subscribe(peer: Peer, kind: str) -> None:
    outcomes = [await peer.get("no-such-task"), await peer.cancel("no-such-task")]
    (subscribed,) = await read_all(peer.subscribe("no-such-task"))
    assert [outcome.code for outcome in outcomes if isinstance(outcome, RefusedByPeer)] == [
        -32001
    ] * 2
    assert is_refused_subscription(subscribed, kind, -32001)


async def test_cancel_ends_a_live_task_and_its_stream(peer: Peer) -> None:
    stream = peer.stream(say("silent"))
    first = await anext(stream)
    if "task" not in result_of(first):
        pytest.fail("the first frame is the task")
    task_id = str(task_of(first)["id"])
    assert state_of(result_of(await peer.cancel(task_id))) == "TASK_STATE_CANCELED"
    rest = await read_all(stream)
    assert rest[-1] == Closed()
    refused = await peer.cancel(task_id)
    assert isinstance(refused, RefusedByPeer)
    assert refused.code == -32002


async def test_subscription_opens_with_the_task_and_follows_it_to_its_end(peer: Peer) -> None:
    stream = peer.stream(say("silent"))
    task_id = str(task_of(await anext(stream))["id"])
    following = peer.subscribe(task_id)
    assert task_of(await anext(following))["id"] == task_id
    await peer.cancel(task_id)
    *_, end, last = await read_all(following)
    assert state_of(cast("JsonObject", result_of(end)["statusUpdate"])) == "TASK_STATE_CANCELED"
    assert last == Closed()
    await read_all(stream)


async def test_subscribing_to_an_ended_task_is_refused(peer: Peer, kind: str) -> None:
    task = task_of(await peer.send(say("over")))
    (refused,) = await read_all(peer.subscribe(str(task["id"])))
    assert is_refused_subscription(refused, kind, -32004)


async def test_invalid_params_are_refused_with_the_peers_code(peer: Peer) -> None:
    task = task_of(await peer.send(say("ask what?")))
    wrong = await peer.send(say("x", taskId=str(task["id"]), contextId="another-context"))
    assert isinstance(wrong, RefusedByPeer)
    assert wrong.code in {-32602, -32600}


@pytest.mark.requirement("I2")
async def test_send_that_is_forbidden_before_its_first_byte_is_not_sent(peer: Peer) -> None:
    asked: list[str] = []

    def forbid() -> bool:
        asked.append("asked")
        return False

    held = say("hello", contextId="held-back")
    outcomes = [
        await peer.send(held, may_send=forbid),
        *await read_all(peer.stream(held, may_send=forbid)),
    ]
    assert [getattr(outcome, "why", outcome) for outcome in outcomes] == ["lease", "lease"]
    assert all(isinstance(outcome, Unreached) for outcome in outcomes)
    assert asked == ["asked"] * 2, "no other interface is tried"
    # The connection to the agent is unaffected: neither pool nor breaker has counted a failure.
    for _ in range(6):
        await peer.send(held, may_send=forbid)
    assert state_of(task_of(await peer.send(say("hello"), may_send=lambda: True))) == (
        "TASK_STATE_COMPLETED"
    )
    assert (await read_all(peer.stream(say("hello"), may_send=lambda: True)))[-1] == Closed()


class _Asked:
    """The object whose method decides whether a message may be sent; it may reference large state."""

    def may_send(self) -> bool:
        return True


async def test_pooled_connection_keeps_no_reference_to_its_caller(peer: Peer) -> None:
    asked = _Asked()
    gone = weakref.ref(asked)
    await peer.send(say("hello"), may_send=asked.may_send)
    await read_all(peer.stream(say("hello"), may_send=asked.may_send))
    del asked
    gc.collect()
    assert gone() is None


async def test_an_event_belongs_to_its_reader_alone(peer: Peer) -> None:
    """A reader may pause for long before it asks for the next event: until then a large one would stay in memory."""
    counted: list[int] = []
    async with aclosing(peer.stream(say("chunks 3"))) as outcomes:
        async for outcome in outcomes:
            if isinstance(outcome, Answered):
                counted += [sys.getrefcount(outcome), sys.getrefcount(outcome.result)]
            del outcome
    assert len(counted) >= 10
    assert set(counted) == {2}, "the reader and the argument of the count, and nobody else"
