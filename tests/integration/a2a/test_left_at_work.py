"""An agent that ends its answer and leaves its task at work: who waits is told, and the task goes on."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Final

import pytest

from passerelle.core.wire.json import Json
from passerelle.delegation.runs.peer_profile import PeerTerms
from tests.integration.a2a.rig import PATIENCE, Answer, Rig
from tests.support.scripted_tasks import Turn
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio

_TOLD_S: Final = 8.0
_STALLED_S: Final = 0.6
_SENTENCE: Final = (
    "agent 'echo' has answered with a task that is at work, and its task has not changed for 0.6 s; "
    "the gateway keeps following it"
)


async def leave_at_work(turn: Turn) -> None:
    """As an executor of the SDK that begins something in the background and returns."""
    await turn.status("WORKING", "on it")


@pytest.fixture
def short(rig: Rig) -> Rig:
    rig.terms["echo"] = PeerTerms(replace(PATIENCE, stalled_s=_STALLED_S))
    return rig


async def send(rig: Rig, caller: str, **members: Json) -> Answer:
    """The last thing that the caller is told, as a status with its task's id."""
    params = rig.message("work", configuration=None, **members)
    async with asyncio.timeout(_TOLD_S):
        if caller == "unary":
            task = (await rig.call("SendMessage", params))["task"]
            return {"taskId": task["id"], "status": task["status"]}
        events = await rig.collect("SendStreamingMessage", params)
    update: Answer = events[-1].result["statusUpdate"]
    return update


async def finish(rig: Rig, task_id: str) -> Answer:
    """Has the agent end its task; the task as its caller reads it then."""
    (remote,) = rig.peer.tasks.values()
    remote.artifact([{"text": "late, but done"}])
    remote.status("COMPLETED")

    async def look() -> Answer | None:
        task = await rig.call("GetTask", {"id": task_id})
        return task if task["status"]["state"] == "TASK_STATE_COMPLETED" else None

    task = await wait_until(look, _TOLD_S, "the task has completed")
    assert task is not None
    return task


@pytest.mark.parametrize("opens", [True, False])
@pytest.mark.parametrize("caller", ["unary", "stream"])
@pytest.mark.parametrize("streams", [True, False])
@pytest.mark.parametrize("subscribes", [True, False])
@pytest.mark.requirement("DLV-5")
async def test_who_waits_is_told_and_reads_the_end_later(
    short: Rig, caller: str, *, opens: bool, streams: bool, subscribes: bool
) -> None:
    """Also while a subscription of the agent stays open: those of the SDK do, whatever has become of the work."""
    if not streams:
        short.peer.refuses = frozenset({"SendStreamingMessage", "SubscribeToTask"})
        short.peer.card = {**short.peer.card, "capabilities": {"streaming": False}}
    short.peer.subscribes = subscribes
    members: dict[str, Json] = {} if opens else {"taskId": (await short.send("ask which?"))["id"]}
    short.peer.next(leave_at_work)
    told = await send(short, caller, **members)
    assert told["status"]["state"] == "TASK_STATE_WORKING"
    assert told["status"]["message"]["parts"] == [{"text": _SENTENCE}]
    done = await finish(short, told["taskId"])
    assert done["artifacts"][-1]["parts"] == [{"text": "late, but done"}]
    said = [part["text"] for one in done["history"] for part in one["parts"]]
    assert said.count("on it") == 1


@pytest.mark.parametrize("caller", ["unary", "stream"])
@pytest.mark.parametrize("subscribes", [True, False])
@pytest.mark.requirement("DLV-5")
async def test_news_in_time_is_waited_for(short: Rig, caller: str, *, subscribes: bool) -> None:
    short.peer.subscribes = subscribes
    short.peer.next(leave_at_work)
    sending = asyncio.create_task(send(short, caller))
    await wait_until(lambda: bool(short.peer.tasks), _TOLD_S, "the agent has the task")
    (remote,) = short.peer.tasks.values()
    for number in range(5):
        await asyncio.sleep(_STALLED_S / 2)  # the time is what is tested
        remote.status("WORKING", f"step {number}")
        assert not sending.done()
    remote.status("COMPLETED")
    told = await sending
    assert told["status"]["state"] == "TASK_STATE_COMPLETED"


@pytest.mark.requirement("DLV-5")
async def test_nothing_is_said_to_who_does_not_wait(short: Rig) -> None:
    short.peer.next(leave_at_work)
    params = short.message("work", configuration={"returnImmediately": True})
    task = (await short.call("SendMessage", params))["task"]
    async with (
        asyncio.timeout(_TOLD_S),
        short.stream("SubscribeToTask", {"id": task["id"]}) as events,
    ):
        first = await anext(events)
        assert first.result["task"]["status"]["state"] in {
            "TASK_STATE_WORKING",
            "TASK_STATE_SUBMITTED",
        }
        await asyncio.sleep(_STALLED_S * 2)  # nothing may come meanwhile
        done = await finish(short, task["id"])
        told = [event.data async for event in events]
    assert not any("has not changed" in data for data in told)
    assert done["status"]["state"] == "TASK_STATE_COMPLETED"


@pytest.mark.requirement("DLV-5")
async def test_a_stream_of_the_agent_that_stays_open_is_waited_for(short: Rig) -> None:
    """After an earlier answer that left the task at work, too."""
    goes_on = asyncio.Event()

    async def work_in_silence(turn: Turn) -> None:
        await turn.status("WORKING")
        await goes_on.wait()
        await turn.status("COMPLETED")

    short.peer.next(work_in_silence)
    sending = asyncio.create_task(send(short, "stream"))
    await wait_until(lambda: bool(short.peer.tasks), _TOLD_S, "the agent has the task")
    await asyncio.sleep(_STALLED_S * 2)  # the time is what is tested
    assert not sending.done()
    goes_on.set()
    assert (await sending)["status"]["state"] == "TASK_STATE_COMPLETED"
