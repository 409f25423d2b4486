"""A stock a2a-sdk agent that dials in works like any other agent: send, stream, subscribe, cancel."""

from __future__ import annotations

import asyncio

import pytest

from passerelle.core.ports.agents import AgentServed
from passerelle.peers.call import LEASE_OVER
from tests.integration.reverse.rig import NAME, Caller, Rig, read_texts
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio


async def test_a_message_reaches_an_agent_that_has_no_port(rig: Rig) -> None:
    instance = await rig.start()
    async with rig.link(instance):
        task = await Caller(instance).send("book it")
    assert task["status"]["state"] == "TASK_STATE_COMPLETED"
    assert read_texts(task) == ["book it"]
    assert rig.agent.executor.executed == {"m-1": 1}


@pytest.mark.requirement("I2")
async def test_a_message_refused_by_the_lease_check_is_in_no_frame(rig: Rig) -> None:
    instance = await rig.start()
    caller = Caller(instance)
    async with rig.link(instance):
        peer = instance.gateway.peers.find(NAME)
        held = caller.write("book it")
        assert await peer.send(held, may_send=lambda: False) == LEASE_OVER
        streamed = peer.stream(held, may_send=lambda: False)
        assert [outcome async for outcome in streamed] == [LEASE_OVER]
        await caller.send("book another")
    assert rig.agent.executor.executed == {"m-2": 1}


async def test_a_bare_message_is_answered_as_a_message(rig: Rig) -> None:
    instance = await rig.start()
    caller = Caller(instance)
    async with rig.link(instance):
        answer = await caller.call("SendMessage", caller.write("message well"))
    assert answer["message"]["parts"] == [{"text": "well"}]


async def test_a_stream_has_every_frame_in_order(rig: Rig) -> None:
    instance = await rig.start()
    caller = Caller(instance)
    async with rig.link(instance):
        frames = await caller.collect("SendStreamingMessage", caller.write("chunks 80"))
    texts = [
        part["text"]
        for frame in frames
        if "artifactUpdate" in frame
        for part in frame["artifactUpdate"]["artifact"]["parts"]
    ]
    assert texts == [f"chunk-{number} " for number in range(1, 81)]
    assert frames[-1]["statusUpdate"]["status"]["state"] == "TASK_STATE_COMPLETED"


async def test_a_subscriber_sees_the_task_and_its_end(rig: Rig) -> None:
    instance = await rig.start()
    caller = Caller(instance)
    async with rig.link(instance):
        task = await caller.begin("silent")
        following = asyncio.create_task(caller.collect("SubscribeToTask", {"id": task["id"]}))
        await caller.until(task, "WORKING")
        rig.agent.executor.silence.set()
        frames = await following
    assert frames[0]["task"]["id"] == task["id"]
    assert frames[-1]["statusUpdate"]["status"]["state"] == "TASK_STATE_COMPLETED"


async def test_a_question_of_the_agent_is_answered_by_a_further_message(rig: Rig) -> None:
    instance = await rig.start()
    caller = Caller(instance)
    async with rig.link(instance):
        asked = await caller.send("ask where to?")
        assert asked["status"]["state"] == "TASK_STATE_INPUT_REQUIRED"
        answered = await caller.send("Rome", taskId=asked["id"], contextId=asked["contextId"])
    assert answered["status"]["state"] == "TASK_STATE_COMPLETED"
    assert rig.agent.executor.executed == {"m-1": 1, "m-2": 1}


async def test_a_cancel_reaches_the_agent(rig: Rig) -> None:
    instance = await rig.start()
    caller = Caller(instance)
    async with rig.link(instance):
        task = await caller.begin("silent")
        await caller.until(task, "WORKING")
        cancelled = await caller.call("CancelTask", {"id": task["id"]})
        assert cancelled["status"]["state"] in {"TASK_STATE_WORKING", "TASK_STATE_CANCELED"}
        await caller.until(task, "CANCELED")


async def test_long_content_is_sent_both_ways(rig: Rig) -> None:
    instance = await rig.start()
    text = 'é"\\' * 60_000
    async with rig.link(instance):
        task = await Caller(instance).send(text)
    assert read_texts(task) == [text]


async def test_the_card_of_a_served_agent_omits_its_own_address(rig: Rig) -> None:
    instance = await rig.start()
    path = f"/agents/{NAME}/.well-known/agent-card.json"
    async with rig.link(instance):
        card = await instance.http.get(path)
        listed = await instance.http.get("/v1/agents", headers={"Authorization": "Bearer ada-key"})
        metrics = (await instance.http.get("/metrics")).text
    assert f'passerelle_agent_links{{agent="{NAME}"}} 1.0' in metrics
    assert card.status_code == 200
    assert card.json()["name"] == "sdk"
    assert "10.0.0.7" not in card.text
    (agent,) = listed.json()["agents"]
    assert (agent["name"], agent["status"]) == (NAME, "ready")


async def test_an_agent_that_left_is_stale_although_its_card_was_read_meanwhile(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    instance = await rig.start()
    cards = instance.gateway.peers.find_dial_in(NAME).cards
    agents = instance.gateway.store.agents
    unregister = agents.unregister

    async def read_first(agent: str, link: str) -> None:
        await cards.load()
        await unregister(agent, link)

    monkeypatch.setattr(agents, "unregister", read_first)
    async with rig.link(instance):
        assert not (await cards.load()).card.stale

    async def is_away() -> bool:
        return (await cards.load()).card.stale

    await wait_until(is_away, 5, "the gateway knows that the agent is away")


async def test_a_card_that_expired_during_its_read_is_read_again(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    instance = await rig.start()
    cards = instance.gateway.peers.find_dial_in(NAME).cards
    agents = instance.gateway.store.agents
    read = agents.read

    async def read_and_expire(agent: str) -> AgentServed | None:
        served = await read(agent)
        cards.expire()
        return served

    async with rig.link(instance):
        monkeypatch.setattr(agents, "read", read_and_expire)
        await cards.load()
        assert cards.fresh is None
        monkeypatch.undo()
        await cards.load()
        assert cards.fresh is not None


async def test_a_request_counts_as_a_light_caller_for_heavy_runs(rig: Rig) -> None:
    instance = await rig.start()
    loads = instance.gateway.parts.dispatch.scheduler.sums
    now_s = asyncio.get_running_loop().time
    assert loads.has_no_light_callers("default/talker", now_s())
    await instance.http.get("/v1/agents", headers={"Authorization": "Bearer ada-key"})
    assert not loads.has_no_light_callers("default/talker", now_s())
