"""Concurrent writers, repeated requests, and task lists: one writer wins, and the loser decides again (I2)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import cast

import pytest

from passerelle.core.batch import Batch, Conflict
from passerelle.core.commands import ListTasks
from passerelle.core.decision import Decision
from passerelle.core.errors import IdempotencyConflict, InvalidInput
from passerelle.core.events import Fact
from passerelle.core.payloads.runtime import WarningRaised
from passerelle.core.ports.log import StreamKind, StreamRef
from passerelle.core.task.commands import DescribeTask
from passerelle.core.task.machine import decide, scope_of
from passerelle.core.task.record import TaskRecord
from passerelle.core.task.status import Status
from passerelle.core.wire.json import JsonObject
from passerelle.runtime.records.writes import AppendOptions, Written
from tests.support.harness import ADA, Harness, task_of
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio


def rename(title: str) -> DescribeTask:
    return DescribeTask({"title": {"old": "", "new": title}})


@pytest.mark.requirement("I2")
async def test_second_writer_on_the_same_read_gets_a_conflict(harness: Harness) -> None:
    accepted = await harness.send("silent", wait="stream")
    await harness.until(accepted, Status.QUEUED)
    task, writes = task_of(accepted), harness.parts.writes
    held = await writes.load([task])
    record = cast("TaskRecord", held[task].record)
    decisions = [writes.begin(accepted.session_id, held) for _ in range(2)]
    for decision, title in zip(decisions, ("first", "second"), strict=True):
        decision.add(decide(record, rename(title)))
    first, second = [await writes.commit(decision, held, AppendOptions()) for decision in decisions]
    assert isinstance(first, Written)
    assert isinstance(second, Conflict)
    assert (await harness.record(accepted)).title == "first"


@pytest.mark.requirement("I2")
async def test_write_that_names_a_task_twice_acquires_its_driver_lock_once(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("passerelle.runtime.records.writes._LINE_S", 3_600.0)
    accepted = await harness.send("silent", wait="stream")
    await harness.until(accepted, Status.QUEUED)
    task, writes = task_of(accepted), harness.parts.writes
    driver = harness.parts.dispatch.find(accepted.task_id)
    assert driver is not None

    def name(title: str) -> Callable[[Decision], AppendOptions]:
        def body(decision: Decision) -> AppendOptions:
            decision.add(decide(cast("TaskRecord", decision.state(task)), rename(title)))
            return AppendOptions()

        return body

    async def write_first(_batch: Batch) -> None:
        harness.log.before_append = None
        await writes.decide(accepted.session_id, [task], name("first"))

    harness.log.before_append = write_first
    # Like an answer sent as a message to its task: both name the task.
    async with asyncio.timeout(20):
        await writes.decide(accepted.session_id, [task, task], name("second"))
        # The lock was released as often as it was acquired.
        await driver.run.line.acquire()
    driver.run.line.release()
    assert (await harness.record(accepted)).title == "second"


@pytest.mark.requirement("ENV-2")
async def test_event_ids_are_unique_across_writers_and_retries(harness: Harness) -> None:
    """Templated turns, decided turns, and writers that lose and decide again: each attempt mints its own ids."""
    accepted = [
        one for one, _ in await asyncio.gather(*(harness.talk(f"turn {n}") for n in range(8)))
    ]
    ref = task_of(accepted[0])

    async def write(number: int) -> None:
        def body(decision: Decision) -> AppendOptions:
            record = cast("TaskRecord", decision.state(ref))
            decision.add([Fact(scope_of(record), WarningRaised("w", f"{number}"))])
            decision.set_field(ref, "touched", b"%d" % number)
            return AppendOptions()

        await harness.parts.writes.decide(accepted[0].session_id, [ref], body)

    await asyncio.gather(*map(write, range(8)))
    await harness.restart()
    accepted.append((await harness.talk("after it"))[0])
    found = [
        entry.event_id
        for session in {one.session_id for one in accepted}
        for entry in await harness.entries(session)
    ]
    assert len(found) == len(set(found)) > 8 * 8


@pytest.mark.requirement("I2")
async def test_eight_concurrent_writers_all_succeed_in_sequence(harness: Harness) -> None:
    accepted = await harness.send("silent", wait="stream")
    await harness.until(accepted, Status.QUEUED)
    task, writes = task_of(accepted), harness.parts.writes
    titles: list[str] = []

    async def write(number: int) -> None:
        def body(decision: Decision) -> AppendOptions:
            record = cast("TaskRecord", decision.state(task))
            titles.append(record.title)
            decision.add(decide(record, rename(f"{record.title}.{number}")))
            return AppendOptions()

        await writes.decide(accepted.session_id, [task], body)

    await asyncio.gather(*(write(number) for number in range(8)))
    title = (await harness.record(accepted)).title
    assert sorted(title.split(".")[1:]) == [str(number) for number in range(8)]
    assert len(titles) > 8, "some had to decide again"
    stored = await harness.types(accepted)
    assert stored.count("task.updated") == 8


@pytest.mark.requirement("I2")
async def test_frame_that_lost_to_another_write_is_decided_again(harness: Harness) -> None:
    accepted = await harness.send("silent", wait="stream")
    await harness.until(accepted, Status.QUEUED)
    (remote,) = harness.peer.tasks.values()
    meanwhile = asyncio.Event()

    async def write_between(batch: Batch) -> None:
        if batch.fence is not None:
            harness.log.before_append = None
            harness.peer.on_cancel = "ignored"
            await harness.parts.writes.decide(
                accepted.session_id, [task_of(accepted)], lambda decision: _rename(decision, "x")
            )
            meanwhile.set()

    def _rename(decision: Decision, title: str) -> AppendOptions:
        record = cast("TaskRecord", decision.state(task_of(accepted)))
        decision.add(decide(record, rename(title)))
        return AppendOptions()

    harness.log.before_append = write_between
    remote.artifact([{"text": "said once"}])
    await asyncio.wait_for(meanwhile.wait(), 15)
    remote.status("COMPLETED")
    record = await harness.until(accepted, Status.COMPLETED)
    assert record.title == "x"
    assert str(await harness.read(accepted)).count("said once") == 1
    assert (await harness.types(accepted)).count("artifact.changed") == 1


async def test_cancelled_waiter_of_the_lock_is_skipped(harness: Harness) -> None:
    accepted = await harness.send("silent", wait="stream")
    await harness.until(accepted, Status.QUEUED)
    driver = harness.parts.dispatch.find(accepted.task_id)
    assert driver is not None
    run, held = driver.run, asyncio.Event()

    async def hold(_batch: Batch) -> None:
        harness.log.before_append = None
        await held.wait()

    def warn(text: str) -> asyncio.Task[Written]:
        warning = WarningRaised("test", text)
        return asyncio.create_task(
            run.append(lambda step: step.add([Fact(scope_of(step.record), warning)]))
        )

    harness.log.before_append = hold
    first = warn("first")
    await wait_until(lambda: harness.log.before_append is None, 15, "the first one is on its way")
    cancelled, called, last = warn("gone"), warn("called and gone"), warn("last")
    await asyncio.sleep(0)
    cancelled.cancel()

    def cancel_when_admitted(_result: str, _seconds: float, _why: str) -> None:
        # Cancelled after it was admitted, and before it runs.
        harness.parts.writes.tally = lambda _result, _seconds, _why: None
        asyncio.get_running_loop().call_soon(called.cancel)

    harness.parts.writes.tally = cancel_when_admitted
    held.set()
    async with asyncio.timeout(15):
        ends = await asyncio.gather(first, cancelled, called, last, return_exceptions=True)
    assert [isinstance(end, Written) for end in ends] == [True, False, False, True]
    assert isinstance(await warn("after them"), Written)
    payloads = [event.fact.payload for event in await harness.events(accepted)]
    warnings = [one.message for one in payloads if isinstance(one, WarningRaised)]
    assert warnings == ["first", "last", "after them"]


@pytest.mark.requirement("CMD-30")
async def test_repeated_request_with_its_key_is_the_same_turn_and_one_message(
    harness: Harness,
) -> None:
    message = harness.message("hello")
    first = await harness.send("", message=message, idem="key-1")
    await harness.await_answer(first)
    again = await harness.send("", message=message, idem="key-1")
    assert replace(again, repeated=False) == first
    assert again.repeated
    assert await harness.await_answer(again) == {"task": await harness.read(first)}
    assert len(harness.peer.messages) == 1
    assert (await harness.types(first)).count("turn.submitted") == 1
    with pytest.raises(IdempotencyConflict):
        await harness.send("something else", idem="key-1")


@pytest.mark.requirement("CMD-30")
async def test_one_key_sent_ten_times_at_once_is_one_message(harness: Harness) -> None:
    message = harness.message("hello")
    accepted = await asyncio.gather(
        *(harness.send("", message=message, idem="key-2") for _ in range(10))
    )
    assert len({one.task_id for one in accepted}) == 1
    await asyncio.gather(*(harness.await_answer(one) for one in accepted))
    assert len(harness.peer.messages) == 1


@pytest.mark.requirement("CMD-30")
async def test_repeated_follow_up_with_its_key_is_one_turn_and_one_message(
    harness: Harness,
) -> None:
    accepted, _ = await harness.talk("ask Which colour?")
    message = harness.message("blue")
    turns = [
        await harness.send("", message=message, task=accepted.facade, idem="key-3")
        for _ in range(3)
    ]
    assert len({one.turn_id for one in turns}) == 1
    assert [one.repeated for one in turns] == [False, True, True]
    await harness.until(accepted, Status.COMPLETED)
    assert harness.peer.texts == ["ask Which colour?", "blue"]
    assert (await harness.types(accepted)).count("turn.submitted") == 2


async def test_same_message_id_without_a_key_is_a_new_turn_each_time(harness: Harness) -> None:
    message = harness.message("hello")
    accepted = [await harness.send("", message=message) for _ in range(3)]
    await asyncio.gather(*(harness.await_answer(one) for one in accepted))
    assert len({one.task_id for one in accepted}) == 3
    assert len(harness.peer.messages) == 3


async def names(harness: Harness, query: ListTasks) -> list[str]:
    page = await harness.service.read(ADA, query)
    return [str(task["id"]) for task in cast("list[JsonObject]", page["tasks"])]


async def test_list_is_newest_first_with_every_task_on_one_page(harness: Harness) -> None:
    sent = [(await harness.talk(f"number {number}"))[0].facade for number in range(7)]
    whole = await names(harness, ListTasks("echo"))
    assert sorted(whole) == sorted(sent)
    found: list[str] = []
    token: str | None = None
    for _ in range(3):
        query = ListTasks("echo", page_size=3, page_token=token)
        page = await harness.service.read(ADA, query)
        assert (page["pageSize"], page["totalSize"]) == (3, 7)
        found += await names(harness, query)
        token = str(page["nextPageToken"])
    assert token == ""
    assert found == whole
    with pytest.raises(InvalidInput, match="pageToken"):
        await names(harness, ListTasks("echo", page_token="not a token"))


async def test_list_filters_by_context_state_and_agent(street: Harness) -> None:
    first, _ = await street.talk("one")
    second, _ = await street.talk("ask what", agent="other")
    third = await street.send("three", agent="other", context_id=first.context_id)
    await street.await_answer(third)
    context = ListTasks("echo", context_id=first.context_id)
    assert await names(street, context) == [first.facade]
    context = ListTasks("other", context_id=first.context_id)
    assert await names(street, context) == [third.facade]
    assert await names(street, ListTasks(agent="echo")) == [first.facade]
    assert await names(street, ListTasks("other", state="TASK_STATE_INPUT_REQUIRED")) == [
        second.facade
    ]
    assert await names(street, ListTasks("echo", context_id="never-seen")) == []
    page = await street.service.read(ADA, ListTasks(agent="echo"))
    assert "artifacts" not in cast("list[JsonObject]", page["tasks"])[0]
    page = await street.service.read(ADA, ListTasks(agent="echo", include_artifacts=True))
    assert "artifacts" in cast("list[JsonObject]", page["tasks"])[0]
    page = await street.service.read(ADA, ListTasks(agent="echo", history_length=0))
    assert "history" not in cast("list[JsonObject]", page["tasks"])[0]


async def test_task_is_listed_before_its_caller_gets_the_response(harness: Harness) -> None:
    accepted = await harness.send("silent", wait="stream")
    task = cast("JsonObject", (await harness.await_answer(accepted, at_once=True))["task"])
    assert await names(harness, ListTasks("echo")) == [task["id"]]


async def test_open_tasks_and_approvals_keep_their_stream_open(harness: Harness) -> None:
    accepted, _ = await harness.talk("ask what")
    (action,) = (await harness.record(accepted)).open_actions
    assert sorted(await harness.store.log.read_open(accepted.session_id)) == sorted(
        [accepted.task_id, action]
    )
    await harness.respond(
        await harness.question(accepted), option_id="reply", content={"text": "x"}
    )
    await harness.until(accepted, Status.COMPLETED)
    assert await harness.store.log.read_open(accepted.session_id) == []


@pytest.mark.requirement("I3")
async def test_concurrent_turns_of_one_context_have_one_order_without_gaps(
    harness: Harness,
) -> None:
    first, _ = await harness.talk("one")
    accepted = await asyncio.gather(
        *(harness.send(f"number {number}", context_id=first.context_id) for number in range(8))
    )
    await asyncio.gather(*(harness.await_answer(one) for one in accepted))
    entries = await harness.entries(first.session_id)
    assert [entry.sequence for entry in entries] == list(range(1, len(entries) + 1))
    head = await harness.store.log.read_head(StreamRef(StreamKind.SESSION, first.session_id))
    assert head is not None
    assert head.sequence == len(entries)
    turns = [event for event in await harness.events(first) if event.type == "turn.submitted"]
    assert len(turns) == 9
