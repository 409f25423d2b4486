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
from tests.support.house import House, task_of
from tests.support.scripted_behaviours import BIG_ARTIFACT_CHARS, BIG_INTEGER, BIG_STATUS_CHARS
from tests.support.scripted_tasks import Turn

pytestmark = pytest.mark.anyio

ENTRY_CAP = 20 * 1024
"""16 KiB of payload, and the envelope around it."""


@pytest.mark.requirement("EVC-14", "A2A-10", "ID-7")
async def test_artifact_in_chunks_is_one_artifact_with_the_joined_hash(house: House) -> None:
    accepted = await house.send("chunks 3", wait="stream")
    await house.watch(accepted)
    events = await house.events(accepted)
    changed = [event for event in events if event.type == "artifact.changed"]
    record = await house.record(accepted)
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
async def test_artifacts_sent_repeatedly_keep_their_ids_and_versions(house: House) -> None:
    accepted = await house.send("two-artifacts", wait="stream")
    await house.watch(accepted)
    record = await house.record(accepted)
    assert sorted(one.name_at_peer for one in record.artifacts) == ["first", "second"]
    assert len({one.artifact_id for one in record.artifacts}) == 2
    assert {one.version for one in record.artifacts} == {1}
    changed = [e for e in await house.events(accepted) if e.type == "artifact.changed"]
    assert len(changed) == 2


@pytest.mark.parametrize("wait", ["unary", "stream"])
@pytest.mark.requirement("ID-11", "ENV-11")
async def test_large_artifact_is_stored_by_reference_and_read_whole(
    house: House, wait: str
) -> None:
    accepted = await house.send("big", wait="stream" if wait == "stream" else "unary")
    answer = cast("JsonObject", (await house.hear(accepted))["task"])
    record = await house.until(accepted, Status.COMPLETED)
    entries = await house.entries(accepted.session_id)
    assert max(len(entry.data) for entry in entries) < ENTRY_CAP
    (artifact,) = record.artifacts
    assert artifact.blob is not None
    assert artifact.size > BIG_ARTIFACT_CHARS
    blob = await house.store.blobs.get(shard_of(accepted.task_id), artifact.blob)
    assert blob is not None
    assert "x" * BIG_ARTIFACT_CHARS in blob.decode()
    task = await house.read(accepted)
    assert task == answer
    assert len(orjson.dumps(task["artifacts"])) > BIG_ARTIFACT_CHARS


@pytest.mark.requirement("ENV-10", "ENV-11")
async def test_status_of_5_mb_is_one_spilled_output_and_no_large_entry(house: House) -> None:
    accepted = await house.send("big-frames", wait="stream")
    frames = await house.watch(accepted)
    entries = await house.entries(accepted.session_id)
    assert max(len(entry.data) for entry in entries) < ENTRY_CAP
    spilled = [e for e in await house.events(accepted) if e.type == "output.spilled"]
    assert len(spilled) == 5
    for event in spilled:
        blob = event.fact.refs["output"].blob
        assert blob is not None
        assert await house.store.blobs.get(shard_of(accepted.task_id), blob) is not None
    found = sum(str(frame).count("s" * 1000) for frame in frames)
    assert found == BIG_STATUS_CHARS // 1000


@pytest.mark.requirement("ENV-11")
async def test_large_message_of_a_caller_is_stored_by_reference(house: House) -> None:
    text = "hello " + "y" * 40_000
    accepted, answer = await house.talk(text)
    assert text in str(answer)
    assert house.peer.texts == [text]
    entries = await house.entries(accepted.session_id)
    assert max(len(entry.data) for entry in entries) < ENTRY_CAP
    await house.restart()
    assert text in str((await house.read(accepted))["history"])


async def test_many_large_frames_at_once_are_stored_in_several_appends(house: House) -> None:
    async def flood(turn: Turn) -> None:
        await turn.status("WORKING")
        for number in range(60):
            await turn.status("WORKING", f"{number:02} " + "w" * 15_000)
        await turn.status("COMPLETED")

    house.peer.next(flood)
    accepted = await house.send("go", wait="stream")
    frames = await house.watch(accepted)
    assert len(frames) == 63
    assert (await house.record(accepted)).status is Status.COMPLETED


