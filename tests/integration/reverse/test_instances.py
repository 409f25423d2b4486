"""Several instances, one agent: the instance with the agent's socket drives its runs."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import pytest
from a2a.server.agent_execution import RequestContext
from a2a.server.tasks import TaskUpdater
from a2a.types import Part

from passerelle.channels.reverse_link import AgentLink
from passerelle.core.batch import EntityKind, EntityRef
from passerelle.peers.reverse.transport import WINDOW
from passerelle.protocol.frames import Refusal
from passerelle.protocol.reverse_frames import AnswerFrame, AnswerItem, AnswerPiece
from passerelle.runtime.records.task_fields import read_driver
from passerelle.runtime.records.writes import Writes
from passerelle.store.agents import RedisAgents
from tests.integration.callers.rig import Instance
from tests.integration.reverse.rig import Answer, Caller, CountingExecutor, Rig, read_texts
from tests.integration.reverse.test_drops import await_links
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio


def find_tasks(instance: Instance) -> list[str]:
    """Returns the tasks that an instance drives."""
    return instance.gateway.parts.dispatch.runs.list_tasks()


async def read_owner(instance: Instance, task: Answer) -> str:
    """Returns the stored driver of the run."""
    ref = EntityRef(EntityKind.TASK, task["id"])
    held = await instance.gateway.parts.writes.load_one(ref)
    driver = read_driver(held.fields)
    return driver.instance if driver else ""


def name_of(instance: Instance) -> str:
    return instance.gateway.duties.keeper.instance


async def test_a_call_at_another_instance_is_driven_by_the_one_with_the_socket(
    rig: Rig,
) -> None:
    here, there = await rig.start(), await rig.start()
    caller = Caller(there)
    async with rig.link(here):
        task = await caller.begin("silent")
        await caller.until(task, "WORKING")
        assert find_tasks(there) == []
        assert find_tasks(here) == [task["id"]]
        assert await read_owner(there, task) == name_of(here)
        rig.agent.executor.silence.set()
        await caller.until(task, "COMPLETED")
        done = await caller.send("over there")
    assert read_texts(done) == ["over there"]
    assert rig.agent.executor.executed == {"m-1": 1, "m-2": 1}


async def test_a_stream_is_read_at_one_instance_and_driven_at_the_other(rig: Rig) -> None:
    here, there = await rig.start(), await rig.start()
    caller = Caller(there)
    async with rig.link(here):
        frames = await caller.collect("SendStreamingMessage", caller.write("chunks 40"))
    assert sum("artifactUpdate" in frame for frame in frames) == 40, frames[:3]
    assert rig.agent.executor.executed == {"m-1": 1}


async def test_an_agent_that_reconnects_elsewhere_takes_its_runs_with_it(rig: Rig) -> None:
    here, there = await rig.start(), await rig.start()
    caller = Caller(here)
    async with rig.link(here):
        task = await caller.begin("silent")
        await caller.until(task, "WORKING")
    await await_links(here, 0)
    async with rig.link(there):
        await wait_until(lambda: find_tasks(there) == [task["id"]], 15, "the run has moved")
        assert await read_owner(here, task) == name_of(there)
        rig.agent.executor.silence.set()
        await caller.until(task, "COMPLETED")
    assert rig.agent.executor.executed == {"m-1": 1}


async def test_a_newer_link_elsewhere_takes_the_name_over(
    rig: Rig,
) -> None:
    here, there = await rig.start(), await rig.start()
    caller = Caller(here)
    async with rig.link(here):
        task = await caller.begin("silent")
        await caller.until(task, "WORKING")
        async with rig.link(there):
            await await_links(here, 0)
            await wait_until(lambda: find_tasks(there) == [task["id"]], 15, "the run has moved")
            rig.agent.executor.silence.set()
            await caller.until(task, "COMPLETED")
    assert rig.agent.executor.executed == {"m-1": 1}


async def test_cancel_and_answers_reach_the_agent_from_the_other_instance(rig: Rig) -> None:
    here, there = await rig.start(), await rig.start()
    caller = Caller(there)
    async with rig.link(here):
        asked = await caller.send("ask where to?")
        answered = await caller.send("Rome", taskId=asked["id"], contextId=asked["contextId"])
        assert answered["status"]["state"] == "TASK_STATE_COMPLETED"
        task = await caller.begin("silent")
        await caller.until(task, "WORKING")
        await caller.call("CancelTask", {"id": task["id"]})
        await caller.until(task, "CANCELED")
    assert rig.agent.executor.executed == {"m-1": 1, "m-2": 1, "m-3": 1}


async def test_a_task_that_waits_for_its_agent_can_be_cancelled(rig: Rig) -> None:
    instance = await rig.start(answers="always_task")
    caller = Caller(instance)
    async with rig.link(instance):
        pass
    task = await caller.begin("hello")
    agents = instance.gateway.store.agents

    async def waits() -> bool:
        return bool(await agents.list_waiting("builder"))

    await wait_until(waits, 15, "the task waits for its agent")
    await caller.call("CancelTask", {"id": task["id"]})
    await caller.until(task, "CANCELED")
    async with rig.link(instance):
        pass
    assert rig.agent.executor.executed == {}


async def test_items_not_yet_stored_do_not_exceed_the_window(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    instance = await rig.start()
    caller = Caller(instance)
    items, refusals, is_open = [0], list[Refusal](), asyncio.Event()
    take, insist = AgentLink.take, Writes.commit_until_known

    def count(link: AgentLink, frame: AnswerFrame) -> Refusal | None:
        items[0] += isinstance(frame, AnswerItem)
        refused = take(link, frame)
        refusals.extend([refused] if refused else [])
        return refused

    async def hold(*args: object, **kwargs: object) -> object:
        await is_open.wait()
        return await insist(*args, **kwargs)  # type: ignore[arg-type]  # passed on as it came

    monkeypatch.setattr(AgentLink, "take", count)
    async with rig.link(instance):
        monkeypatch.setattr(Writes, "commit_until_known", hold)
        params = caller.write("chunks 200")
        streaming = asyncio.create_task(caller.collect("SendStreamingMessage", params))
        await wait_until(lambda: items[0] == WINDOW, 15, "the window is full")
        await asyncio.sleep(0.05)
        assert items[0] == WINDOW
        is_open.set()
        frames = await streaming
    assert refusals == []
    assert sum("artifactUpdate" in frame for frame in frames) == 200


@dataclass
class GrowingChunks(CountingExecutor):
    """Sends 60 small chunks, and then 40 of 900 kB."""

    async def _work(
        self, updater: TaskUpdater, word: str, rest: str, context: RequestContext
    ) -> None:
        await updater.start_work()
        for number in range(100):
            text = f"{number} " + "x" * (900_000 if number >= 60 else 1)
            await updater.add_artifact(
                [Part(text=text)], artifact_id="a", append=number > 0, last_chunk=number == 99
            )
        await updater.complete()


async def test_a_link_is_not_read_beyond_its_bound_and_outlives_that(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Large items come in a window that grew with small ones, while the store is away for longer than a silence."""
    bound = 1_000_000
    monkeypatch.setattr("passerelle.channels.reverse_link.MOST_HELD_BYTES", bound)
    monkeypatch.setattr("passerelle.gateway.settings.model.HEARTBEAT_SLACK_S", 0.5)
    rig.agent.executor = GrowingChunks()
    rig.agent.app = rig.agent.make()
    instance = await rig.start(channels={"heartbeat": "1s"})
    caller = Caller(instance)
    links, most, refusals = set[AgentLink](), [0], list[Refusal]()
    is_large, is_open = asyncio.Event(), asyncio.Event()
    take, insist = AgentLink.take, Writes.commit_until_known

    def watch(link: AgentLink, frame: AnswerFrame) -> Refusal | None:
        refused = take(link, frame)
        links.add(link)
        if isinstance(frame, AnswerPiece):
            is_large.set()
        most[0] = max(most[0], link.held_bytes)
        refusals.extend([refused] if refused else [])
        return refused

    async def hold(*args: object, **kwargs: object) -> object:
        if is_large.is_set():
            await is_open.wait()
        return await insist(*args, **kwargs)  # type: ignore[arg-type]  # passed on as it came

    monkeypatch.setattr(AgentLink, "take", watch)
    async with rig.link(instance):
        monkeypatch.setattr(Writes, "commit_until_known", hold)
        streaming = asyncio.create_task(
            caller.collect("SendStreamingMessage", caller.write("grow"))
        )
        await wait_until(lambda: any(link.waits for link in links), 15, "the link is not read")
        await asyncio.sleep(3)
        assert all(link.waits and not link.is_cut for link in links)
        is_open.set()
        frames = await streaming
    assert (len(links), refusals) == (1, [])
    assert bound < most[0] < 2 * bound
    texts = [
        part["text"].split()[0]
        for frame in frames
        if "artifactUpdate" in frame
        for part in frame["artifactUpdate"]["artifact"]["parts"]
    ]
    assert texts == [str(number) for number in range(100)]


