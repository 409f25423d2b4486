"""Subagents that are spawned, get input, are waited for, go on after a death, and are closed (CMD-19)."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import pytest

from passerelle.core.errors import (
    Forbidden,
    IdempotencyConflict,
    InvalidInput,
    NotFound,
    UnsupportedOperation,
)
from passerelle.core.principal import AccessScope
from passerelle.core.task.status import ENDED, Status
from passerelle.core.wire.json import Json
from passerelle.core.wire.record import change
from passerelle.delegation.verification.walk import verify_store
from tests.support.control_client import ControlClient
from tests.support.harness import ADA, BOB
from tests.support.scripted_tasks import Turn
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio


async def spawn(
    control: ControlClient, text: str, agent: str = "echo", key: str | None = None, **params: Json
) -> Any:  # noqa: ANN401  JSON
    return await control.do("spawn_subagent", key or text, agent=agent, text=text, **params)


async def wait(control: ControlClient, *subagents: str, mode: str = "all", ms: int = 10_000) -> Any:  # noqa: ANN401  JSON
    return await control.do("wait_subagents", subagentIds=[*subagents], mode=mode, timeoutMs=ms)


async def list_types(control: ControlClient, subagent: str) -> list[str]:
    answer: Any = await control.do("get_subagent_events", subagentId=subagent)
    return [event["type"].removeprefix("subagent.") for event in answer["events"]]


async def open_parent(control: ControlClient) -> str:
    """A task that goes on by itself while its children work."""
    task_id = await control.start("ask which")
    await control.until(task_id, Status.WAITING_INPUT)
    return task_id


@pytest.mark.requirement("CMD-19", "EVC-16", "ID-10", "TEV-18")
async def test_two_are_spawned_waited_for_and_closed(control: ControlClient) -> None:
    parent = await open_parent(control)
    above = await control.record(parent)
    one = await spawn(control, "slow 60", parentTaskId=parent)
    two = await spawn(control, "message done", "other", parentTaskId=parent)
    names = [str(made["subagent"]["subagentId"]) for made in (one, two)]
    for made, peer in ((one, "echo"), (two, "other")):
        assert made["outcome"] == "spawned"
        assert made["subagent"]["peer"] == peer
        assert made["subagent"]["parent"] == {
            "sessionId": above.session_id,
            "threadId": above.thread_id,
            "turnId": above.turn_id,
            "taskId": parent,
        }
    first = await wait(control, *names, mode="any")
    assert (first["settled"], first["timedOut"]) == ([names[1]], False)
    late = await wait(control, *names, mode="all", ms=50)
    assert (late["settled"], late["timedOut"]) == ([names[1]], True)
    listed: Any = await control.do("list_subagents", taskId=parent)
    assert {found["subagentId"] for found in listed["subagents"]} >= set(names)
    delegated = [event for event in await control.events(parent) if event.type == "task.delegated"]
    assert [event.fact.payload.target_kind for event in delegated] == [  # type: ignore[union-attr]
        *("child_task", "subagent"),
        *("child_task", "subagent"),
    ]
    closed: Any = await control.do("close_subagent", subagentId=names[0])
    assert (closed["outcome"], closed["subagent"]["state"]) == ("closed", "closed")
    await control.until(one["taskId"], Status.CANCELLED)
    assert control.harness.peer.count("CancelTask") == 1
    again: Any = await control.do("close_subagent", subagentId=names[0])
    assert again["repeated"] is True
    everything = await wait(control, *names)
    assert set(everything["settled"]) == set(names)
    edges: Any = await control.do("get_task_graph", taskId=parent)
    status = {
        edge["edge"]["target"]: edge["edge"]["status"]
        for edge in edges["edges"]
        if edge["edge"]["kind"] == "spawned_subagent"
    }
    assert (status[names[0]], status[names[1]]) == ("satisfied", "open")
    kinds = await list_types(control, names[0])
    assert (kinds[0], kinds[1], kinds.count("closed")) == ("spawned", "status", 1)
    assert (await list_types(control, names[1]))[-1] == "completed"
    with pytest.raises(UnsupportedOperation):
        await control.do("send_subagent_input", "late", subagentId=names[0], text="more")
    with pytest.raises(UnsupportedOperation):
        await control.do("resume_subagent", subagentId=names[0])
    assert (await verify_store(control.harness.store, rebuild=True)).lines == []


@pytest.mark.requirement("CMD-19", "EVC-16", "PRS-6")
async def test_input_goes_to_the_task_that_asks_and_then_into_the_same_context(
    control: ControlClient,
) -> None:
    parent = await open_parent(control)
    made = await spawn(control, "ask which", parentTaskId=parent)
    name, task_id = str(made["subagent"]["subagentId"]), str(made["taskId"])
    settled = await wait(control, name)
    assert settled["subagents"][0]["state"] == "waiting"
    send = partial(control.do, "send_subagent_input")
    answered: Any = await send("answer", subagentId=name, text="the second")
    assert answered["taskId"] == task_id
    await control.until(task_id, Status.COMPLETED)
    repeated: Any = await send("answer", subagentId=name, text="the second")
    assert (repeated["repeated"], repeated["turnId"]) == (True, answered["turnId"])
    with pytest.raises(IdempotencyConflict):
        await send("answer", subagentId=name, text="the third")
    further: Any = await send("further", subagentId=name, text="echo more")
    assert further["taskId"] != task_id
    await control.until(further["taskId"], Status.COMPLETED)
    found = (await wait(control, name))["subagents"][0]
    assert found["tasks"] == [task_id, further["taskId"]]
    kinds = await list_types(control, name)
    assert [kind for kind in kinds if kind != "status"] == [
        *("spawned", "input", "completed"),
        *("input", "completed"),
    ]
    sends = [one.params for one in control.harness.peer.requests if "Send" in one.method]
    contexts: list[Any] = [one["message"]["contextId"] for one in sends]  # type: ignore[index, call-overload]
    assert set(contexts[1:]) == {found["remoteContextId"]}
    assert contexts[0] != contexts[1]  # that of the parent is another one
    # What was sent later is below the parent as well, and stops with it.
    slow: Any = await send("slow", subagentId=name, text="slow 60")
    await control.do("cancel_task", taskId=parent, propagation="subtree")
    await control.until(slow["taskId"], Status.CANCELLED)


@pytest.mark.requirement("CMD-19", "CMD-30")
async def test_a_key_spawns_one(control: ControlClient) -> None:
    parent = await open_parent(control)
    first = await spawn(control, "message hi", key="once", parentTaskId=parent)
    again = await spawn(control, "message hi", key="once", parentTaskId=parent)
    assert (again["repeated"], again["taskId"]) == (True, first["taskId"])
    with pytest.raises(IdempotencyConflict):
        await spawn(control, "message other", key="once", parentTaskId=parent)
    await control.until(first["taskId"], Status.COMPLETED)
    assert control.harness.peer.count("SendStreamingMessage") == 2


@pytest.mark.requirement("CMD-19", "PRS-6")
async def test_one_goes_on_after_the_gateway_died(control: ControlClient) -> None:
    parent = await open_parent(control)

    async def hold(turn: Turn) -> None:
        await turn.status("WORKING")
        await go.wait()
        await turn.status("COMPLETED")

    go = asyncio.Event()
    control.harness.stack.callback(go.set)
    control.harness.peer.on("hold", hold)
    made = await spawn(control, "hold on", parentTaskId=parent)
    name, task_id = str(made["subagent"]["subagentId"]), str(made["taskId"])

    async def is_known() -> bool:
        return (await control.record(task_id)).attempts[-1].remote_task_id is not None

    await wait_until(is_known, 10, "the agent has named its task")
    await control.harness.restart()  # nobody drives it now
    resumed: Any = await control.do("resume_subagent", subagentId=name)
    assert resumed["outcome"] == "attached"
    assert (await wait(control, name, ms=20))["timedOut"] is True
    go.set()
    await control.until(task_id, Status.COMPLETED)
    assert (await wait(control, name))["settled"] == [name]
    idle: Any = await control.do("resume_subagent", subagentId=name)
    assert idle["outcome"] == "idle"


@pytest.mark.requirement("CMD-19", "AP-5")
async def test_what_died_before_it_was_sent_is_resumed_or_sent_by_its_key(
    control: ControlClient,
) -> None:
    parent = await open_parent(control)
    start = control.harness.parts.subagents.commands.starting
    sent = control.harness.peer.count("SendStreamingMessage")

    class DiedError(Exception):
        pass

    async def die(*_: object) -> None:
        raise DiedError

    made: dict[str, str] = {}
    for key in ("resumed", "repeated"):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(type(start), "start", die)
            with pytest.raises(DiedError):
                await spawn(control, f"message {key}", key=key, parentTaskId=parent)
        listed: Any = await control.do("list_subagents", taskId=parent)
        (found,) = [
            one for one in listed["subagents"] if one["state"] == "idle" and not one["runs"]
        ]
        made[key] = str(found["subagentId"])
        await control.harness.restart()
        if key == "resumed":
            went: Any = await control.do("resume_subagent", subagentId=made[key])
            assert went["outcome"] == "resumed"
        again = await spawn(control, f"message {key}", key=key, parentTaskId=parent)
        assert again["subagent"]["subagentId"] == made[key]
        await control.until(again["taskId"], Status.COMPLETED)
    assert control.harness.peer.count("SendStreamingMessage") == sent + 2


@pytest.mark.requirement("AP-5", "GR-11")
async def test_no_child_without_its_edge(control: ControlClient) -> None:
    parent = await open_parent(control)
    await control.do("cancel_task", taskId=parent)
    await control.until(parent, Status.CANCELLED)
    record = await control.record(parent)
    stored = len(await control.harness.entries(record.session_id))
    with pytest.raises(UnsupportedOperation):
        await spawn(control, "echo never", parentTaskId=parent)
    assert len(await control.harness.entries(record.session_id)) == stored
    live = await open_parent(control)
    made = await spawn(control, "message hi", parentTaskId=live)
    entries = await control.harness.entries((await control.record(live)).session_id)
    child = next(
        one.data
        for one in entries
        if one.type == "task.created" and made["taskId"].encode() in one.data
    )
    edge = next(one.data for one in entries if b'"targetKind":"subagent"' in one.data)
    spawned = next(one.data for one in entries if one.type == "subagent.spawned")
    times = {data.partition(b'"timestamp":"')[2][:24] for data in (child, edge, spawned)}
    assert len(times) == 1  # of one append


@pytest.mark.requirement("CMD-19")
async def test_without_a_parent_a_closed_context_is_followed_by_another_one(
    control: ControlClient,
) -> None:
    made = await spawn(control, "echo one")
    name = str(made["subagent"]["subagentId"])
    await control.until(made["taskId"], Status.COMPLETED)
    await control.do("close_subagent", subagentId=name)
    context_id = str(made["subagent"]["contextId"])
    sent = await control.harness.send("echo two", context_id=context_id)
    await control.harness.until(sent, Status.COMPLETED)
    listed: Any = await control.do("list_subagents", threadId=sent.thread_id)
    old, new = listed["subagents"]
    assert [one["state"] for one in (old, new)] == ["closed", "idle"]
    assert old["remoteContextId"] != new["remoteContextId"]
    assert new["subagentId"] == name.replace("~1~", "~2~")
    assert (old["tasks"], new["tasks"]) == ([made["taskId"]], [sent.task_id])
    kinds = await list_types(control, new["subagentId"])
    assert (kinds[0], kinds[-1], "input" in kinds) == ("spawned", "completed", False)
    assert (await control.record(sent.task_id)).status in ENDED


async def test_what_is_wrong_is_refused_and_names_its_member(control: ControlClient) -> None:
    made = await spawn(control, "message mine")
    name = str(made["subagent"]["subagentId"])
    for method, params in (
        ("resume_subagent", {}),
        ("close_subagent", {}),
        ("send_subagent_input", {"text": "hi"}),
    ):
        with pytest.raises(NotFound):
            await control.do(method, "key", BOB, subagentId=name, **params)
    with pytest.raises(NotFound):
        await control.do("wait_subagents", None, BOB, subagentIds=[name])
    with pytest.raises(NotFound):
        await control.do("wait_subagents", None, subagentIds=[name, "sub_nobody"])
    with pytest.raises(NotFound):
        await spawn(control, "hi", "nobody")
    with pytest.raises(NotFound):
        await spawn(control, "hi", parentTaskId="task_nobody")
    with pytest.raises(InvalidInput, match="subagentIds"):
        await control.do("wait_subagents", subagentIds=[])
    with pytest.raises(InvalidInput, match="timeoutMs"):
        await wait(control, name, ms=25_001)
    message: dict[str, Json] = {
        "messageId": "m",
        "role": "ROLE_USER",
        "taskId": made["taskId"],
        "parts": [{"text": "hi"}],
    }
    with pytest.raises(InvalidInput, match="taskId"):
        await control.do("send_subagent_input", "named", subagentId=name, message=message)
    reader = change(ADA, scopes=frozenset({AccessScope.READ_TASKS}))
    with pytest.raises(Forbidden):
        await control.do("close_subagent", None, reader, subagentId=name)
