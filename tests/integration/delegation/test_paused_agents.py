"""Agents that are paused, drained and resumed: messages for them wait, state the reason, and continue in order."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import cast

import pytest

from passerelle.core.batch import Batch
from passerelle.core.commands import CancelTask, GetTaskModel, TurnAccepted, WaitMode
from passerelle.core.errors import Forbidden, NotFound, PeerUnavailable, StoreUnavailable
from passerelle.core.facts import RetryPolicy
from passerelle.core.oversight_requests import (
    AgentChanged,
    DrainAgent,
    PauseAgent,
    ResumeAgent,
)
from passerelle.core.payloads.limit import LimitChanged
from passerelle.core.payloads.routing import FallbackApplied, RoutingDecided, SingleCandidate
from passerelle.core.payloads.task import TaskQueued
from passerelle.core.ports.queues import QueueStore
from passerelle.core.principal import OWNER, AccessScope, Principal
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
async def test_message_for_a_paused_agent_waits_with_a_reason(
    harness: Harness, wait: WaitMode
) -> None:
    assert (await pause(harness, reason="it is being moved")).state == "paused"
    accepted = await harness.send("hello", wait=wait)
    task = cast("JsonObject", (await harness.await_answer(accepted))["task"])
    assert state_of(task) == "SUBMITTED"
    assert cast("JsonObject", task["metadata"])["urn:passerelle:status"] == {
        "reason": "agent_paused",
        "peer": "echo",
    }
    reason = (
        "agent 'echo' is paused (it is being moved); the message is sent when it is resumed; "
        "it is the next one, and can be cancelled"
    )
    assert reason in str(task["status"])
    record = await harness.record(accepted)
    assert (record.status, record.attempts, record.status_reason) == (Status.QUEUED, (), reason)
    assert f"queued:{accepted.task_id}" in await harness.due(accepted.task_id)
    assert not harness.peer.messages
    explained = await harness.service.read(ADA, GetTaskModel(accepted.task_id, "explain"))
    [waits] = cast("list[JsonObject]", explained["waiting"])
    assert waits["text"] == f"agent:echo: {reason}"
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


async def test_waiting_messages_keep_their_order_across_a_restart(harness: Harness) -> None:
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


async def test_every_instance_applies_a_pause(harness: Harness) -> None:
    await pause(harness, reason="later")
    await harness.start()
    assert harness.parts.queues.admission.pauses.find("echo") is None
    await harness.parts.pausing.refresh()
    found = harness.parts.queues.admission.pauses.find("echo")
    assert found is not None
    assert (found.state, found.by, found.reason) == ("paused", OWNER.id, "later")
    # Pausing again without a reason keeps the recorded reason and time.
    again = await pause(harness)
    assert (again.reason, again.at) == ("later", found.at)
    assert harness.parts.queues.admission.pauses.find("echo/acme") == found, (
        "its tenants are paused with it"
    )


async def test_waiting_message_can_be_cancelled_and_is_never_sent(harness: Harness) -> None:
    await pause(harness)
    first, second = await harness.send("first"), await harness.send("second")
    await harness.service.execute(ADA, CancelTask(first.facade, "echo"), None)
    assert state_of(await harness.read(first)) == "CANCELED"
    await resume(harness)
    await harness.until(second, Status.COMPLETED)
    assert harness.peer.texts == ["second"]


async def test_cancelled_task_leaves_the_queue_during_the_pause(harness: Harness) -> None:
    await pause(harness)
    first, second = await harness.send("first"), await harness.send("second")
    await harness.service.execute(ADA, CancelTask(first.facade, "echo"), None)
    due_ms = float((await harness.due(first.task_id))[f"queued:{first.task_id}"])
    assert due_ms <= harness.clock.now_ms(), "its row is due now"
    await harness.run_due("queued", first.task_id, after_ms=0)
    assert await harness.store.queues.count(["echo"]) == [1]
    await resume(harness)
    await harness.until(second, Status.COMPLETED)


async def read_delay_s(harness: Harness, task_id: str) -> float:
    """Seconds until the due row of a queued task, by the store's clock: the clock of the harness may be ahead."""
    due_ms = float((await harness.due(task_id))[f"queued:{task_id}"])
    return (due_ms - harness.clock.now_ms() + harness.clock.ahead_ms) / 1000


