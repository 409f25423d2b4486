"""A send of unknown outcome: the agent's tasks decide, and nothing is resent on a guess."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Literal, cast

import pytest

from passerelle.a2a_mapping.extensions import CORRELATION
from passerelle.core.batch import Incarnation
from passerelle.core.commands import TurnAccepted, WaitMode
from passerelle.core.events import Fact
from passerelle.core.ids import Shard
from passerelle.core.payloads.run import RunStatus
from passerelle.core.task.machine import scope_of
from passerelle.core.task.record import TaskRecord
from passerelle.core.task.status import Status
from passerelle.core.wire.json import JsonObject
from passerelle.core.wire.record import change
from passerelle.delegation.runs.peer_profile import PeerBehaviour
from passerelle.delegation.runs.run import Run
from passerelle.runtime.records.writes import AppendOptions, Written
from tests.integration.delegation.test_endings import state_of
from tests.support.harness import Harness, task_of
from tests.support.scripted_peer import ScriptedResponse
from tests.support.scripted_tasks import Turn
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("AP-3")]


def may_send_nothing(_run: Run) -> bool:
    return False


async def drop_connection(turn: Turn) -> None:
    """The message is lost: the connection breaks, and no task is created."""
    await turn.drop()


async def until_known(harness: Harness, accepted: TurnAccepted, habit: str) -> None:
    """Waits until a behaviour of the agent is stored."""
    worker = (await harness.record(accepted)).attempts[-1].worker

    async def is_known() -> bool:
        return habit in await harness.store.habits.read(worker.peer, worker.card_hash or "")

    await wait_until(is_known, 15, f"the peer is known: {habit}")


async def until_listed_twice(harness: Harness) -> None:
    """Waits until the agent was asked twice for its tasks, so the first response has been evaluated."""
    asked = harness.peer.count("ListTasks")
    await wait_until(
        lambda: harness.peer.count("ListTasks") > asked + 1, 15, "the agent lists its tasks"
    )


async def test_lost_message_is_resent_to_an_agent_that_keeps_contexts(
    harness: Harness,
) -> None:
    known, _ = await harness.talk("hello")
    await until_known(harness, known, "keeps_context")
    harness.peer.next(drop_connection)
    accepted = await harness.send("go")
    harness.clock.ahead_ms += 1_000
    await harness.until(accepted, Status.COMPLETED)
    assert harness.peer.texts == ["hello", "go", "go"]
    first, second = harness.peer.messages[1:]
    assert first == second
    requests = [
        event for event in await harness.events(accepted) if event.type == "model.requested"
    ]
    own = [event for event in requests if event.fact.scope.task_id == accepted.task_id]
    assert len(own) == 2, "each send is a recorded intent"
    assert len((await harness.record(accepted)).attempts) == 1


def wait_for_arrival(harness: Harness, doubt_s: float) -> None:
    """Sets the time in seconds for which a message may be in flight, from now on."""
    harness.doubt_s = doubt_s


async def test_delivery_grace_of_an_agent_delays_the_resend(harness: Harness) -> None:
    known, _ = await harness.talk("hello")
    await until_known(harness, known, "keeps_context")
    wait_for_arrival(harness, 90.0)
    harness.peer.next(drop_connection)
    accepted = await harness.send("go")
    harness.clock.ahead_ms += 80_000
    await until_listed_twice(harness)
    assert harness.peer.texts == ["hello", "go"]
    harness.clock.ahead_ms += 15_000
    await harness.until(accepted, Status.COMPLETED)
    assert harness.peer.texts == ["hello", "go", "go"]


async def test_last_check_happens_as_soon_as_it_can_decide(harness: Harness) -> None:
    known, _ = await harness.talk("hello")
    await until_known(harness, known, "keeps_context")
    harness.timeouts = replace(harness.timeouts, poll_s=60.0, poll_max_s=60.0)
    await harness.restart()
    harness.peer.next(drop_connection)
    accepted = await harness.send("go")
    await harness.until(accepted, Status.COMPLETED)
    assert harness.peer.texts == ["hello", "go", "go"]


async def test_resent_message_gets_the_whole_delivery_grace_again(harness: Harness) -> None:
    known, _ = await harness.talk("hello")
    await until_known(harness, known, "keeps_context")
    wait_for_arrival(harness, 60.0)
    harness.peer.next(drop_connection, drop_connection)
    accepted = await harness.send("go")
    harness.clock.ahead_ms += 61_000
    await wait_until(lambda: harness.peer.texts.count("go") == 2, 15, "it is sent again")
    await until_listed_twice(harness)
    await harness.restart()
    wait_for_arrival(harness, 60.0)
    await harness.adopt(accepted)
    await until_listed_twice(harness)
    assert harness.peer.texts.count("go") == 2
    harness.clock.ahead_ms += 61_000
    await harness.until(accepted, Status.COMPLETED)
    assert harness.peer.texts.count("go") == 3
    assert len((await harness.record(accepted)).attempts) == 1


async def take_over(harness: Harness, accepted: TurnAccepted) -> None:
    """The instance that drove the run dies, and another takes the run over."""
    task = task_of(accepted)
    await harness.restart()
    wait_for_arrival(harness, 60.0)
    held = await harness.parts.writes.load([task])
    decision = harness.parts.writes.begin(accepted.session_id, held)
    record = decision.state(task)
    assert isinstance(record, TaskRecord)
    decision.add([Fact(scope_of(record), RunStatus(taken_over=True))])
    written = await harness.parts.writes.commit(decision, held, AppendOptions())
    assert isinstance(written, Written), written
    await harness.adopt(accepted)


async def test_delivery_grace_of_a_dead_instance_starts_at_its_takeover(
    harness: Harness,
) -> None:
    known, _ = await harness.talk("hello")
    await until_known(harness, known, "keeps_context")
    wait_for_arrival(harness, 60.0)
    harness.peer.next(drop_connection)
    accepted = await harness.send("go")
    await wait_until(lambda: "go" in harness.peer.texts, 15, "it was sent")
    harness.clock.ahead_ms += 50_000
    await take_over(harness, accepted)
    harness.clock.ahead_ms += 30_000
    await until_listed_twice(harness)
    # The next driver sends nothing, so a further takeover does not prolong the wait.
    await take_over(harness, accepted)
    await until_listed_twice(harness)
    assert harness.peer.texts == ["hello", "go"]
    harness.clock.ahead_ms += 31_000
    await harness.until(accepted, Status.COMPLETED)
    assert harness.peer.texts == ["hello", "go", "go"]


async def test_late_message_of_a_dead_instance_is_found(harness: Harness) -> None:
    messaged, _ = await harness.talk("message hello")
    await until_known(harness, messaged, "answers_with_messages")
    wait_for_arrival(harness, 60.0)
    arrived: list[Turn] = []

    async def arrive_late(turn: Turn) -> None:
        arrived.append(turn)
        await turn.drop()

    harness.peer.next(arrive_late)
    accepted = await harness.send("go")
    await wait_until(lambda: arrived, 15, "it was sent")
    harness.clock.ahead_ms += 59_000
    await take_over(harness, accepted)
    harness.clock.ahead_ms += 59_000
    await until_listed_twice(harness)
    arrived[0].make_task(arrived[0]).status("COMPLETED", "late, and done")
    await harness.until(accepted, Status.COMPLETED)
    assert harness.peer.texts.count("go") == 1


async def test_behaviour_of_an_agent_is_stored(harness: Harness) -> None:
    known, _ = await harness.talk("hello")
    await until_known(harness, known, "keeps_context")
    worker = (await harness.record(known)).attempts[-1].worker
    assert await PeerBehaviour(harness.store.habits).proves_absence(worker)
    assert not await PeerBehaviour(harness.store.habits).proves_absence(
        replace(worker, card_hash="other")
    )


async def expect_unknown(harness: Harness, accepted: TurnAccepted) -> str:
    """Checks that the caller gets a Task that failed for this reason; returns its status text."""
    task = cast("JsonObject", (await harness.await_answer(accepted))["task"])
    assert state_of(task) == "FAILED"
    assert cast("JsonObject", task["metadata"])["urn:passerelle:status"] == {
        "reason": "unknown_outcome",
        "peer": "echo",
    }
    assert task["id"] == accepted.facade
    assert await harness.read(accepted) == task
    text = str(task["status"])
    assert "it is unknown whether agent 'echo' received the message" in text
    return text


async def test_empty_list_of_an_agent_that_answers_with_messages_proves_nothing(
    harness: Harness,
) -> None:
    known, _ = await harness.talk("hello")
    await until_known(harness, known, "keeps_context")
    messaged, _ = await harness.talk("message hello")
    await until_known(harness, messaged, "answers_with_messages")
    harness.peer.next(drop_connection)
    accepted = await harness.send("go")
    await expect_unknown(harness, accepted)
    assert harness.peer.texts.count("go") == 1
    assert (await harness.record(accepted)).attempts[-1].status is Status.LOST


async def test_late_task_of_an_agent_that_answers_with_messages_is_adopted(
    harness: Harness,
) -> None:
    harness.timeouts = replace(harness.timeouts, doubt_s=60.0)
    await harness.restart()
    messaged, _ = await harness.talk("message hello")
    await until_known(harness, messaged, "answers_with_messages")
    arrived: list[Turn] = []

    async def arrive_late(turn: Turn) -> None:
        arrived.append(turn)
        await turn.drop()

    harness.peer.next(arrive_late)
    accepted = await harness.send("go")
    await wait_until(lambda: harness.peer.count("ListTasks") >= 2, 15, "the task was not found")
    arrived[0].make_task(arrived[0]).status("COMPLETED", "late, and done")
    await harness.until(accepted, Status.COMPLETED)
    assert harness.peer.texts.count("go") == 1


async def test_response_lost_with_the_gateway_stays_an_unknown_outcome(
    harness: Harness,
) -> None:
    harness.peer.lists = False
    harness.peer.hold()
    accepted = await harness.send("message hello")
    await wait_until(lambda: harness.peer.messages, 15, "the message is on its way")
    await harness.restart()
    harness.peer.release_all()
    await harness.adopt(accepted)
    text = await expect_unknown(harness, accepted)
    assert "it has no list of tasks to look in" in text
    assert await expect_unknown(harness, accepted) == text
    record = await harness.record(accepted)
    assert (record.status, record.attempts[-1].status) == (Status.FAILED, Status.LOST)
    assert record.last_error is not None
    assert record.last_error.code == "unknown_outcome"
    assert len(harness.peer.messages) == 1


async def test_agent_without_a_task_list_leaves_the_run_lost_at_once(harness: Harness) -> None:
    harness.timeouts = replace(harness.timeouts, doubt_s=60.0)
    await harness.restart()
    harness.peer.lists = False
    harness.peer.next(drop_connection)
    accepted = await harness.send("go")
    await expect_unknown(harness, accepted)
    assert len(harness.peer.messages) == 1


async def test_only_task_of_the_context_is_adopted_without_a_history(
    harness: Harness,
) -> None:
    harness.peer.keeps_history = False
    accepted = await harness.send("drop-first")
    await harness.until(accepted, Status.COMPLETED)
    assert len(harness.peer.messages) == 1


async def create_two(turn: Turn) -> None:
    """The agent creates two indistinguishable tasks in the context."""
    turn.make_task(turn)
    turn.make_task(turn)
    await turn.drop()


async def test_two_indistinguishable_tasks_leave_the_run_lost(harness: Harness) -> None:
    harness.peer.keeps_history = False
    harness.peer.next(create_two)
    accepted = await harness.send("go")
    await expect_unknown(harness, accepted)
    assert len(harness.peer.messages) == 1
    assert (await harness.record(accepted)).attempts[-1].remote_task_id is None


async def test_newest_of_two_tasks_with_the_message_is_adopted_with_a_warning(
    harness: Harness,
) -> None:
    harness.peer.next(create_two)
    accepted = await harness.send("go")

    async def is_bound() -> bool:
        return (await harness.record(accepted)).shown

    await wait_until(is_bound, 15, "one of the two is bound")
    bound = (await harness.record(accepted)).attempts[-1].remote_task_id
    assert bound in harness.peer.tasks
    assert "runtime.warning" in await harness.types(accepted)
    harness.peer.tasks[str(bound)].status("COMPLETED")
    await harness.until(accepted, Status.COMPLETED)


async def test_every_page_of_the_list_is_read(harness: Harness) -> None:
    async def many(turn: Turn) -> None:
        mine = turn.make_task(turn)
        mine.status("COMPLETED", "this one")
        for _ in range(55):
            other = turn.make_task(turn)
            other.record["history"] = []
        await turn.drop()

    harness.peer.next(many)
    accepted = await harness.send("go")
    await harness.until(accepted, Status.COMPLETED)
    assert harness.peer.count("ListTasks") >= 2


async def test_correlation_key_is_sent_if_configured(harness: Harness) -> None:
    harness.correlates = True
    harness.peer.keeps_history = False
    marked: JsonObject = {}

    async def mark(turn: Turn) -> None:
        metadata = cast("JsonObject", turn.message["metadata"])
        others = [turn.make_task(turn) for _ in range(2)]
        mine = turn.make_task(turn)
        mine.record["metadata"] = metadata
        marked.update(metadata)
        mine.status("COMPLETED", "mine")
        others[0].status("WORKING")  # newer than the right one
        await turn.drop()

    harness.peer.next(mark)
    accepted = await harness.send("go")
    record = await harness.until(accepted, Status.COMPLETED)
    assert len(str(marked[CORRELATION])) == 32
    assert record.attempts[-1].run_id not in str(marked)


async def test_newer_lease_sends_nothing_for_a_run_of_the_previous_one(harness: Harness) -> None:
    dispatch, may_send = harness.parts.dispatch, asyncio.Event()
    present = dispatch.drives(Shard(0))
    dispatch.find_sender = lambda shard: dispatch.drives(shard) if may_send.is_set() else None
    accepted = await harness.send("silent", wait="stream")
    driver = dispatch.find(accepted.task_id)
    assert driver is not None
    assert driver.run.driver == present
    # The process was frozen: its lease was lost and reopened before the run was registered for the release.
    dispatch.drives = lambda _shard: replace(present, number=present.number + 1)
    may_send.set()
    await wait_until(lambda: dispatch.find(accepted.task_id) is None, 15, "the run is released")
    assert driver.run.moved
    assert harness.peer.texts == []


@pytest.mark.requirement("I2")
@pytest.mark.parametrize("wait", ["unary", "stream"])
@pytest.mark.parametrize("end", ["again", "moved"])
async def test_process_frozen_after_its_intent_sends_nothing(
    harness: Harness, end: Literal["again", "moved"], wait: WaitMode
) -> None:
    dispatch, asked, may_send = harness.parts.dispatch, list[str](), asyncio.Event()
    present, drives = dispatch.drives(Shard(0)), dispatch.drives

    def lose_lease_after_the_first_call(shard: Shard) -> Incarnation | None:
        # The send begins in time; before its first byte the lease is over.
        asked.append("asked")
        return dispatch.drives(shard) if len(asked) == 1 or may_send.is_set() else None

    dispatch.find_sender = lose_lease_after_the_first_call
    accepted = await harness.send("hello", wait=wait)
    await wait_until(lambda: len(asked) > 2, 15, "the lease is requested again")
    assert harness.peer.texts == []
    if end == "moved":
        dispatch.drives = lambda _shard: replace(present, number=present.number + 1)
    may_send.set()
    if end == "moved":
        await wait_until(lambda: dispatch.find(accepted.task_id) is None, 15, "the run is released")
        assert harness.peer.texts == []
        dispatch.drives = drives
        return
    await harness.until(accepted, Status.COMPLETED)
    assert harness.peer.texts == ["hello"]
    assert (await harness.types(accepted)).count("model.requested") == 1


async def work_on(turn: Turn) -> None:
    await turn.status("WORKING")


async def test_equal_input_sent_twice_is_two_inputs(harness: Harness) -> None:
    accepted = await harness.send("silent", wait="stream")
    await harness.until(accepted, Status.QUEUED)
    message = harness.message("and this")
    harness.peer.next(work_on, work_on)
    await harness.send("", task=accepted.facade, message=message)
    await wait_until(lambda: harness.peer.texts.count("and this") == 1, 15, "the first has arrived")
    driver = harness.parts.dispatch.find(accepted.task_id)
    assert driver is not None
    driver.deps = change(driver.deps, may_send=may_send_nothing)
    turn = await harness.send("", task=accepted.facade, message=message)
    await harness.restart()
    await harness.adopt(accepted)
    await harness.run_due("input", f"{accepted.task_id}:{turn.turn_id}", after_ms=40_000)
    await wait_until(lambda: harness.peer.texts.count("and this") == 2, 15, "the second as well")


async def test_input_is_checked_after_the_delivery_grace_of_its_agent(harness: Harness) -> None:
    accepted = await harness.send("silent", wait="stream")
    await harness.until(accepted, Status.QUEUED)
    wait_for_arrival(harness, 600.0)
    driver = harness.parts.dispatch.find(accepted.task_id)
    assert driver is not None
    driver.deps = change(driver.deps, may_send=may_send_nothing)
    began_ms = harness.clock.now_ms()
    turn = await harness.send("and this", task=accepted.facade)
    at_ms = (await harness.due(accepted.task_id))[f"input:{accepted.task_id}:{turn.turn_id}"]
    assert began_ms + 600_000 <= int(at_ms) <= harness.clock.now_ms() + 600_000


async def test_input_for_a_busy_agent_is_sent_after_its_retry_after(harness: Harness) -> None:
    wait_for_arrival(harness, 600.0)
    accepted = await harness.send("silent", wait="stream")
    await harness.until(accepted, Status.QUEUED)
    harness.peer.answer_next(ScriptedResponse(429, headers={"Retry-After": "30"}))
    turn = await harness.send("and this", task=accepted.facade)
    member = f"input:{accepted.task_id}:{turn.turn_id}"

    async def is_postponed() -> bool:
        row = (await harness.due(accepted.task_id)).get(member)
        return row is not None and int(row) > harness.clock.now_ms() + 600_000

    await wait_until(is_postponed, 15, "the input is postponed")
    harness.clock.ahead_ms += 30_000
    await wait_until(lambda: harness.peer.texts.count("and this") == 2, 15, "it is sent again")
    await harness.until(accepted, Status.COMPLETED)
