"""A link that ends decides nothing: the agent is asked over the next one, and nothing is executed twice (I6)."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import orjson
import pytest

from passerelle.client.items import ChannelStopped
from passerelle.core.wire.json import JsonObject
from passerelle.peers.reverse.local import LinkedAgent
from tests.integration.callers.rig import Instance
from tests.integration.reverse.rig import NAME, Answer, Caller, Rig, read_texts
from tests.support.proof import read_stream
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio


def find_served(instance: Instance) -> list[LinkedAgent]:
    host = instance.gateway.host
    assert host is not None
    return host.dial_in.links.list(NAME)


async def ask_once(caller: Caller, params: JsonObject) -> list[Answer]:
    return [await caller.call("SendMessage", params)]


async def await_links(instance: Instance, count: int) -> None:
    await wait_until(
        lambda: len(find_served(instance)) == count, 15, f"{count} links of the agent are there"
    )


@pytest.mark.requirement("ST-8", "CF-7", "I9")
async def test_a_message_waits_for_an_agent_that_is_not_there_yet(rig: Rig) -> None:
    instance = await rig.start()
    caller = Caller(instance)
    async with rig.link(instance):
        pass
    sending = asyncio.create_task(caller.send("hello"))
    agents = instance.gateway.store.agents

    async def waits() -> bool:
        return bool(await agents.list_waiting(NAME))

    await wait_until(waits, 15, "the task waits for its agent")
    (waiting,) = await agents.list_waiting(NAME)
    record = await caller.read_record(waiting)
    assert record["status"] == "waiting_resource"
    assert "not linked" in record["statusReason"]
    stored = [
        orjson.loads(entry.data)
        for entry in await read_stream(instance.gateway.store.log, record["sessionId"])
    ]
    (waits_for,) = [one["payload"] for one in stored if one["type"] == "task.waiting"]
    assert waits_for["resource"] == "worker"
    async with rig.link(instance):
        task = await sending
    assert read_texts(task) == ["hello"]
    assert rig.agent.executor.executed == {"m-1": 1}


async def test_an_agent_that_never_comes_fails_the_attempt_after_its_time(rig: Rig) -> None:
    instance = await rig.start(timeout={"connect": "1s"})
    caller = Caller(instance)
    async with rig.link(instance):
        pass
    answer = await caller.ask("SendMessage", caller.write("hello"))
    assert answer["error"]["data"][0]["reason"] == "UNAVAILABLE"
    assert rig.agent.executor.executed == {}


async def test_an_agent_that_never_dialled_in_is_unavailable_at_once(rig: Rig) -> None:
    instance = await rig.start()
    caller = Caller(instance)
    answer = await caller.ask("SendMessage", caller.write("hello"))
    assert answer["error"]["data"][0]["reason"] == "UNAVAILABLE"


@pytest.mark.requirement("I6", "CHN-13")
@pytest.mark.parametrize("streams", [False, True])
async def test_a_link_cut_under_a_call_leaves_one_execution(rig: Rig, *, streams: bool) -> None:
    instance = await rig.start()
    caller = Caller(instance)
    async with AsyncExitStack() as first:
        await first.enter_async_context(rig.link(instance))
        params = caller.write("silent")
        asking: asyncio.Task[list[Answer]] = asyncio.create_task(
            caller.collect("SendStreamingMessage", params) if streams else ask_once(caller, params)
        )
        await wait_until(lambda: bool(rig.agent.executor.executed), 15, "the agent is at work")
    await await_links(instance, 0)
    async with rig.link(instance):
        rig.agent.executor.silence.set()
        *_, last = await asking
    (said,) = last.values()
    assert said["status"]["state"] == "TASK_STATE_COMPLETED"
    assert set(rig.agent.executor.executed.values()) == {1}


async def test_a_task_that_ended_while_no_link_was_there_is_found_ended(rig: Rig) -> None:
    instance = await rig.start()
    caller = Caller(instance)
    async with rig.link(instance):
        task = await caller.begin("silent")
        await caller.until(task, "WORKING")
    await await_links(instance, 0)
    rig.agent.executor.silence.set()
    async with rig.link(instance):
        await caller.until(task, "COMPLETED")
    assert rig.agent.executor.executed == {"m-1": 1}


async def test_a_question_outlives_the_link_that_it_came_over(rig: Rig) -> None:
    instance = await rig.start()
    caller = Caller(instance)
    async with rig.link(instance):
        asked = await caller.send("ask where to?")
    await await_links(instance, 0)
    async with rig.link(instance):
        answered = await caller.send("Rome", taskId=asked["id"], contextId=asked["contextId"])
    assert answered["status"]["state"] == "TASK_STATE_COMPLETED"
    assert rig.agent.executor.executed == {"m-1": 1, "m-2": 1}


async def test_an_agent_that_lost_its_tasks_is_not_given_them_again(rig: Rig) -> None:
    instance = await rig.start()
    caller = Caller(instance)
    async with rig.link(instance):
        task = await caller.begin("silent")
        await caller.until(task, "WORKING")
    rig.agent.forget()
    async with rig.link(instance):

        async def is_lost() -> bool:
            return bool((await caller.read_record(task["id"]))["status"] == "lost")

        await wait_until(is_lost, 15, "the run is lost")
    assert rig.agent.executor.executed == {"m-1": 1}


async def test_the_newest_link_has_the_name_and_what_the_older_one_says_is_not_heard(
    rig: Rig,
) -> None:
    instance = await rig.start()
    caller = Caller(instance)
    async with rig.link(instance) as older:
        task = await caller.begin("silent")
        await caller.until(task, "WORKING")
        (held,) = find_served(instance)
        async with rig.link(instance):
            with pytest.raises(ChannelStopped):
                await older.serve_forever()
            assert held.link.calls == 0
            (served,) = find_served(instance)
            assert served.generation == held.generation + 1
            rig.agent.executor.silence.set()
            await caller.until(task, "COMPLETED")
    assert rig.agent.executor.executed == {"m-1": 1}


async def test_links_of_a_pool_serve_together(rig: Rig) -> None:
    instance = await rig.start(pool=True)
    caller = Caller(instance)
    async with rig.link(instance, most=1), rig.link(instance, most=1):
        assert len(find_served(instance)) == 2
        first, second = await caller.begin("silent"), await caller.begin("silent")
        await caller.until(first, "WORKING")
        await caller.until(second, "WORKING")
        rig.agent.executor.silence.set()
        await caller.until(first, "COMPLETED")
        await caller.until(second, "COMPLETED")
    assert rig.agent.executor.executed == {"m-1": 1, "m-2": 1}


@pytest.mark.parametrize("who", ["stranger", "ada", "nobody"])
async def test_a_name_is_served_by_whom_it_is_granted_to_alone(rig: Rig, who: str) -> None:
    instance = await rig.start()
    with pytest.raises(ChannelStopped):
        async with rig.link(instance, who):
            pass
    assert find_served(instance) == []