async def test_row_of_a_task_queued_for_a_paused_agent_is_postponed(harness: Harness) -> None:
    await pause(harness)
    waits = await harness.send("hello")

    async def is_postponed() -> bool:
        return await read_delay_s(harness, waits.task_id) > 100

    await wait_until(is_postponed, 10, "its row is postponed")
    created = await harness.service.execute(ADA, CreateTask("echo", "dig"), None)
    task_id = str(cast("TaskChanged", created).task["taskId"])
    await harness.service.execute(ADA, StartTask(task_id, "http"), None)
    await harness.service.execute(ADA, UpdateTask(task_id, priority=9), None)
    record = await harness.parts.dispatch.read_task(task_id)
    assert record is not None
    await harness.parts.queues.enter(record)
    await asyncio.gather(*harness.parts.dispatch._side)  # pyright: ignore[reportPrivateUsage]
    assert await read_delay_s(harness, task_id) < 1, "its row is due at once after the change"
    await harness.run_due("queued", task_id, after_ms=0)
    await resume(harness)
    await wait_until(lambda: len(harness.peer.texts) == 2, 10, "both were sent")
    assert harness.peer.texts == ["dig", "hello"]


async def test_task_lost_between_queue_and_start_is_found_soon_after_a_pause(
    harness: Harness,
) -> None:
    await pause(harness)
    sent = [await harness.send(f"number {number}") for number in range(4)]
    for accepted in sent:

        async def is_postponed(task_id: str = accepted.task_id) -> bool:
            return await read_delay_s(harness, task_id) > 100

        await wait_until(is_postponed, 10, "its row is postponed")
    queues, take = harness.parts.queues, harness.store.queues.take

    class LosingQueues:
        """A queue store whose first taken entry is lost, as when its taker dies before it begins."""

        lost: str | None = None

        def __getattr__(self, name: str) -> object:
            return getattr(harness.store.queues, name)

        async def take(self, agent: str, unused: str = "") -> str | None:
            if self.lost is None:
                self.lost = await take(agent, unused)
            return await take(agent, unused)

    losing = LosingQueues()
    queues.store = cast("QueueStore", losing)
    await resume(harness)
    lost, *others = sent
    for accepted in others:
        await harness.until(accepted, Status.COMPLETED)
    assert losing.lost == lost.task_id
    assert await read_delay_s(harness, lost.task_id) < 6
    await harness.run_due("queued", lost.task_id, after_ms=6_000)
    await harness.until(lost, Status.COMPLETED)


async def test_row_of_a_task_that_could_not_be_queued_is_due_soon(harness: Harness) -> None:
    await pause(harness)
    queues = harness.parts.queues
    store = queues.store

    class FailingQueues:
        """A queue store that refuses to add entries."""

        def __getattr__(self, name: str) -> object:
            return getattr(store, name)

        async def add(self, _agent: str, _task: object) -> object:
            raise StoreUnavailable("the test took it away", "no")

    queues.store = cast("QueueStore", FailingQueues())
    waits = await harness.send("hello")
    queues.store = store
    assert await read_delay_s(harness, waits.task_id) < 6
    await harness.run_due("queued", waits.task_id, after_ms=5_000)
    await resume(harness)
    await harness.until(waits, Status.COMPLETED)


async def test_row_of_a_task_for_a_paused_agent_backs_off(harness: Harness) -> None:
    await pause(harness)
    waits = await harness.send("hello")
    delays_s = list[float]()
    for after_s in (5, 20, 100, 500):
        await harness.run_due("queued", waits.task_id, after_ms=after_s * 1000)
        delays_s.append(await read_delay_s(harness, waits.task_id))
    assert delays_s == [pytest.approx(delay_s, abs=4) for delay_s in (120, 120, 500, 600)]
    await resume(harness)
    await harness.until(waits, Status.COMPLETED)
    assert f"queued:{waits.task_id}" not in await harness.due(waits.task_id)


async def test_running_task_of_a_paused_agent_accepts_further_messages(harness: Harness) -> None:
    accepted, _ = await harness.talk("ask")
    await pause(harness)
    more = await harness.send("yes", task=accepted.facade, context_id=accepted.context_id)
    await harness.until(more, Status.COMPLETED)


async def test_further_attempt_waits_while_the_agent_is_paused(harness: Harness) -> None:
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


async def test_started_task_waits_and_can_be_paused_itself(harness: Harness) -> None:
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

    await wait_until(is_empty, 10, "it has left the queue")
    assert not harness.peer.messages
    await harness.service.execute(ADA, ResumeTask(task_id), None)
    await harness.run_due("queued", task_id, after_ms=0)

    async def is_done() -> bool:
        seen = await harness.parts.dispatch.read_task(task_id)
        return seen is not None and seen.status is Status.COMPLETED

    await wait_until(is_done, 10, "it has completed")
    assert harness.peer.texts == ["dig a hole"]


