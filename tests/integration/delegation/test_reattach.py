"""A run without a driver continues with the next: polled first, never sent again, every chunk once (AP-3, I6)."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from passerelle.core.batch import Incarnation
from passerelle.core.task.status import Status
from passerelle.core.wire.json import JsonObject
from tests.integration.delegation.test_endings import join_chunks, state_of
from tests.support.harness import Harness
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio


@pytest.mark.requirement("AP-3", "I6")
async def test_adopted_stream_continues_with_every_chunk_once(harness: Harness) -> None:
    harness.peer.hold()
    accepted = await harness.send("chunks 6", wait="stream")
    harness.peer.release(4)

    async def has_two_chunks() -> bool:
        shown = (await harness.record(accepted)).shown
        return shown and "chunk-2" in str(await harness.read(accepted))

    await harness.until(accepted, Status.RUNNING)
    await wait_until(has_two_chunks, 15, "two chunks are stored")
    await harness.restart()
    harness.peer.release(2)
    assert (await harness.record(accepted)).status is Status.RUNNING
    watching = asyncio.create_task(harness.watch(accepted))
    await harness.adopt(accepted)
    harness.peer.release_all()
    frames = await watching
    assert join_chunks(frames) == "".join(f"chunk-{number} " for number in range(1, 7))
    task = await harness.read(accepted)
    (artifact,) = cast("list[JsonObject]", task["artifacts"])
    assert len(cast("list[JsonObject]", artifact["parts"])) == 6
    assert len(harness.peer.messages) == 1
    assert (await harness.types(accepted)).count("artifact.changed") == 1


@pytest.mark.requirement("AP-3")
async def test_task_that_ended_without_a_driver_is_reconciled(harness: Harness) -> None:
    harness.peer.hold()
    accepted = await harness.send("hello", wait="stream")
    harness.peer.release(2)
    await harness.until(accepted, Status.RUNNING)
    await harness.restart()
    harness.peer.release_all()
    (remote,) = harness.peer.tasks.values()
    await asyncio.wait_for(remote.finished.wait(), 15)
    await harness.adopt(accepted)
    await harness.until(accepted, Status.COMPLETED)
    task = await harness.read(accepted)
    assert "hello" in str(task["artifacts"])
    assert len(harness.peer.messages) == 1


async def test_waiting_caller_gets_its_response_from_the_next_driver(harness: Harness) -> None:
    harness.peer.hold()
    accepted = await harness.send("hello")
    await wait_until(lambda: harness.peer.messages, 15, "the peer has the message")
    await harness.restart()
    response = asyncio.create_task(harness.await_answer(accepted))
    harness.peer.release_all()
    await harness.adopt(accepted)
    task = cast("JsonObject", (await response)["task"])
    assert state_of(task) == "COMPLETED"
    assert len(harness.peer.messages) == 1
    assert harness.peer.count("ListTasks") >= 1


async def test_further_message_accepted_without_a_driver_is_sent_by_the_next_driver(
    harness: Harness,
) -> None:
    accepted = await harness.send("silent", wait="stream")
    await harness.until(accepted, Status.QUEUED)
    await harness.restart()
    await harness.send("finish now", task=accepted.facade)
    assert harness.peer.texts == ["silent"]
    await harness.adopt(accepted)
    await harness.until(accepted, Status.COMPLETED)
    assert harness.peer.texts == ["silent", "finish now"]


async def test_adoption_of_an_ended_or_driven_run_changes_nothing(harness: Harness) -> None:
    done, _ = await harness.talk("hello")
    before = await harness.record(done)
    await harness.adopt(done)
    running = await harness.send("silent", wait="stream")
    await harness.until(running, Status.QUEUED)
    driver = harness.parts.dispatch.find(running.task_id)
    await harness.adopt(running)
    assert harness.parts.dispatch.find(running.task_id) is driver
    assert await harness.record(done) == before


async def test_driver_writes_nothing_after_its_run_was_taken_over(harness: Harness) -> None:
    accepted = await harness.send("silent", wait="stream")
    await harness.until(accepted, Status.QUEUED)
    before = await harness.events(accepted)
    await harness.replace_driver(accepted, Incarnation("inst_other", 1))
    (remote,) = harness.peer.tasks.values()
    remote.status("COMPLETED", "too late for this one")
    dispatch = harness.parts.dispatch
    await wait_until(lambda: dispatch.find(accepted.task_id) is None, 15, "it has stopped driving")
    assert (await harness.record(accepted)).status is Status.QUEUED
    assert await harness.events(accepted) == before
