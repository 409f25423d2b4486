"""The agent's stream breaks, or the agent raises: every waiting caller is notified within seconds."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any, Final, cast

import orjson
import pytest

from passerelle.core.wire.json import Json, JsonObject
from passerelle.delegation.runs.peer_profile import PeerTerms
from passerelle.peers.config import PeerConfig
from tests.integration.a2a.rig import PATIENCE, Rig
from tests.support.old_agent import run_old_agent
from tests.support.scripted_tasks import Turn
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio

_WITHIN_S: Final = 8.0
_SENTENCE: Final = (
    "the connection to agent {!r} broke, and its task has not changed for 0.4 s; "
    "the gateway keeps polling it"
)


async def work_and_break(turn: Turn) -> None:
    """Like an SDK agent of 0.3 whose code raises: its task stays WORKING for ever."""
    await turn.status("WORKING")
    await turn.drop()


async def raise_at_work(turn: Turn) -> None:
    await turn.status("WORKING")
    await turn.refuse(-32603, "boom")


@pytest.fixture
def short(rig: Rig) -> Rig:
    """The agent has no subscriptions, and the stall limit is short."""
    for agent in ("echo", "old"):
        rig.terms[agent] = PeerTerms(replace(PATIENCE, stalled_s=0.4))
    rig.peer.subscribes = False
    return rig


async def send(rig: Rig, caller: str, **members: Json) -> dict[str, Any]:
    """Returns the last event that the caller receives."""
    params = rig.message("work", configuration=None, **members)
    async with asyncio.timeout(_WITHIN_S):
        if caller == "unary":
            return cast("dict[str, Any]", (await rig.call("SendMessage", params))["task"])
        events = await rig.collect("SendStreamingMessage", params)
    return cast("dict[str, Any]", orjson.loads(events[-1].data)["result"]["statusUpdate"])


@pytest.mark.parametrize(
    ("caller", "opens"), [("unary", True), ("stream", True), ("stream", False)]
)
@pytest.mark.requirement("DLV-5")
async def test_a_task_stalled_since_its_stream_broke_is_reported(
    short: Rig, caller: str, *, opens: bool
) -> None:
    members = {} if opens else {"taskId": (await short.send("ask which?"))["id"]}
    short.peer.next(work_and_break)
    last_seen = await send(short, caller, **members)
    assert last_seen["status"]["state"] == "TASK_STATE_WORKING"
    assert last_seen["status"]["message"]["parts"] == [{"text": _SENTENCE.format("echo")}]
    task_id = last_seen.get("id") or last_seen["taskId"]
    # The note is sent once, and nothing ends: a silently working agent is followed to its end.
    looked = short.peer.count("GetTask")
    await wait_until(
        lambda: short.peer.count("GetTask") > looked + 5, _WITHIN_S, "the gateway looks on"
    )
    now = await short.call("GetTask", {"id": task_id})
    assert now["status"] == last_seen["status"]
    (remote,) = short.peer.tasks.values()
    remote.artifact([{"text": "late, but done"}])
    remote.status("COMPLETED")

    async def is_done() -> bool:
        task = await short.call("GetTask", {"id": task_id})
        return bool(task["status"]["state"] == "TASK_STATE_COMPLETED")

    await wait_until(is_done, _WITHIN_S, "the task has completed")
    done = await short.call("GetTask", {"id": task_id})
    assert done["artifacts"][0]["parts"] == [{"text": "late, but done"}]


@pytest.mark.requirement("DLV-5")
async def test_a_subscriber_reads_on_to_the_end(short: Rig) -> None:
    short.peer.next(work_and_break)
    last_seen = await send(short, "unary")
    async with (
        asyncio.timeout(_WITHIN_S),
        short.stream("SubscribeToTask", {"id": last_seen["id"]}) as events,
    ):
        first = await anext(events)
        assert first.result["task"]["status"] == last_seen["status"]
        (remote,) = short.peer.tasks.values()
        remote.status("COMPLETED")
        rest = [event.result async for event in events]
    assert rest[-1]["statusUpdate"]["status"]["state"] == "TASK_STATE_COMPLETED"


@pytest.mark.requirement("DLV-5")
async def test_a_task_with_progress_meanwhile_is_not_reported_as_stalled(short: Rig) -> None:
    short.peer.next(work_and_break)
    sending = asyncio.create_task(send(short, "unary"))
    await wait_until(lambda: bool(short.peer.tasks), _WITHIN_S, "the agent has the task")
    (remote,) = short.peer.tasks.values()
    await wait_until(lambda: short.peer.count("GetTask") >= 1, _WITHIN_S, "the gateway looks")
    remote.status("WORKING", "half of it")
    await wait_until(lambda: short.peer.count("GetTask") >= 12, _WITHIN_S, "it looks on")
    assert not sending.done()
    remote.status("COMPLETED")
    assert (await sending)["status"]["state"] == "TASK_STATE_COMPLETED"


@pytest.mark.requirement("DLV-3")
async def test_an_agent_error_in_its_stream_fails_the_run_with_its_text(short: Rig) -> None:
    short.peer.next(raise_at_work)
    last_seen = await send(short, "stream")
    assert last_seen["status"]["state"] == "TASK_STATE_FAILED"
    assert last_seen["status"]["message"]["parts"] == [{"text": "boom"}]


@pytest.mark.parametrize("words", ["boom", "task {} broke", ""])
@pytest.mark.requirement("DLV-3")
async def test_a_task_that_its_agent_fails_without_words_has_those_of_the_error(
    short: Rig, words: str
) -> None:
    """As an agent of the SDK since 1.3: it fails its task beside the error, without a message and without a frame."""

    async def raise_and_fail(turn: Turn) -> None:
        await turn.status("WORKING")
        task = await turn.open()
        task.record["status"] = {"state": "TASK_STATE_FAILED"}
        await turn.refuse(-32603, words.format(task.id))

    short.peer.next(raise_and_fail)
    told = await send(short, "stream")
    assert told["status"]["state"] == "TASK_STATE_FAILED"
    (part,) = told["status"]["message"]["parts"]
    assert part["text"] == words.format(told["taskId"]) or (not words and part["text"])
    assert told["status"]["message"]["taskId"] == told["taskId"]
    shown = await short.call("GetTask", {"id": told["taskId"]})
    assert shown["status"]["message"] == told["status"]["message"]


@pytest.mark.parametrize("is_whole", [True, False], ids=["task", "update"])
@pytest.mark.parametrize("pause_s", [0.0, 0.05])
@pytest.mark.requirement("DLV-3")
async def test_a_task_that_its_agent_fails_in_its_stream_has_the_words_of_the_error_after_it(
    short: Rig, pause_s: float, *, is_whole: bool
) -> None:
    """As an agent of AG2, and any whose program reports a failure without words and raises."""

    async def fail_and_raise(turn: Turn) -> None:
        task = await turn.open()
        failed: JsonObject = {
            "contextId": task.context_id,
            "status": {"state": "TASK_STATE_FAILED"},
        }
        named: JsonObject = {"id" if is_whole else "taskId": task.id, **failed}
        task.record["status"] = failed["status"]
        result: JsonObject = {"task" if is_whole else "statusUpdate": named}
        # Not by a method of the turn: after those the stream ends.
        body = orjson.dumps({"jsonrpc": "2.0", "id": None, "result": result})
        await turn.write(b"data: " + body + b"\n\n")
        await asyncio.sleep(pause_s)
        await turn.refuse(-32603, f"task {task.id} broke")

    short.peer.next(fail_and_raise)
    told = await send(short, "stream")
    assert told["status"]["state"] == "TASK_STATE_FAILED"
    assert told["status"]["message"]["parts"] == [{"text": f"task {told['taskId']} broke"}]
    shown = await short.call("GetTask", {"id": told["taskId"]})
    assert shown["status"]["message"] == told["status"]["message"]


@pytest.mark.requirement("DLV-3")
async def test_a_task_that_its_agent_fails_without_an_error_stays_without_words(short: Rig) -> None:
    async def fail(turn: Turn) -> None:
        await turn.open()
        await turn.status("FAILED")

    short.peer.next(fail)
    told = await send(short, "stream")
    assert told["status"]["state"] == "TASK_STATE_FAILED"
    assert "message" not in told["status"]


@pytest.mark.requirement("DLV-3")
async def test_a_task_that_its_agent_fails_with_words_keeps_them(short: Rig) -> None:
    async def fail_and_raise(turn: Turn) -> None:
        task = await turn.open()
        await turn.refuse(-32603, "boom")
        task.status("FAILED", "the tool broke")

    short.peer.next(fail_and_raise)
    told = await send(short, "stream")
    assert told["status"]["message"]["parts"] == [{"text": "the tool broke"}]


@pytest.mark.requirement("DLV-3")
async def test_the_agents_task_status_overrides_its_error(short: Rig) -> None:
    async def end_and_raise(turn: Turn) -> None:
        task = await turn.open()
        await turn.refuse(-32603, "boom")
        task.status("COMPLETED")

    short.peer.next(end_and_raise)
    last_seen = await send(short, "stream")
    assert last_seen["status"]["state"] == "TASK_STATE_COMPLETED"


# ---------------------------------------------------------------- agents of 0.3


@pytest.mark.parametrize("caller", ["unary", "stream"])
@pytest.mark.requirement("DLV-5")
async def test_a_raising_v03_agent_is_reported_within_seconds(short: Rig, caller: str) -> None:
    """The gateway always streams to it, and its task reports WORKING for ever."""
    async with run_old_agent() as old:
        short.peers.replace([PeerConfig("old", old.url)])
        params = short.message("work")
        async with asyncio.timeout(_WITHIN_S):
            if caller == "unary":
                last_seen = (await short.call("SendMessage", params, agent="old"))["task"]
            else:
                response = await short.post("SendStreamingMessage", params, agent="old")
                last = response.text.strip().rpartition("data: ")[2]
                last_seen = orjson.loads(last)["result"]["statusUpdate"]
        assert last_seen["status"]["state"] == "TASK_STATE_WORKING"
        assert last_seen["status"]["message"]["parts"] == [{"text": _SENTENCE.format("old")}]
        assert old.sends == ["message/stream"]
        await short.parts.dispatch.drain()


@pytest.mark.parametrize("streams", [True, False])
@pytest.mark.requirement("DLV-1", "DLV-3")
async def test_a_v03_agent_that_raises_on_an_answer_fails_its_run(
    short: Rig, *, streams: bool
) -> None:
    async with run_old_agent(streams=streams) as old:
        short.peers.replace([PeerConfig("old", old.url)])
        asked = (await short.call("SendMessage", short.message("ask which?"), agent="old"))["task"]
        assert asked["status"]["state"] == "TASK_STATE_INPUT_REQUIRED"
        answer = short.message("blue", taskId=asked["id"])
        async with asyncio.timeout(_WITHIN_S):
            error = await short.refuse("SendMessage", answer, agent="old")
        assert (error["code"], error["message"]) == (-32603, "boom")
        assert old.sends[1:] == ["message/send"]
        failed = await short.call("GetTask", {"id": asked["id"]}, agent="old")
        assert failed["status"]["state"] == "TASK_STATE_FAILED"
        await short.parts.dispatch.drain()
