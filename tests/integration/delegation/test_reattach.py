"""A run without a driver continues with the next: polled first, never sent again, every chunk once (AP-3, I6)."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from passerelle.core.batch import Incarnation
from passerelle.core.task.status import Status
from passerelle.core.wire.json import JsonObject
from tests.integration.delegation.test_endings import join_chunks, state_of
from tests.support.house import House
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio


@pytest.mark.requirement("AP-3", "I6")
async def test_adopted_stream_continues_with_every_chunk_once(house: House) -> None:
    house.peer.hold()
    accepted = await house.send("chunks 6", wait="stream")
    house.peer.release(4)

    async def has_two_chunks() -> bool:
        shown = (await house.record(accepted)).shown
        return shown and "chunk-2" in str(await house.read(accepted))

    await house.until(accepted, Status.RUNNING)
    await wait_until(has_two_chunks, 15, "two chunks are stored")
    await house.restart()
    house.peer.release(2)
    assert (await house.record(accepted)).status is Status.RUNNING
    watching = asyncio.create_task(house.watch(accepted))
    await house.adopt(accepted)
    house.peer.release_all()
    frames = await watching
    assert join_chunks(frames) == "".join(f"chunk-{number} " for number in range(1, 7))
    task = await house.read(accepted)
    (artifact,) = cast("list[JsonObject]", task["artifacts"])
    assert len(cast("list[JsonObject]", artifact["parts"])) == 6
    assert len(house.peer.messages) == 1
    assert (await house.types(accepted)).count("artifact.changed") == 1


@pytest.mark.requirement("AP-3")
async def test_task_that_ended_without_a_driver_is_reconciled(house: House) -> None:
    house.peer.hold()
    accepted = await house.send("hello", wait="stream")
    house.peer.release(2)
    await house.until(accepted, Status.RUNNING)
    await house.restart()
    house.peer.release_all()
    (remote,) = house.peer.tasks.values()
    await asyncio.wait_for(remote.finished.wait(), 15)
    await house.adopt(accepted)
    await house.until(accepted, Status.COMPLETED)
    task = await house.read(accepted)
    assert "hello" in str(task["artifacts"])
    assert len(house.peer.messages) == 1


async def test_waiting_caller_gets_its_response_from_the_next_driver(house: House) -> None:
    house.peer.hold()
    accepted = await house.send("hello")
    await wait_until(lambda: house.peer.messages, 15, "the peer has the message")
    await house.restart()
    response = asyncio.create_task(house.hear(accepted))
    house.peer.release_all()
    await house.adopt(accepted)
    task = cast("JsonObject", (await response)["task"])
    assert state_of(task) == "COMPLETED"
    assert len(house.peer.messages) == 1
    assert house.peer.count("ListTasks") >= 1


async def test_further_message_accepted_without_a_driver_is_sent_by_the_next_driver(
    house: House,
) -> None:
    accepted = await house.send("silent", wait="stream")
    await house.until(accepted, Status.QUEUED)
    await house.restart()
    await house.send("finish now", task=accepted.facade)
    assert house.peer.texts == ["silent"]
    await house.adopt(accepted)
    await house.until(accepted, Status.COMPLETED)
    assert house.peer.texts == ["silent", "finish now"]


async def test_adoption_of_an_ended_or_driven_run_changes_nothing(house: House) -> None:
    done, _ = await house.talk("hello")
    before = await house.record(done)
    await house.adopt(done)
    running = await house.send("silent", wait="stream")
    await house.until(running, Status.QUEUED)
    driver = house.parts.dispatch.find(running.task_id)
    await house.adopt(running)
    assert house.parts.dispatch.find(running.task_id) is driver
    assert await house.record(done) == before


async def test_driver_writes_nothing_after_its_run_was_taken_over(house: House) -> None:
    accepted = await house.send("silent", wait="stream")
    await house.until(accepted, Status.QUEUED)
    before = await house.events(accepted)
    await house.give_away(accepted, Incarnation("inst_other", 1))
    (remote,) = house.peer.tasks.values()
    remote.status("COMPLETED", "too late for this one")
    dispatch = house.parts.dispatch
    await wait_until(lambda: dispatch.find(accepted.task_id) is None, 15, "it has stopped driving")
    assert (await house.record(accepted)).status is Status.QUEUED
    assert await house.events(accepted) == before