@pytest.mark.requirement("I9")
async def test_a_lost_hint_only_costs_time(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    here, there = await rig.start(), await rig.start()
    caller = Caller(there)
    offer, lost = RedisAgents.offer, list[str]()

    async def lose(agents: RedisAgents, agent: str, task: str, turn: str = "") -> None:
        if task in lost:
            await offer(agents, agent, task, turn)
        lost.append(task)

    async with rig.link(here):
        monkeypatch.setattr(RedisAgents, "offer", lose)
        task = await caller.send("hello")
    assert read_texts(task) == ["hello"]
    assert rig.agent.executor.executed == {"m-1": 1}


@pytest.mark.requirement("ST-16")
async def test_a_run_without_its_agent_is_lost_and_recovers_when_it_returns(
    rig: Rig,
) -> None:
    instance = await rig.start(timeout={"liveness": "1s"})
    caller = Caller(instance)
    async with rig.link(instance):
        task = await caller.begin("silent")
        await caller.until(task, "WORKING")

    async def is_lost() -> bool:
        return bool((await caller.read_record(task["id"]))["status"] == "lost")

    await wait_until(is_lost, 10, "the run is lost")
    rig.agent.executor.silence.set()
    async with rig.link(instance):
        await caller.until(task, "COMPLETED")
    assert rig.agent.executor.executed == {"m-1": 1}
