"""Agent output is stored whole: artifacts, large content by reference, malformed frames, unknown states."""

from __future__ import annotations

import asyncio
from typing import cast

import orjson
import pytest

from passerelle.core import machine
from passerelle.core.batch import EntityKind, EntityRef
from passerelle.core.events import Fact, VendorPayload
from passerelle.core.ids import shard_of
from passerelle.core.payloads.runtime import WarningRaised
from passerelle.core.task.machine import scope_of
from passerelle.core.task.record import TaskRecord
from passerelle.core.task.status import Status
from passerelle.core.wire.json import Json, JsonObject
from passerelle.delegation.runs.draft import DecisionDraft
from tests.support.harness import Harness, task_of
from tests.support.scripted_behaviours import BIG_ARTIFACT_CHARS, BIG_INTEGER, BIG_STATUS_CHARS
from tests.support.scripted_tasks import Turn

pytestmark = pytest.mark.anyio

ENTRY_CAP = 20 * 1024
"""16 KiB of payload, and the envelope around it."""


@pytest.mark.requirement("EVC-14", "A2A-10", "ID-7")
async def test_artifact_in_chunks_is_one_artifact_with_the_joined_hash(harness: Harness) -> None:
    accepted = await harness.send("chunks 3", wait="stream")
    await harness.watch(accepted)
    events = await harness.events(accepted)
    changed = [event for event in events if event.type == "artifact.changed"]
    record = await harness.record(accepted)
    (artifact,) = record.artifacts
    (edge,) = record.relationships
    assert len(changed) == 1
    assert (edge.kind, edge.target) == ("produced_artifact", artifact.artifact_id)
    assert edge.edge_id.startswith(artifact.run_id)
    assert (artifact.parts, artifact.version, artifact.stored) == (3, 1, True)
    progress = [
        event for event in events if event.type == "task.progress" and event.fact.frame is not None
    ]
    assert len(progress) >= 2
    steps = [event.fact.scope.step_id for event in events if event.fact.scope.step_id]
    assert len(dict.fromkeys(steps)) == 6


@pytest.mark.requirement("A2A-8")
async def test_artifacts_sent_repeatedly_keep_their_ids_and_versions(harness: Harness) -> None:
    accepted = await harness.send("two-artifacts", wait="stream")
    await harness.watch(accepted)
    record = await harness.record(accepted)
    assert sorted(one.name_at_peer for one in record.artifacts) == ["first", "second"]
    assert len({one.artifact_id for one in record.artifacts}) == 2
    assert {one.version for one in record.artifacts} == {1}
    changed = [e for e in await harness.events(accepted) if e.type == "artifact.changed"]
    assert len(changed) == 2


@pytest.mark.parametrize("wait", ["unary", "stream"])
@pytest.mark.requirement("ID-11", "ENV-11")
async def test_large_artifact_is_stored_by_reference_and_read_whole(
    harness: Harness, wait: str
) -> None:
    accepted = await harness.send("big", wait="stream" if wait == "stream" else "unary")
    answer = cast("JsonObject", (await harness.await_answer(accepted))["task"])
    record = await harness.until(accepted, Status.COMPLETED)
    entries = await harness.entries(accepted.session_id)
    assert max(len(entry.data) for entry in entries) < ENTRY_CAP
    (artifact,) = record.artifacts
    assert artifact.blob is not None
    assert artifact.size > BIG_ARTIFACT_CHARS
    blob = await harness.store.blobs.get(shard_of(accepted.task_id), artifact.blob)
    assert blob is not None
    assert "x" * BIG_ARTIFACT_CHARS in blob.decode()
    task = await harness.read(accepted)
    assert task == answer
    assert len(orjson.dumps(task["artifacts"])) > BIG_ARTIFACT_CHARS


@pytest.mark.requirement("ENV-10", "ENV-11")
async def test_status_of_5_mb_is_one_spilled_output_and_no_large_entry(harness: Harness) -> None:
    accepted = await harness.send("big-frames", wait="stream")
    frames = await harness.watch(accepted)
    entries = await harness.entries(accepted.session_id)
    assert max(len(entry.data) for entry in entries) < ENTRY_CAP
    spilled = [e for e in await harness.events(accepted) if e.type == "output.spilled"]
    assert len(spilled) == 5
    for event in spilled:
        blob = event.fact.refs["output"].blob
        assert blob is not None
        assert await harness.store.blobs.get(shard_of(accepted.task_id), blob) is not None
    found = sum(str(frame).count("s" * 1000) for frame in frames)
    assert found == BIG_STATUS_CHARS // 1000


@pytest.mark.requirement("ENV-11")
async def test_large_message_of_a_caller_is_stored_by_reference(harness: Harness) -> None:
    text = "hello " + "y" * 40_000
    accepted, answer = await harness.talk(text)
    assert text in str(answer)
    assert harness.peer.texts == [text]
    entries = await harness.entries(accepted.session_id)
    assert max(len(entry.data) for entry in entries) < ENTRY_CAP
    await harness.restart()
    assert text in str((await harness.read(accepted))["history"])


