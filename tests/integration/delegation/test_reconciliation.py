"""A send whose outcome nobody knows: what the peer shows decides, and nothing is sent twice on a guess."""

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
from tests.support.scripted_peer import HttpAnswer
from tests.support.scripted_tasks import Turn
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("AP-3")]


def may_send_nothing(_run: Run) -> bool:
    return False


async def vanish(turn: Turn) -> None:
    """The message arrived nowhere: the connection broke, and no task was made."""
    await turn.drop()


async def until_known(harness: Harness, accepted: TurnAccepted, habit: str) -> None:
    """Until the store knows a habit of the peer."""
    worker = (await harness.record(accepted)).attempts[-1].worker

    async def look() -> bool:
        return habit in await harness.store.habits.read(worker.peer, worker.card_hash or "")

    await wait_until(look, 15, f"the peer is known: {habit}")


async def until_looked_for(harness: Harness) -> None:
    """Until the peer was asked twice for its list, so that the first answer has been judged."""
    asked = harness.peer.count("ListTasks")
    await wait_until(lambda: harness.peer.count("ListTasks") > asked + 1, 15, "it is looked for")


async def test_message_that_never_arrived_is_sent_again_to_a_peer_that_keeps_our_contexts(
    harness: Harness,
) -> None:
    known, _ = await harness.talk("hello")
    await until_known(harness, known, "keeps_context")
    harness.peer.next(vanish)
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
    assert len(own) == 2, "each try is an intent of its own"
    assert len((await harness.record(accepted)).attempts) == 1


def wait_for_arrival(harness: Harness, doubt_s: float) -> None:
    """From now on a message may be on its way for so long."""
    harness.doubt_s = doubt_s


async def test_agent_says_how_long_a_message_to_it_may_be_on_its_way(harness: Harness) -> None:
    known, _ = await harness.talk("hello")
    await until_known(harness, known, "keeps_context")
    wait_for_arrival(harness, 90.0)
    harness.peer.next(vanish)
    accepted = await harness.send("go")
    harness.clock.ahead_ms += 80_000
    await until_looked_for(harness)
    assert harness.peer.texts == ["hello", "go"]
    harness.clock.ahead_ms += 15_000
    await harness.until(accepted, Status.COMPLETED)
    assert harness.peer.texts == ["hello", "go", "go"]


async def test_last_look_comes_as_soon_as_it_can_decide(harness: Harness) -> None:
    known, _ = await harness.talk("hello")
    await until_known(harness, known, "keeps_context")
    harness.timeouts = replace(harness.timeouts, poll_s=60.0, poll_max_s=60.0)
    await harness.restart()
    harness.peer.next(vanish)
    accepted = await harness.send("go")
    await harness.until(accepted, Status.COMPLETED)
    assert harness.peer.texts == ["hello", "go", "go"]


async def test_message_sent_again_is_looked_for_as_long_as_the_first_one(harness: Harness) -> None:
    known, _ = await harness.talk("hello")
    await until_known(harness, known, "keeps_context")
    wait_for_arrival(harness, 60.0)
    harness.peer.next(vanish, vanish)
    accepted = await harness.send("go")
    harness.clock.ahead_ms += 61_000
    await wait_until(lambda: harness.peer.texts.count("go") == 2, 15, "it is sent again")
    await until_looked_for(harness)
    await harness.restart()
    wait_for_arrival(harness, 60.0)
    await harness.adopt(accepted)
    await until_looked_for(harness)
    assert harness.peer.texts.count("go") == 2
    harness.clock.ahead_ms += 61_000
    await harness.until(accepted, Status.COMPLETED)
    assert harness.peer.texts.count("go") == 3
    assert len((await harness.record(accepted)).attempts) == 1


async def take_over(harness: Harness, accepted: TurnAccepted) -> None:
    """The instance that drove the run dies, and another one has it from now on."""
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


async def test_message_of_a_dead_instance_may_have_been_sent_until_the_run_was_taken_from_it(
    harness: Harness,
) -> None:
    known, _ = await harness.talk("hello")
    await until_known(harness, known, "keeps_context")
    wait_for_arrival(harness, 60.0)
    harness.peer.next(vanish)
    accepted = await harness.send("go")
    await wait_until(lambda: "go" in harness.peer.texts, 15, "it was sent")
    harness.clock.ahead_ms += 50_000
    await take_over(harness, accepted)
    harness.clock.ahead_ms += 30_000
    await until_looked_for(harness)
    # Who takes it up after that sends nothing, so nobody waits longer for it.
    await take_over(harness, accepted)
    await until_looked_for(harness)
    assert harness.peer.texts == ["hello", "go"]
    harness.clock.ahead_ms += 31_000
    await harness.until(accepted, Status.COMPLETED)
    assert harness.peer.texts == ["hello", "go", "go"]


