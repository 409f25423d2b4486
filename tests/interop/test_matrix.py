"""Every foreign caller with every foreign agent through one gateway: 1.0 and 0.3, JSON-RPC and HTTP+JSON."""

from __future__ import annotations

import pytest

from tests.interop.conftest import World
from tests.interop.scripted_clients import Failed, ScriptedClient, Seen
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio


async def collect(caller: ScriptedClient, act: str, **what: str) -> list[Seen]:
    return [seen async for seen in caller.follow(act, **what)]


async def test_send_returns_the_completed_task_and_get_the_same(caller: ScriptedClient) -> None:
    task = await caller.send("good morning")
    assert (task.kind, task.state) == ("task", "completed")
    assert task.texts == ("good morning",)
    assert await caller.get(task.task) == task


async def test_bare_message_is_a_message(caller: ScriptedClient) -> None:
    message = await caller.send("message well met")
    assert (message.kind, message.texts) == ("message", ("well met",))


async def test_stream_has_the_task_first_and_every_chunk_in_order(caller: ScriptedClient) -> None:
    events = await collect(caller, "stream", text="chunks 3")
    assert events[0].kind == "task"
    chunks = [event.texts for event in events if event.kind == "artifact"]
    assert chunks == [("chunk-1 ",), ("chunk-2 ",), ("chunk-3 ",)]
    assert events[-1].state == "completed"
    assert {event.task for event in events} == {events[0].task}


async def test_input_request_waits_for_a_follow_up_on_the_same_task(caller: ScriptedClient) -> None:
    asked = await caller.send("ask Which colour?")
    assert asked.state == "input-required"
    done = await caller.send("blue", task=asked.task, context=asked.context)
    assert (done.task, done.state) == (asked.task, "completed")


async def test_subscriber_sees_the_task_and_its_cancellation(caller: ScriptedClient) -> None:
    stream = caller.follow("stream", text="silent")
    first = await anext(stream)
    following = caller.follow("subscribe", task=first.task)
    assert (await anext(following)).task == first.task
    assert (await caller.cancel(first.task)).state == "canceled"
    assert [seen async for seen in following][-1].state == "canceled"
    assert [seen async for seen in stream][-1].state == "canceled"
    assert (await caller.get(first.task)).state == "canceled"
    with pytest.raises(Failed):
        await caller.cancel(first.task)


async def test_webhook_receives_the_end_with_its_token(
    world: World, caller: ScriptedClient
) -> None:
    stream = caller.follow("stream", text="silent")
    first = await anext(stream)
    secret = f"secret-of-{first.task}"
    await caller.ask("push", task=first.task, url=world.webhook.url, secret=secret)
    await caller.cancel(first.task)

    def received() -> bool:
        said = [str(body) for token, body in world.webhook.bodies if token == secret]
        return any("CANCELED" in body.upper() and first.task in body for body in said)

    await wait_until(received, 10, "the webhook receives the end")
    assert [seen async for seen in stream][-1].state == "canceled"


async def test_unknown_task_is_an_error_of_the_library(caller: ScriptedClient) -> None:
    with pytest.raises(Failed):
        await caller.get("task_0000000000000000000000000000")