async def test_many_large_frames_at_once_are_stored_in_several_appends(harness: Harness) -> None:
    async def flood(turn: Turn) -> None:
        await turn.status("WORKING")
        for number in range(60):
            await turn.status("WORKING", f"{number:02} " + "w" * 15_000)
        await turn.status("COMPLETED")

    harness.peer.next(flood)
    accepted = await harness.send("go", wait="stream")
    frames = await harness.watch(accepted)
    assert len(frames) == 63
    assert (await harness.record(accepted)).status is Status.COMPLETED


@pytest.mark.requirement("EVC-19")
@pytest.mark.parametrize("word", ["nonsense", "malformed"])
async def test_malformed_frame_is_one_warning_and_the_task_continues(
    harness: Harness, word: str
) -> None:
    accepted = await harness.send(word, wait="stream")
    await harness.watch(accepted)
    events = await harness.events(accepted)
    warnings = [e.fact.payload for e in events if isinstance(e.fact.payload, WarningRaised)]
    assert [warning.code for warning in warnings] == ["malformed_frame"]
    assert (await harness.record(accepted)).status is Status.COMPLETED
    assert len(harness.peer.messages) == 1


@pytest.mark.requirement("A2A-7")
async def test_unknown_state_is_recorded_and_not_interpreted(harness: Harness) -> None:
    harness.peer.hold()
    accepted = await harness.send("unknown-state", wait="stream")
    harness.peer.release(2)
    record = await harness.until(accepted, Status.UNKNOWN)
    assert record.attempts[-1].native_status == "TASK_STATE_DREAMING"
    harness.peer.release_all()
    await harness.until(accepted, Status.COMPLETED)


async def test_repeated_frames_change_nothing(harness: Harness) -> None:
    accepted = await harness.send("twice", wait="stream")
    await harness.watch(accepted)
    record = await harness.record(accepted)
    (artifact,) = record.artifacts
    assert (artifact.version, artifact.parts) == (1, 1)
    types = await harness.types(accepted)
    assert types.count("task.completed") == 1
    assert types.count("artifact.changed") == 1


async def test_large_numbers_and_fields_of_later_versions_are_passed_on(harness: Harness) -> None:
    accepted, answer = await harness.talk("numbers")
    assert str(BIG_INTEGER) in str(answer)
    assert "newInSomeLaterVersion" in str(answer)
    assert await harness.read(accepted) == answer["task"]


@pytest.mark.requirement("ENV-12", "ENV-13")
async def test_vendor_events_change_no_read_model(harness: Harness) -> None:
    accepted = await harness.send("silent", wait="stream")
    await harness.until(accepted, Status.QUEUED)
    for number in range(20):
        await add_vendor_event(harness, task_of(accepted), number)
    (remote,) = harness.peer.tasks.values()
    remote.status("COMPLETED")
    await harness.until(accepted, Status.COMPLETED)
    events = await harness.events(accepted)
    normalized = [e for e in events if not isinstance(e.fact.payload, VendorPayload)]
    assert len(events) == len(normalized) + 20
    assert machine.replay(normalized) == machine.replay(events)


async def add_vendor_event(harness: Harness, task: EntityRef, number: int) -> None:
    """Appends a vendor event, always together with a normalized one."""

    def body(draft: DecisionDraft) -> None:
        scope = scope_of(draft.record)
        data: dict[str, Json] = {"number": number}
        draft.add(
            [
                Fact(scope, VendorPayload("x.test.detail", data)),
                Fact(scope, WarningRaised("vendor_detail", "a test said something")),
            ]
        )

    driver = harness.parts.dispatch.find(task.id)
    assert driver is not None
    await driver.run.append(body)


@pytest.mark.requirement("A2A-1", "A2A-9")
async def test_messages_of_an_agent_become_status_and_never_artifacts(harness: Harness) -> None:
    async def chatty(turn: Turn) -> None:
        await turn.status("WORKING", "first I think")
        await turn.status("WORKING", "then I act")
        await turn.status("COMPLETED", "well done")

    harness.peer.next(chatty)
    accepted = await harness.send("go", wait="stream")
    await harness.watch(accepted)
    record = await harness.record(accepted)
    assert record.artifacts == ()
    assert "artifact.changed" not in await harness.types(accepted)
    found = [
        getattr(event.fact.payload, "text", None)
        for event in await harness.events(accepted)
        if event.type == "run.status"
    ]
    assert [text for text in found if text] == ["first I think", "then I act", "well done"]
    assert record.progress.summary == "well done"


async def test_snapshot_of_a_long_stream_stays_small(harness: Harness) -> None:
    async def long(turn: Turn) -> None:
        for number in range(300):
            await turn.status("WORKING", f"step {number} " + "z" * 300)
        await turn.status("COMPLETED")

    harness.peer.next(long)
    accepted = await harness.send("go", wait="stream")
    frames = await asyncio.wait_for(harness.watch(accepted), 10)
    assert len(frames) == 302
    (loaded,) = await harness.store.log.load([EntityRef(EntityKind.TASK, accepted.task_id)])
    assert len(loaded.snapshot) < 16 * 1024
    assert isinstance(machine.read_snapshot(EntityKind.TASK, loaded.snapshot), TaskRecord)