async def test_late_message_of_a_dead_instance_is_found_and_not_lost(harness: Harness) -> None:
    said, _ = await harness.talk("message hello")
    await until_known(harness, said, "answers_with_messages")
    wait_for_arrival(harness, 60.0)
    arrived: list[Turn] = []

    async def be_late(turn: Turn) -> None:
        arrived.append(turn)
        await turn.drop()

    harness.peer.next(be_late)
    accepted = await harness.send("go")
    await wait_until(lambda: arrived, 15, "it was sent")
    harness.clock.ahead_ms += 59_000
    await take_over(harness, accepted)
    harness.clock.ahead_ms += 59_000
    await until_looked_for(harness)
    arrived[0].make_task(arrived[0]).status("COMPLETED", "late, and done")
    await harness.until(accepted, Status.COMPLETED)
    assert harness.peer.texts.count("go") == 1


async def test_habits_of_a_peer_outlive_the_process(harness: Harness) -> None:
    known, _ = await harness.talk("hello")
    await until_known(harness, known, "keeps_context")
    worker = (await harness.record(known)).attempts[-1].worker
    assert await PeerBehaviour(harness.store.habits).proves_absence(worker)
    assert not await PeerBehaviour(harness.store.habits).proves_absence(
        replace(worker, card_hash="other")
    )


async def expect_unknown(harness: Harness, accepted: TurnAccepted) -> str:
    """The caller gets the Task, failed for that reason; what it says."""
    task = cast("JsonObject", (await harness.await_answer(accepted))["task"])
    assert state_of(task) == "FAILED"
    assert cast("JsonObject", task["metadata"])["urn:passerelle:status"] == {
        "reason": "unknown_outcome",
        "peer": "echo",
    }
    assert task["id"] == accepted.facade
    assert await harness.read(accepted) == task
    said = str(task["status"])
    assert "it is unknown whether agent 'echo' received the message" in said
    return said


async def test_peer_that_answers_with_messages_proves_nothing_by_an_empty_list(
    harness: Harness,
) -> None:
    known, _ = await harness.talk("hello")
    await until_known(harness, known, "keeps_context")
    said, _ = await harness.talk("message hello")
    await until_known(harness, said, "answers_with_messages")
    harness.peer.next(vanish)
    accepted = await harness.send("go")
    await expect_unknown(harness, accepted)
    assert harness.peer.texts.count("go") == 1
    assert (await harness.record(accepted)).attempts[-1].status is Status.LOST


async def test_task_that_shows_up_at_such_a_peer_within_the_time_of_doubt_is_adopted(
    harness: Harness,
) -> None:
    harness.timeouts = replace(harness.timeouts, doubt_s=60.0)
    await harness.restart()
    said, _ = await harness.talk("message hello")
    await until_known(harness, said, "answers_with_messages")
    arrived: list[Turn] = []

    async def come_late(turn: Turn) -> None:
        arrived.append(turn)
        await turn.drop()

    harness.peer.next(come_late)
    accepted = await harness.send("go")
    await wait_until(lambda: harness.peer.count("ListTasks") >= 2, 15, "it was looked for in vain")
    arrived[0].make_task(arrived[0]).status("COMPLETED", "late, and done")
    await harness.until(accepted, Status.COMPLETED)
    assert harness.peer.texts.count("go") == 1


async def test_answer_that_was_lost_with_the_gateway_is_told_as_unknown_for_ever(
    harness: Harness,
) -> None:
    harness.peer.lists = False
    harness.peer.hold()
    accepted = await harness.send("message hello")
    await wait_until(lambda: harness.peer.messages, 15, "the message is on its way")
    await harness.restart()
    harness.peer.release_all()
    await harness.adopt(accepted)
    said = await expect_unknown(harness, accepted)
    assert "it has no list of tasks to look in" in said
    assert await expect_unknown(harness, accepted) == said
    record = await harness.record(accepted)
    assert (record.status, record.attempts[-1].status) == (Status.FAILED, Status.LOST)
    assert record.last_error is not None
    assert record.last_error.code == "unknown_outcome"
    assert len(harness.peer.messages) == 1


async def test_peer_that_cannot_list_leaves_the_run_lost_at_once(harness: Harness) -> None:
    harness.timeouts = replace(harness.timeouts, doubt_s=60.0)
    await harness.restart()
    harness.peer.lists = False
    harness.peer.next(vanish)
    accepted = await harness.send("go")
    await expect_unknown(harness, accepted)
    assert len(harness.peer.messages) == 1


async def test_task_without_a_history_is_ours_where_it_stands_alone_in_our_context(
    harness: Harness,
) -> None:
    harness.peer.keeps_history = False
    accepted = await harness.send("drop-first")
    await harness.until(accepted, Status.COMPLETED)
    assert len(harness.peer.messages) == 1