async def test_stream_of_a_waiting_message_begins_with_the_reason(harness: Harness) -> None:
    await pause(harness)
    accepted = await harness.send("chunks 2", wait="stream")
    watching = asyncio.create_task(harness.watch(accepted))
    await asyncio.sleep(0)
    await resume(harness)
    first, *rest = await watching
    task = cast("JsonObject", first["task"])
    assert state_of(task) == "SUBMITTED"
    assert "is paused" in str(task["status"])
    assert len(rest) >= 3, "the chunks and the end follow"
    assert state_of(await harness.read(accepted)) == "COMPLETED"


async def test_instance_that_stops_puts_its_entry_back_into_the_queue(harness: Harness) -> None:
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


async def test_removed_agent_fails_its_waiting_tasks(harness: Harness) -> None:
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
async def test_task_of_a_higher_priority_is_sent_first(harness: Harness) -> None:
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


async def test_lost_queue_is_rebuilt_from_due_rows(harness: Harness) -> None:
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


async def test_task_missing_in_the_queue_is_found_by_its_due_row(harness: Harness) -> None:
    """Stored as queued, but missing in the queue: the due row of the task finds it."""
    await pause(harness)
    accepted = await harness.send("hello")
    await harness.store.queues.drop("echo", accepted.task_id)
    await resume(harness)
    await harness.run_due("queued", accepted.task_id, after_ms=0)
    await harness.until(accepted, Status.COMPLETED)


async def test_draining_agent_refuses_new_messages_and_keeps_waiting_ones(harness: Harness) -> None:
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


async def test_pause_of_an_unknown_agent_and_by_a_stranger_are_refused(harness: Harness) -> None:
    with pytest.raises(NotFound):
        await harness.service.execute(OWNER, PauseAgent("nobody"), None)
    stranger = Principal("eve", tenant="elsewhere", kind="person", scopes=frozenset(AccessScope))
    with pytest.raises(Forbidden):
        await harness.service.execute(stranger, PauseAgent("echo"), None)
    assert harness.parts.queues.admission.pauses.find("echo") is None


async def test_repeated_pause_is_one_fact(harness: Harness) -> None:
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


async def test_routing_excludes_a_paused_agent_with_a_reason(street: Harness) -> None:
    await pause(street, "echo")
    accepted = await street.send("hello", agent="passerelle")
    await street.until(accepted, Status.COMPLETED)
    payloads = [one.fact.payload for one in await street.events(accepted)]
    [chosen] = [one for one in payloads if isinstance(one, RoutingDecided)]
    [single] = [one for one in payloads if isinstance(one, SingleCandidate)]
    assert chosen.peer == "other"
    assert [(one.peer, one.why, one.ref) for one in single.excluded] == [
        ("echo", "paused", "paused")
    ]
    explained = await street.service.read(ADA, GetTaskModel(accepted.task_id, "explain"))
    assert "'echo' is paused" in str(explained["agent"])
    assert not [one for one in payloads if isinstance(one, FallbackApplied)]


async def test_callers_of_a_resumed_agent_take_turns(harness: Harness) -> None:
    """A caller with many waiting messages does not delay another caller's."""
    await pause(harness)
    sent = [await harness.send(f"ada {number}") for number in range(6)]
    sent += [await harness.send(f"bob {number}", who=BOB) for number in range(2)]
    await resume(harness)
    for accepted in sent:
        await harness.until(accepted, Status.COMPLETED)
    assert harness.peer.texts[:4] == ["ada 0", "bob 0", "ada 1", "bob 1"]


async def test_agent_that_is_not_paused_costs_no_queue_call(harness: Harness) -> None:
    """Sending checks memory only."""
    calls: list[str] = []
    store = harness.parts.queues.store

    class CountingQueues:
        def __getattr__(self, name: str) -> Callable[..., Awaitable[object]]:
            calls.append(name)
            return cast("Callable[..., Awaitable[object]]", getattr(store, name))

    harness.parts.queues.store = cast("QueueStore", CountingQueues())
    accepted: TurnAccepted
    for _ in range(3):
        accepted, _ = await harness.talk("hello")
        await harness.until(accepted, Status.COMPLETED)
    assert calls == []
    await pause(harness)
    harness.parts.queues.store = store
    await asyncio.sleep(0)