@pytest.mark.requirement("EVC-19")
@pytest.mark.parametrize("word", ["nonsense", "malformed"])
async def test_malformed_frame_is_one_warning_and_the_task_continues(
    house: House, word: str
) -> None:
    accepted = await house.send(word, wait="stream")
    await house.watch(accepted)
    events = await house.events(accepted)
    warnings = [e.fact.payload for e in events if isinstance(e.fact.payload, WarningRaised)]
    assert [warning.code for warning in warnings] == ["malformed_frame"]
    assert (await house.record(accepted)).status is Status.COMPLETED
    assert len(house.peer.messages) == 1


@pytest.mark.requirement("A2A-7")
async def test_unknown_state_is_recorded_and_not_interpreted(house: House) -> None:
    house.peer.hold()
    accepted = await house.send("unknown-state", wait="stream")
    house.peer.release(2)
    record = await house.until(accepted, Status.UNKNOWN)
    assert record.attempts[-1].native_status == "TASK_STATE_DREAMING"
    house.peer.release_all()
    await house.until(accepted, Status.COMPLETED)


async def test_repeated_frames_change_nothing(house: House) -> None:
    accepted = await house.send("twice", wait="stream")
    await house.watch(accepted)
    record = await house.record(accepted)
    (artifact,) = record.artifacts
    assert (artifact.version, artifact.parts) == (1, 1)
    types = await house.types(accepted)
    assert types.count("task.completed") == 1
    assert types.count("artifact.changed") == 1


async def test_large_numbers_and_fields_of_later_versions_are_passed_on(house: House) -> None:
    accepted, answer = await house.talk("numbers")
    assert str(BIG_INTEGER) in str(answer)
    assert "newInSomeLaterVersion" in str(answer)
    assert await house.read(accepted) == answer["task"]


@pytest.mark.requirement("ENV-12", "ENV-13")
async def test_vendor_events_change_no_read_model(house: House) -> None:
    accepted = await house.send("silent", wait="stream")
    await house.until(accepted, Status.QUEUED)
    for number in range(20):
        await add_vendor_event(house, task_of(accepted), number)
    (remote,) = house.peer.tasks.values()
    remote.status("COMPLETED")
    await house.until(accepted, Status.COMPLETED)
    events = await house.events(accepted)
    normalized = [e for e in events if not isinstance(e.fact.payload, VendorPayload)]
    assert len(events) == len(normalized) + 20
    assert machine.replay(normalized) == machine.replay(events)


async def add_vendor_event(house: House, task: EntityRef, number: int) -> None:
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

    driver = house.parts.dispatch.find(task.id)
    assert driver is not None
    await driver.run.append(body)


@pytest.mark.requirement("A2A-1", "A2A-9")
async def test_messages_of_an_agent_become_status_and_never_artifacts(house: House) -> None:
    async def chatty(turn: Turn) -> None:
        await turn.status("WORKING", "first I think")
        await turn.status("WORKING", "then I act")
        await turn.status("COMPLETED", "well done")

    house.peer.next(chatty)
    accepted = await house.send("go", wait="stream")
    await house.watch(accepted)
    record = await house.record(accepted)
    assert record.artifacts == ()
    assert "artifact.changed" not in await house.types(accepted)
    found = [
        getattr(event.fact.payload, "text", None)
        for event in await house.events(accepted)
        if event.type == "run.status"
    ]
    assert [text for text in found if text] == ["first I think", "then I act", "well done"]
    assert record.progress.summary == "well done"


async def test_snapshot_of_a_long_stream_stays_small(house: House) -> None:
    async def long(turn: Turn) -> None:
        for number in range(300):
            await turn.status("WORKING", f"step {number} " + "z" * 300)
        await turn.status("COMPLETED")

    house.peer.next(long)
    accepted = await house.send("go", wait="stream")
    frames = await asyncio.wait_for(house.watch(accepted), 10)
    assert len(frames) == 302
    (loaded,) = await house.store.log.load([EntityRef(EntityKind.TASK, accepted.task_id)])
    assert len(loaded.snapshot) < 16 * 1024
    assert isinstance(machine.read_snapshot(EntityKind.TASK, loaded.snapshot), TaskRecord)
