"""During a store outage nothing is sent that is not stored, nothing ends, and nothing is lost (I1, I5)."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from passerelle.core.batch import Batch
from passerelle.core.errors import StoreUnavailable
from passerelle.core.ids import shard_of
from passerelle.core.task.status import Status
from passerelle.core.wire.json import JsonObject
from tests.support.harness import ADA, Harness
from tests.support.scripted_tasks import Turn
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio


async def test_message_is_refused_before_the_agent_is_called(harness: Harness) -> None:
    harness.log.refuses_writes = True
    with pytest.raises(StoreUnavailable):
        await harness.send("hello")
    assert harness.peer.requests == []


@pytest.mark.requirement("I1")
async def test_unary_response_waits_for_the_store(harness: Harness) -> None:
    harness.peer.hold()
    accepted = await harness.send("hello")
    await wait_until(lambda: harness.peer.texts == ["hello"], 15, "the peer has the message")
    harness.log.refuses_writes = True
    harness.peer.release_all()
    await wait_until(lambda: harness.log.refused > 1, 15, "the answer could not be stored")
    response = asyncio.create_task(harness.await_answer(accepted))
    assert not await ends_within(response, 0.1)
    assert (await harness.record(accepted)).status is Status.RUNNING
    harness.log.refuses_writes = False
    task = cast("JsonObject", (await response)["task"])
    assert cast("JsonObject", task["status"])["state"] == "TASK_STATE_COMPLETED"
    assert harness.peer.count("SendMessage") == 1


async def ends_within(task: asyncio.Task[JsonObject], within_s: float) -> bool:
    """Whether a task ends within the time; it continues either way."""
    done, _ = await asyncio.wait({task}, timeout=within_s)
    return bool(done)


@pytest.mark.requirement("I1")
async def test_bare_message_waits_for_the_store_and_is_not_lost(harness: Harness) -> None:
    harness.peer.hold()
    accepted = await harness.send("message so be it")
    await wait_until(lambda: harness.peer.messages, 15, "the peer has the message")
    harness.log.refuses_writes = True
    harness.peer.release_all()
    await wait_until(lambda: harness.log.refused > 1, 15, "the answer could not be stored")
    harness.log.refuses_writes = False
    answer = await harness.await_answer(accepted)
    assert cast("JsonObject", answer["message"])["parts"] == [{"text": "so be it"}]


@pytest.mark.requirement("I1")
async def test_every_chunk_is_stored_once_after_a_store_outage(
    harness: Harness,
) -> None:
    harness.peer.hold()
    accepted = await harness.send("chunks 6", wait="stream")
    watching = asyncio.create_task(harness.watch(accepted))
    harness.peer.release(3)
    await harness.until(accepted, Status.RUNNING)
    harness.log.refuses_writes = True
    harness.peer.release(3)
    await wait_until(lambda: harness.log.refused > 2, 15, "frames could not be stored")
    harness.log.refuses_writes = False
    harness.peer.release_all()
    frames = await watching
    assert texts_of(frames) == [f"chunk-{number} " for number in range(1, 7)]
    (artifact,) = cast("list[JsonObject]", (await harness.read(accepted))["artifacts"])
    assert len(cast("list[JsonObject]", artifact["parts"])) == 6
    assert (await harness.types(accepted)).count("artifact.changed") == 1


def texts_of(frames: list[JsonObject]) -> list[str]:
    """The texts of all artifact chunks, in order."""
    updates = [cast("JsonObject", frame.get("artifactUpdate", {})) for frame in frames]
    chunks = [cast("JsonObject", update.get("artifact", {})) for update in updates]
    return [
        str(part["text"])
        for chunk in chunks
        for part in cast("list[JsonObject]", chunk.get("parts", []))
    ]


@pytest.mark.requirement("I1")
async def test_no_follower_gets_a_frame_before_it_is_stored(harness: Harness) -> None:
    held = asyncio.Event()
    waits = asyncio.Event()

    async def hold(batch: Batch) -> None:
        if any(event.facade for event in batch.events):
            waits.set()
            await held.wait()

    accepted = await harness.send("silent", wait="stream")
    await harness.until(accepted, Status.QUEUED)
    harness.log.before_append = hold
    task = next(iter(harness.peer.tasks.values()))
    seen: list[bytes] = []

    async def collect() -> None:
        async with harness.service.follow(ADA, accepted) as followed:
            async for frame in followed.frames:
                seen.append(frame.data)  # noqa: PERF401  keeps the frames of a reader that is cancelled

    reading = asyncio.create_task(collect())
    await wait_until(lambda: len(seen) == 1, 15, "the first frame")
    task.status("WORKING", "only said, not stored")
    await waits.wait()
    for _ in range(20):
        await asyncio.sleep(0)
    assert len(seen) == 1
    assert "only said" not in str(await harness.read(accepted))
    at_once = await harness.await_answer(accepted, at_once=True)
    assert "only said" not in str(at_once)
    held.set()
    await wait_until(lambda: len(seen) == 2, 15, "the frame, once it is stored")
    assert b"only said" in seen[1]
    harness.log.before_append = None
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)


@pytest.mark.requirement("I5", "AP-4")
async def test_task_is_not_completed_until_its_artifact_is_stored(harness: Harness) -> None:
    async def large(turn: Turn) -> None:
        await turn.artifact("x" * 40_000)
        await turn.status("COMPLETED")

    harness.blobs.away = True
    harness.peer.next(large)
    accepted = await harness.send("go")
    response = asyncio.create_task(harness.await_answer(accepted))
    await wait_until(lambda: harness.blobs.refused > 2, 15, "the artifact could not be stored")
    record = await harness.record(accepted)
    assert (record.status, record.artifacts) == (Status.RUNNING, ())
    assert not response.done()
    harness.blobs.away = False
    await response
    record = await harness.until(accepted, Status.COMPLETED)
    assert [artifact.stored for artifact in record.artifacts] == [True]
    blob = record.artifacts[0].blob
    assert blob is not None
    content = await harness.store.blobs.get(shard_of(accepted.task_id), blob)
    assert content is not None
    assert b"x" * 40_000 in content


@pytest.mark.requirement("I5")
async def test_streamed_task_is_not_completed_until_its_artifact_is_stored(
    harness: Harness,
) -> None:
    harness.blobs.away = True
    accepted = await harness.send("big", wait="stream")
    watching = asyncio.create_task(harness.watch(accepted))
    await wait_until(lambda: harness.blobs.refused > 2, 15, "the artifact could not be stored")
    assert (await harness.record(accepted)).status is not Status.COMPLETED
    harness.blobs.away = False
    frames = await watching
    assert len(texts_of(frames)) == 1
    assert (await harness.record(accepted)).status is Status.COMPLETED