async def two_of_a_kind(turn: Turn) -> None:
    """The peer makes two tasks in the context, and nothing tells them apart."""
    turn.make_task(turn)
    turn.make_task(turn)
    await turn.drop()


async def test_two_tasks_that_nothing_tells_apart_leave_the_run_lost(harness: Harness) -> None:
    harness.peer.keeps_history = False
    harness.peer.next(two_of_a_kind)
    accepted = await harness.send("go")
    await expect_unknown(harness, accepted)
    assert len(harness.peer.messages) == 1
    assert (await harness.record(accepted)).attempts[-1].remote_task_id is None


async def test_newest_of_two_that_show_the_message_is_taken_with_a_warning(
    harness: Harness,
) -> None:
    harness.peer.next(two_of_a_kind)
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


async def test_key_of_ours_goes_along_where_the_agent_is_configured_so(harness: Harness) -> None:
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
        others[0].status("WORKING")  # newer than ours
        await turn.drop()

    harness.peer.next(mark)
    accepted = await harness.send("go")
    record = await harness.until(accepted, Status.COMPLETED)
    assert len(str(marked[CORRELATION])) == 32
    assert record.attempts[-1].run_id not in str(marked)


async def test_a_newer_lease_sends_nothing_for_a_run_of_the_one_before(harness: Harness) -> None:
    dispatch, leave = harness.parts.dispatch, asyncio.Event()
    present = dispatch.drives(Shard(0))
    dispatch.find_sender = lambda shard: dispatch.drives(shard) if leave.is_set() else None
    accepted = await harness.send("silent", wait="stream")
    driver = dispatch.find(accepted.task_id)
    assert driver is not None
    assert driver.run.driver == present
    # The process stood still: its lease was lost and opened anew before this run was known to those who let go.
    dispatch.drives = lambda _shard: replace(present, number=present.number + 1)
    leave.set()
    await wait_until(lambda: dispatch.find(accepted.task_id) is None, 15, "the run is let go")
    assert driver.run.moved
    assert harness.peer.texts == []


@pytest.mark.requirement("I2")
@pytest.mark.parametrize("wait", ["unary", "stream"])
@pytest.mark.parametrize("end", ["again", "moved"])
async def test_a_process_that_stands_still_behind_its_intent_sends_nothing(
    harness: Harness, end: Literal["again", "moved"], wait: WaitMode
) -> None:
    dispatch, asked, leave = harness.parts.dispatch, list[str](), asyncio.Event()
    present, drives = dispatch.drives(Shard(0)), dispatch.drives

    def stand_still(shard: Shard) -> Incarnation | None:
        # The send is begun in time; by its first byte the lease is over.
        asked.append("asked")
        return dispatch.drives(shard) if len(asked) == 1 or leave.is_set() else None

    dispatch.find_sender = stand_still
    accepted = await harness.send("hello", wait=wait)
    await wait_until(lambda: len(asked) > 2, 15, "it is asked for again")
    assert harness.peer.texts == []
    if end == "moved":
        dispatch.drives = lambda _shard: replace(present, number=present.number + 1)
    leave.set()
    if end == "moved":
        await wait_until(lambda: dispatch.find(accepted.task_id) is None, 15, "it is let go")
        assert harness.peer.texts == []
        dispatch.drives = drives
        return
    await harness.until(accepted, Status.COMPLETED)
    assert harness.peer.texts == ["hello"]
    assert (await harness.types(accepted)).count("model.requested") == 1


async def work_on(turn: Turn) -> None:
    await turn.status("WORKING")


async def test_same_id_and_words_sent_twice_is_not_taken_for_one_input(harness: Harness) -> None:
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


async def test_input_is_looked_for_once_the_term_of_its_agent_is_over(harness: Harness) -> None:
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


async def test_input_for_a_busy_agent_is_sent_at_its_time(harness: Harness) -> None:
    wait_for_arrival(harness, 600.0)
    accepted = await harness.send("silent", wait="stream")
    await harness.until(accepted, Status.QUEUED)
    harness.peer.answer_next(HttpAnswer(429, headers={"Retry-After": "30"}))
    turn = await harness.send("and this", task=accepted.facade)
    member = f"input:{accepted.task_id}:{turn.turn_id}"

    async def is_put_off() -> bool:
        row = (await harness.due(accepted.task_id)).get(member)
        return row is not None and int(row) > harness.clock.now_ms() + 600_000

    await wait_until(is_put_off, 15, "the input is owed later")
    harness.clock.ahead_ms += 30_000
    await wait_until(lambda: harness.peer.texts.count("and this") == 2, 15, "it is sent again")
    await harness.until(accepted, Status.COMPLETED)
