"""A2A 0.3 agents through the same service: whole runs, and their records."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

import pytest

from passerelle.core.payloads.runtime import WarningRaised
from passerelle.core.task.status import Status
from passerelle.peers.config import PeerConfig
from tests.support.control_client import ControlClient
from tests.support.harness import Harness
from tests.support.sdk_agent import run_sdk_agent
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["JSONRPC/0.3", "HTTP+JSON/0.3"])
async def old(request: pytest.FixtureRequest, harness: Harness) -> AsyncGenerator[Harness, None]:
    """A house with the agent ``old``, which supports only A2A 0.3."""
    async with run_sdk_agent(request.param) as agent:
        harness.registry.replace([PeerConfig("old", agent.url)])
        yield harness
        await harness.parts.dispatch.drain()


@pytest.mark.requirement("A2A-2", "A2A-5")
async def test_attempt_records_its_protocol_and_is_streamed(old: Harness) -> None:
    accepted, answer = await old.talk("good morning", agent="old")
    assert "good morning" in str(answer["task"])
    (attempt,) = (await old.record(accepted)).attempts
    assert attempt.native_protocol == "a2a/0.3"
    assert attempt.delivery_mechanism == "streaming"
    assert attempt.remote_task_id is not None


async def test_bare_message_of_an_old_agent_is_returned(old: Harness) -> None:
    _, answer = await old.talk("message well met", agent="old")
    assert "well met" in str(answer["message"])


async def test_old_agent_asks_and_continues_after_the_answer(old: Harness) -> None:
    accepted, _ = await old.talk("ask which", agent="old")
    view = await old.question(accepted)
    await old.respond(view, option_id="reply", content={"text": "this one"})
    record = await old.until(accepted, Status.COMPLETED)
    assert len(record.attempts) == 1


async def test_old_agent_is_cancelled(old: Harness) -> None:
    accepted = await old.send("silent", agent="old", wait="stream")

    async def is_shown() -> bool:
        return (await old.record(accepted)).shown

    await wait_until(is_shown, 15, "callers see the task")
    await old.cancel(accepted)
    await old.until(accepted, Status.CANCELLED)


@pytest.mark.requirement("A2A-5")
async def test_each_attempt_keeps_the_card_hash_of_its_start(harness: Harness) -> None:
    first, _ = await harness.talk("hello")
    asked, _ = await harness.talk("ask which")
    old_hash = (await harness.record(first)).attempts[0].worker.card_hash
    harness.peer.card = {**harness.peer.card, "description": "Changed."}
    # An agent with a changed configuration gets its card read again.
    harness.registry.replace([PeerConfig("echo", harness.peer.url, idle_timeout_s=99)])
    second, _ = await harness.talk("hello")
    new_hash = (await harness.record(second)).attempts[0].worker.card_hash
    assert new_hash not in {None, old_hash}
    view = await harness.question(asked)
    await harness.respond(view, option_id="reply", content={"text": "this one"})
    await harness.until(asked, Status.COMPLETED)
    for accepted in (first, asked):
        assert (await harness.record(accepted)).attempts[0].worker.card_hash == old_hash


@pytest.mark.requirement("A2A-5")
async def test_card_change_during_a_run_is_recorded_once(harness: Harness) -> None:
    asked, _ = await harness.talk("ask which")
    harness.peer.card = {**harness.peer.card, "description": "Changed."}
    harness.registry.replace([PeerConfig("echo", harness.peer.url, idle_timeout_s=99)])
    await harness.registry.find("echo").describe()
    await harness.restart()
    await harness.adopt(asked)
    view = await harness.question(asked)
    await harness.respond(view, option_id="reply", content={"text": "this one"})
    await harness.until(asked, Status.COMPLETED)
    payloads = [event.fact.payload for event in await harness.events(asked)]
    warned = [one.code for one in payloads if isinstance(one, WarningRaised)]
    assert warned == ["card_changed"]


@pytest.mark.requirement("CMD-19", "EVC-16")
@pytest.mark.parametrize("text", ["good morning", "message well met", "ask which"])
async def test_old_agent_can_be_a_subagent(old: Harness, text: str) -> None:
    control = ControlClient(old)
    made: Any = await control.do("spawn_subagent", "one", agent="old", text=text)
    name = str(made["subagent"]["subagentId"])
    waited: Any = await control.do("wait_subagents", subagentIds=[name])
    assert waited["settled"] == [name]
    assert waited["subagents"][0]["state"] == ("waiting" if text == "ask which" else "idle")
    sent: Any = await control.do("send_subagent_input", "two", subagentId=name, text="this one")
    await control.until(sent["taskId"], Status.COMPLETED)
    assert (sent["taskId"] == made["taskId"]) is (text == "ask which")
    await control.do("close_subagent", subagentId=name)
    listed: Any = await control.do("get_subagent_events", subagentId=name)
    kinds = [
        one["type"].partition(".")[2] for one in listed["events"] if "status" not in one["type"]
    ]
    between = ["input"] if text == "ask which" else ["completed", "input"]
    assert kinds == ["spawned", *between, "completed", "closed"]
