"""Agents that are paused, drained and resumed: what comes for them waits, says why, and goes on in order."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import cast

import pytest

from passerelle.core.batch import Batch
from passerelle.core.commands import CancelTask, GetTaskModel, TurnAccepted, WaitMode
from passerelle.core.errors import Forbidden, NotFound, PeerUnavailable, StoreUnavailable
from passerelle.core.facts import RetryPolicy
from passerelle.core.payloads.limit import LimitChanged
from passerelle.core.payloads.routing import FallbackApplied, RoutingDecided, SingleCandidate
from passerelle.core.payloads.task import TaskQueued
from passerelle.core.ports.queues import QueueStore
from passerelle.core.principal import OWNER, AccessScope, Principal
from passerelle.core.session.agent_requests import (
    AgentChanged,
    DrainAgent,
    PauseAgent,
    ResumeAgent,
)
from passerelle.core.task.requests import (
    CreateTask,
    PauseTask,
    ResumeTask,
    StartTask,
    TaskChanged,
    UpdateTask,
)
from passerelle.core.task.status import Status
from passerelle.core.wire.json import JsonObject
from tests.integration.delegation.test_attempts import fail
from tests.integration.delegation.test_endings import state_of
from tests.support.harness import ADA, BOB, Harness
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio


async def pause(harness: Harness, name: str = "echo", reason: str | None = None) -> AgentChanged:
    return cast(
        "AgentChanged", await harness.service.execute(OWNER, PauseAgent(name, reason), None)
    )


async def resume(harness: Harness, name: str = "echo") -> AgentChanged:
    return cast("AgentChanged", await harness.service.execute(OWNER, ResumeAgent(name), None))


@pytest.mark.requirement("ST-3", "TEV-3")
@pytest.mark.parametrize("wait", ["unary", "stream", "none"])
async def test_message_for_a_paused_agent_is_kept_and_says_why(
    harness: Harness, wait: WaitMode
) -> None:
    assert (await pause(harness, reason="it is being moved")).state == "paused"
    accepted = await harness.send("hello", wait=wait)
    told = cast("JsonObject", (await harness.await_answer(accepted))["task"])
    assert state_of(told) == "SUBMITTED"
    assert cast("JsonObject", told["metadata"])["urn:passerelle:status"] == {
        "reason": "agent_paused",
        "peer": "echo",
    }
    said = (
        "agent 'echo' is paused (it is being moved); the message is sent when it is resumed; "
        "it is the next one, and can be cancelled"
    )
    assert said in str(told["status"])
    record = await harness.record(accepted)
    assert (record.status, record.attempts, record.status_reason) == (Status.QUEUED, (), said)
    assert f"queued:{accepted.task_id}" in await harness.due(accepted.task_id)
    assert not harness.peer.messages
    explained = await harness.service.read(ADA, GetTaskModel(accepted.task_id, "explain"))
    [waits] = cast("list[JsonObject]", explained["waiting"])
    assert waits["text"] == f"agent:echo: {said}"
    assert (await resume(harness)).state == "active"
    await harness.until(accepted, Status.COMPLETED)
    assert harness.peer.texts == ["hello"]
    assert f"queued:{accepted.task_id}" not in await harness.due(accepted.task_id)
    queued = [
        one.fact.payload
        for one in await harness.events(accepted)
        if isinstance(one.fact.payload, TaskQueued) and one.fact.payload.cause is not None
    ]
    assert [(one.queue, one.position) for one in queued] == [("agent:echo", 1)]


async def test_what_waits_goes_on_in_its_order_through_a_restart(harness: Harness) -> None:
    await pause(harness)
    texts = [f"number {number}" for number in range(6)]
    sent = [await harness.send(text) for text in texts]
    await harness.restart()
    await harness.parts.pausing.refresh()
    sent.append(await harness.send("number 6"))
    assert (await pause(harness)).waiting == 7
    assert not harness.peer.messages
    await resume(harness)
    for accepted in sent:
        await harness.until(accepted, Status.COMPLETED)
    assert harness.peer.texts == [*texts, "number 6"]


async def test_each_instance_goes_by_what_one_was_told(harness: Harness) -> None:
    await pause(harness, reason="later")
    await harness.start()
    assert harness.parts.queues.admission.pauses.find("echo") is None
    await harness.parts.pausing.refresh()
    found = harness.parts.queues.admission.pauses.find("echo")
    assert found is not None
    assert (found.state, found.by, found.reason) == ("paused", OWNER.id, "later")
    # Who pauses it once more and gives no reason has nothing to say against the one that stands.
    again = await pause(harness)
    assert (again.reason, again.at) == ("later", found.at)
    assert harness.parts.queues.admission.pauses.find("echo/acme") == found, (
        "its tenants are paused with it"
    )


async def test_what_waits_can_be_cancelled_and_is_never_sent(harness: Harness) -> None:
    await pause(harness)
    first, second = await harness.send("first"), await harness.send("second")
    await harness.service.execute(ADA, CancelTask(first.facade, "echo"), None)
    assert state_of(await harness.read(first)) == "CANCELED"
    await resume(harness)
    await harness.until(second, Status.COMPLETED)
    assert harness.peer.texts == ["second"]


async def test_who_is_cancelled_in_line_leaves_it_though_nobody_is_served(harness: Harness) -> None:
    await pause(harness)
    first, second = await harness.send("first"), await harness.send("second")
    await harness.service.execute(ADA, CancelTask(first.facade, "echo"), None)
    owed_ms = float((await harness.due(first.task_id))[f"queued:{first.task_id}"])
    assert owed_ms <= harness.clock.now_ms(), "it is looked at now"
    await harness.run_due("queued", first.task_id, after_ms=0)
    assert await harness.store.queues.count(["echo"]) == [1]
    await resume(harness)
    await harness.until(second, Status.COMPLETED)


async def read_rest_s(harness: Harness, task_id: str) -> float:
    """In how many seconds a task in line is looked at; the store counts by its own time, whatever it is for us."""
    due_ms = float((await harness.due(task_id))[f"queued:{task_id}"])
    return (due_ms - harness.clock.now_ms() + harness.clock.ahead_ms) / 1000


async def test_who_has_come_into_the_line_of_a_paused_agent_is_left_alone(harness: Harness) -> None:
    await pause(harness)
    waits = await harness.send("hello")

    async def is_put_off() -> bool:
        return await read_rest_s(harness, waits.task_id) > 100

    await wait_until(is_put_off, 10, "its row comes later")
    created = await harness.service.execute(ADA, CreateTask("echo", "dig"), None)
    task_id = str(cast("TaskChanged", created).task["taskId"])
    await harness.service.execute(ADA, StartTask(task_id, "http"), None)
    await harness.service.execute(ADA, UpdateTask(task_id, priority=9), None)
    record = await harness.parts.dispatch.read_task(task_id)
    assert record is not None
    await harness.parts.queues.enter(record)
    await asyncio.gather(*harness.parts.dispatch._side)  # pyright: ignore[reportPrivateUsage]
    assert await read_rest_s(harness, task_id) < 1, "whatever comes of it, its new place is seen to"
    await harness.run_due("queued", task_id, after_ms=0)
    await resume(harness)
    await wait_until(lambda: len(harness.peer.texts) == 2, 10, "both were sent")
    assert harness.peer.texts == ["dig", "hello"]


async def test_who_is_lost_on_the_way_from_its_line_is_looked_at_soon_after_a_pause(
    harness: Harness,
) -> None:
    await pause(harness)
    sent = [await harness.send(f"number {number}") for number in range(4)]
    for accepted in sent:

        async def is_put_off(task_id: str = accepted.task_id) -> bool:
            return await read_rest_s(harness, task_id) > 100

        await wait_until(is_put_off, 10, "its row comes later")
    queues, take = harness.parts.queues, harness.store.queues.take

    class Dying:
        """Whoever takes the first one is gone before it begins."""

        lost: str | None = None

        def __getattr__(self, name: str) -> object:
            return getattr(harness.store.queues, name)

        async def take(self, agent: str, unused: str = "") -> str | None:
            if self.lost is None:
                self.lost = await take(agent, unused)
            return await take(agent, unused)

    dying = Dying()
    queues.store = cast("QueueStore", dying)
    await resume(harness)
    lost, *others = sent
    for accepted in others:
        await harness.until(accepted, Status.COMPLETED)
    assert dying.lost == lost.task_id
    assert await read_rest_s(harness, lost.task_id) < 6
    await harness.run_due("queued", lost.task_id, after_ms=6_000)
    await harness.until(lost, Status.COMPLETED)


async def test_row_of_who_could_not_be_put_in_line_comes_soon(harness: Harness) -> None:
    await pause(harness)
    queues = harness.parts.queues
    store = queues.store

    class Away:
        """Takes nobody."""

        def __getattr__(self, name: str) -> object:
            return getattr(store, name)

        async def add(self, _agent: str, _task: object) -> object:
            raise StoreUnavailable("the test took it away", "no")

    queues.store = cast("QueueStore", Away())
    waits = await harness.send("hello")
    queues.store = store
    assert await read_rest_s(harness, waits.task_id) < 6
    await harness.run_due("queued", waits.task_id, after_ms=5_000)
    await resume(harness)
    await harness.until(waits, Status.COMPLETED)


async def test_who_waits_for_a_paused_agent_is_looked_at_ever_more_seldom(harness: Harness) -> None:
    await pause(harness)
    waits = await harness.send("hello")
    rests_s = list[float]()
    for after_s in (5, 20, 100, 500):
        await harness.run_due("queued", waits.task_id, after_ms=after_s * 1000)
        rests_s.append(await read_rest_s(harness, waits.task_id))
    assert rests_s == [pytest.approx(rest_s, abs=4) for rest_s in (120, 120, 500, 600)]
    await resume(harness)
    await harness.until(waits, Status.COMPLETED)
    assert f"queued:{waits.task_id}" not in await harness.due(waits.task_id)


async def test_what_works_already_goes_on_and_takes_further_messages(harness: Harness) -> None:
    accepted, _ = await harness.talk("ask")
    await pause(harness)
    more = await harness.send("yes", task=accepted.facade, context_id=accepted.context_id)
    await harness.until(more, Status.COMPLETED)


async def test_further_attempt_waits_too(harness: Harness) -> None:
    harness.policy = RetryPolicy(attempts=2)
    harness.peer.next(fail)
    accepted = await harness.send("go", wait="stream")
    await harness.until(accepted, Status.RETRYING)
    await pause(harness)
    await harness.run_due("retry", accepted.task_id, after_ms=60_000)
    record = await harness.until(accepted, Status.QUEUED)
    assert (len(record.attempts), record.peer) == (1, "echo")
    assert not [name for name in await harness.due(accepted.task_id) if name.startswith("retry")]
    await resume(harness)
    record = await harness.until(accepted, Status.COMPLETED)
    assert len(record.attempts) == 2


async def test_task_that_is_started_waits_and_may_be_paused_itself(harness: Harness) -> None:
    await pause(harness)
    created = await harness.service.execute(ADA, CreateTask("echo", "dig a hole"), None)
    task_id = str(cast("TaskChanged", created).task["taskId"])
    await harness.service.execute(ADA, StartTask(task_id, "http"), None)
    record = await harness.parts.dispatch.read_task(task_id)
    assert record is not None
    assert record.status is Status.QUEUED
    await harness.service.execute(ADA, PauseTask(task_id), None)
    await resume(harness)

    async def is_empty() -> bool:
        return await harness.store.queues.count(["echo"]) == [0]

    await wait_until(is_empty, 10, "its turn has come, and gone")
    assert not harness.peer.messages
    await harness.service.execute(ADA, ResumeTask(task_id), None)
    await harness.run_due("queued", task_id, after_ms=0)

    async def is_done() -> bool:
        seen = await harness.parts.dispatch.read_task(task_id)
        return seen is not None and seen.status is Status.COMPLETED

    await wait_until(is_done, 10, "it goes on")
    assert harness.peer.texts == ["dig a hole"]


async def test_stream_of_a_message_begins_with_what_it_waits_for(harness: Harness) -> None:
    await pause(harness)
    accepted = await harness.send("chunks 2", wait="stream")
    watching = asyncio.create_task(harness.watch(accepted))
    await asyncio.sleep(0)
    await resume(harness)
    first, *rest = await watching
    task = cast("JsonObject", first["task"])
    assert state_of(task) == "SUBMITTED"
    assert "is paused" in str(task["status"])
    assert len(rest) >= 3, "then come the pieces, and the end"
    assert state_of(await harness.read(accepted)) == "COMPLETED"


async def test_instance_that_stops_leaves_the_line_as_it_was(harness: Harness) -> None:
    await pause(harness)
    sent = [await harness.send(text) for text in ("one", "two", "three")]
    reached, never = asyncio.Event(), asyncio.Event()

    async def hold(batch: Batch) -> None:
        if batch.runs:
            reached.set()
            await never.wait()

    harness.log.before_append = hold
    await resume(harness)
    await asyncio.wait_for(reached.wait(), 10)
    assert await harness.store.queues.count(["echo"]) == [2]
    await harness.restart()
    harness.log.before_append = None
    assert await harness.store.queues.count(["echo"]) == [3]
    await harness.parts.queues.look(["echo"])
    for accepted in sent:
        await harness.until(accepted, Status.COMPLETED)
    assert harness.peer.texts == ["one", "two", "three"]


async def test_agent_that_is_configured_no_more_ends_what_waits(harness: Harness) -> None:
    await pause(harness)
    waits = await harness.send("hello")
    harness.registry.replace([])
    harness.parts.queues.admission.pauses.take({})
    await harness.run_due("queued", waits.task_id, after_ms=0)
    record = await harness.until(waits, Status.FAILED)
    assert record.last_error is not None
    assert record.last_error.code == "peer_gone"
    assert f"queued:{waits.task_id}" not in await harness.due(waits.task_id)


@pytest.mark.requirement("TR-8")
async def test_task_of_a_higher_priority_goes_first(harness: Harness) -> None:
    await pause(harness)
    names: list[str] = []
    for text, priority in (("low", -5), ("plain", 0), ("high", 5), ("promoted", -9)):
        wanted = CreateTask("echo", text, priority=priority)
        created = await harness.service.execute(ADA, wanted, None)
        names.append(str(cast("TaskChanged", created).task["taskId"]))
        await harness.service.execute(ADA, StartTask(names[-1], "http"), None)
    await harness.service.execute(ADA, UpdateTask(names[-1], priority=9), None)
    await harness.run_due("queued", names[-1], after_ms=0)
    await resume(harness)
    await wait_until(lambda: len(harness.peer.texts) == 4, 10, "all were sent")
    assert harness.peer.texts == ["promoted", "high", "plain", "low"]


async def test_line_that_is_lost_is_made_again_by_what_is_owed(harness: Harness) -> None:
    await pause(harness)
    sent = [await harness.send(text) for text in ("one", "two", "three")]
    while await harness.store.queues.take("echo") is not None:
        pass
    for accepted in reversed(sent):
        await harness.run_due("queued", accepted.task_id, after_ms=0)
    await resume(harness)
    for accepted in sent:
        await harness.until(accepted, Status.COMPLETED)
    assert harness.peer.texts == ["one", "two", "three"]


async def test_store_that_is_away_keeps_nothing_from_being_owed(harness: Harness) -> None:
    """Stored as queued, and not in line: the row of the task finds it."""
    await pause(harness)
    accepted = await harness.send("hello")
    await harness.store.queues.drop("echo", accepted.task_id)
    await resume(harness)
    await harness.run_due("queued", accepted.task_id, after_ms=0)
    await harness.until(accepted, Status.COMPLETED)


async def test_agent_that_drains_refuses_what_is_new_and_holds_what_waits(harness: Harness) -> None:
    await pause(harness)
    waits = await harness.send("waits")
    changed = await harness.service.execute(OWNER, DrainAgent("echo", "it goes"), None)
    assert cast("AgentChanged", changed).state == "draining"
    with pytest.raises(PeerUnavailable, match="takes no new work") as refused:
        await harness.send("new")
    assert refused.value.retry_after_s
    assert (await harness.record(waits)).status is Status.QUEUED
    await resume(harness)
    await harness.until(waits, Status.COMPLETED)
    assert harness.peer.texts == ["waits"]


async def test_who_may_not_pause_an_agent(harness: Harness) -> None:
    with pytest.raises(NotFound):
        await harness.service.execute(OWNER, PauseAgent("nobody"), None)
    stranger = Principal("eve", tenant="elsewhere", kind="person", scopes=frozenset(AccessScope))
    with pytest.raises(Forbidden):
        await harness.service.execute(stranger, PauseAgent("echo"), None)
    assert harness.parts.queues.admission.pauses.find("echo") is None


async def test_change_is_one_fact_however_often_it_is_asked_for(harness: Harness) -> None:
    for _ in range(3):
        await pause(harness, reason="lunch")
    first = await harness.service.execute(OWNER, ResumeAgent("echo"), "key")
    await pause(harness)
    again = await harness.service.execute(OWNER, ResumeAgent("echo"), "key")
    assert not cast("AgentChanged", first).repeated
    assert cast("AgentChanged", again).repeated
    assert cast("AgentChanged", again).state == "paused"
    home = await harness.entries(OWNER.home_session)
    assert [entry.type for entry in home].count(LimitChanged.type) == 3


async def test_routing_leaves_a_paused_agent_out_and_says_so(street: Harness) -> None:
    await pause(street, "echo")
    accepted = await street.send("hello", agent="passerelle")
    await street.until(accepted, Status.COMPLETED)
    said = [one.fact.payload for one in await street.events(accepted)]
    [chosen] = [one for one in said if isinstance(one, RoutingDecided)]
    [single] = [one for one in said if isinstance(one, SingleCandidate)]
    assert chosen.peer == "other"
    assert [(one.peer, one.why, one.ref) for one in single.excluded] == [
        ("echo", "paused", "paused")
    ]
    explained = await street.service.read(ADA, GetTaskModel(accepted.task_id, "explain"))
    assert "'echo' is paused" in str(explained["agent"])
    assert not [one for one in said if isinstance(one, FallbackApplied)]


async def test_callers_of_an_agent_that_is_resumed_take_turns(harness: Harness) -> None:
    """Who has much waiting does not keep another one from its turn."""
    await pause(harness)
    sent = [await harness.send(f"ada {number}") for number in range(6)]
    sent += [await harness.send(f"bob {number}", who=BOB) for number in range(2)]
    await resume(harness)
    for accepted in sent:
        await harness.until(accepted, Status.COMPLETED)
    assert harness.peer.texts[:4] == ["ada 0", "bob 0", "ada 1", "bob 1"]


async def test_agent_that_is_not_paused_costs_no_call_more(harness: Harness) -> None:
    """Whoever sends looks at memory alone."""
    calls: list[str] = []
    store = harness.parts.queues.store

    class Counted:
        def __getattr__(self, name: str) -> Callable[..., Awaitable[object]]:
            calls.append(name)
            return cast("Callable[..., Awaitable[object]]", getattr(store, name))

    harness.parts.queues.store = cast("QueueStore", Counted())
    accepted: TurnAccepted
    for _ in range(3):
        accepted, _ = await harness.talk("hello")
        await harness.until(accepted, Status.COMPLETED)
    assert calls == []
    await pause(harness)
    harness.parts.queues.store = store
    await asyncio.sleep(0)
