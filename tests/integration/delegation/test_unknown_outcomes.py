"""Appends that are stored while their reply is lost: each is stored once, and each accepted message is completed."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import cast

import pytest

from passerelle.core.batch import AppendResult, Batch, PackedBatch
from passerelle.core.commands import GetAction, TurnAccepted
from passerelle.core.decision import Decision
from passerelle.core.errors import StoreUnavailable
from passerelle.core.task.commands import DescribeTask
from passerelle.core.task.machine import decide
from passerelle.core.task.record import TaskRecord
from passerelle.core.task.status import Status
from passerelle.core.wire.json import JsonObject
from passerelle.runtime.records.writes import AppendOptions
from tests.integration.delegation.test_endings import join_chunks
from tests.support.faults import Moment
from tests.support.harness import ADA, Harness, task_of
from tests.support.packed import read_packed
from tests.support.scripted_tasks import RemoteTask, Turn
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio


def lose_reply(*, of: bytes, found: list[str]) -> Moment:
    """Drops the reply of the first append with an event that contains ``of``, after it is stored."""

    async def lose(batch: Batch) -> None:
        if not found and any(of in event.body for event in batch.events):
            found.append(batch.op)
            raise StoreUnavailable("no reply came", "unknown")

    return lose


@pytest.mark.requirement("I2")
async def test_chunk_with_a_lost_store_reply_is_stored_once(harness: Harness) -> None:
    accepted, remote = await open_artifact(harness)
    lost: list[str] = []
    harness.log.after_append = lose_reply(of=b"said once", found=lost)
    watching = asyncio.create_task(harness.watch(accepted))
    remote.artifact([{"text": "said once"}], append=True)
    await wait_until(lambda: lost, 15, "the reply was lost")
    remote.status("COMPLETED")
    assert join_chunks(await watching) == "opened said once"
    assert str(await harness.read(accepted)).count("said once") == 1


async def open_artifact(harness: Harness) -> tuple[TurnAccepted, RemoteTask]:
    """A working task with the first chunk of an artifact stored."""
    accepted = await harness.send("silent", wait="stream")
    await harness.until(accepted, Status.QUEUED)
    (remote,) = harness.peer.tasks.values()
    remote.artifact([{"text": "opened "}], last=False)

    async def is_open() -> bool:
        return "opened" in str(await harness.read(accepted))

    await wait_until(is_open, 15, "the artifact is open")
    return accepted, remote


@pytest.mark.requirement("I2")
async def test_chunk_with_a_lost_store_reply_is_stored_once_despite_a_later_write(
    harness: Harness,
) -> None:
    lost: list[str] = []
    accepted, remote = await open_artifact(harness)

    def rename(decision: Decision) -> AppendOptions:
        record = cast("TaskRecord", decision.state(task_of(accepted)))
        decision.add(decide(record, DescribeTask({"title": {"old": "", "new": "renamed"}})))
        return AppendOptions()

    async def lose_and_write(batch: Batch) -> None:
        if not lost and any(b"said once" in event.body for event in batch.events):
            lost.append(batch.op)
            await harness.parts.writes.decide(accepted.session_id, [task_of(accepted)], rename)
            raise StoreUnavailable("no reply came", "unknown")

    harness.log.after_append = lose_and_write
    remote.artifact([{"text": "said once"}], append=True)
    await wait_until(lambda: lost, 15, "the reply was lost")
    remote.status("COMPLETED")
    record = await harness.until(accepted, Status.COMPLETED)
    assert record.title == "renamed"
    assert str(await harness.read(accepted)).count("said once") == 1


async def run_twice(harness: Harness, wanted: bytes) -> None:
    """From now on the first append with these bytes runs, loses its reply, and is retried inside the store."""
    append, done = harness.log.log.append, False

    async def append_again(batch: Batch | PackedBatch) -> AppendResult:
        nonlocal done
        result = await append(batch)
        if not done and any(wanted in event.body for event in read_packed(batch).events):
            done = True
            return await append(batch)
        return result

    harness.log.log.append = append_again  # type: ignore[method-assign]  # injects the fault


@pytest.mark.requirement("CMD-30")
async def test_keyed_message_with_a_lost_store_reply_is_sent(
    harness: Harness,
) -> None:
    await run_twice(harness, b'"turn.submitted"')
    accepted = await harness.send("hello", idem="key-lost")
    assert not accepted.repeated
    assert "task" in await harness.await_answer(accepted)
    assert len(harness.peer.messages) == 1


@pytest.mark.requirement("CMD-30")
async def test_keyed_input_with_a_lost_store_reply_is_sent(harness: Harness) -> None:
    async def work(turn: Turn) -> None:
        await turn.status("WORKING")
        await asyncio.Event().wait()

    harness.peer.next(work)
    accepted = await harness.send("go", wait="stream")

    async def is_shown() -> bool:
        return (await harness.record(accepted)).shown

    await wait_until(is_shown, 15, "the task is there for its caller")
    await run_twice(harness, b'"turn.submitted"')
    await harness.send("and this", task=accepted.facade, idem="key-input")
    await wait_until(lambda: "and this" in harness.peer.texts, 15, "the peer has the input")
    assert harness.peer.texts.count("and this") == 1


@pytest.mark.requirement("I9")
async def test_task_stored_despite_an_error_to_its_caller_ends(
    harness: Harness,
) -> None:
    harness.timeouts = replace(harness.timeouts, revive_s=0.02)
    await harness.restart()
    tasks: list[str] = []

    async def lose(batch: Batch) -> None:
        if not tasks and batch.runs:
            tasks.append(batch.runs[0].task)
            raise StoreUnavailable("no reply came", "unknown")

    harness.log.after_append = lose
    with pytest.raises(StoreUnavailable):
        await harness.send("hello", idem="key-doubt")
    again = await harness.send("", idem="key-doubt", message=message_like("hello", harness))
    assert (again.task_id, again.repeated) == (tasks[0], True)
    record = await harness.until(again, Status.FAILED)
    assert record.attempts[-1].status is Status.LOST
    assert harness.peer.messages == []


def message_like(text: str, harness: Harness) -> JsonObject:
    """The last message of ``house`` again."""
    message = harness.message(text)
    number = int(str(message["messageId"]).removeprefix("m-"))
    return {**message, "messageId": f"m-{number - 1}"}


@pytest.mark.requirement("I6")
async def test_message_of_a_caller_cancelled_during_the_append_reaches_the_agent(
    harness: Harness,
) -> None:
    stored, gone = asyncio.Event(), asyncio.Event()

    async def hold(batch: Batch) -> None:
        if batch.runs:
            stored.set()
            await gone.wait()

    harness.log.after_append = hold
    sending = asyncio.create_task(harness.send("hello"))
    await stored.wait()
    sending.cancel()
    await asyncio.gather(sending, return_exceptions=True)
    gone.set()
    await wait_until(lambda: harness.peer.texts == ["hello"], 15, "the peer has the message")


@pytest.mark.requirement("CMD-30", "LT-5")
async def test_answer_by_message_and_its_turn_are_one_append(harness: Harness) -> None:
    accepted, _ = await harness.talk("ask Which colour?")
    view = await harness.question(accepted)
    message = harness.message("blue")
    lost: list[str] = []
    harness.log.after_append = lose_reply(of=b'"turn.submitted"', found=lost)
    with pytest.raises(StoreUnavailable):
        await harness.send("", task=accepted.facade, message=message, idem="key-answer")
    closed = await harness.service.read(ADA, GetAction(str(view["actionId"])))
    assert closed["state"] == "answered"
    again = await harness.send("", task=accepted.facade, message=message, idem="key-answer")
    assert again.repeated
