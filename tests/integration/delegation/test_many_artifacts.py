"""Tasks with more artifacts than one append holds: each is recorded, and callers see the whole task."""

from __future__ import annotations

from typing import Any, cast

import orjson
import pytest

from passerelle.core.batch import Batch
from passerelle.core.errors import InvalidAgentResponse
from passerelle.core.events import Event
from passerelle.core.ids import shard_of
from passerelle.core.payloads.run import ArtifactChanged
from passerelle.core.payloads.task import TaskCompleted
from passerelle.core.task.record import KEPT_ARTIFACTS
from passerelle.core.task.status import Status
from passerelle.core.wire.json import JsonObject
from passerelle.delegation.runs import artifacts
from passerelle.delegation.verification.walk import verify_store
from tests.support.control_client import ControlClient
from tests.support.harness import Harness, task_of
from tests.support.proof import SNAPSHOT_CAP
from tests.support.scripted_tasks import Turn, TurnScript
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio

MANY = 150


def send_artifacts(number: int, state: str = "COMPLETED") -> TurnScript:
    """An agent that sends this number of artifacts at once."""

    async def send_all(turn: Turn) -> None:
        task = await turn.open()
        for count in range(number):
            task.artifact([{"text": f"part {count}"}], artifact_id=f"a-{count}")
        await turn.status(state, "there")

    return send_all


def find_changed(events: list[Event]) -> list[ArtifactChanged]:
    payloads = [event.fact.payload for event in events]
    return [payload for payload in payloads if isinstance(payload, ArtifactChanged)]


@pytest.mark.requirement("EVC-14", "A2A-10", "GR-7")
@pytest.mark.parametrize("state", ["COMPLETED", "FAILED", "INPUT_REQUIRED"])
async def test_task_with_many_artifacts_is_stored_in_several_appends(
    harness: Harness, state: str
) -> None:
    harness.peer.next(send_artifacts(MANY, state))
    accepted, answer = await harness.talk("go")
    task = cast("JsonObject", answer["task"])
    assert len(cast("list[JsonObject]", task["artifacts"])) == MANY
    changed = find_changed(await harness.events(accepted))
    assert len({one.artifact_id for one in changed}) == len(changed) == MANY
    assert {one.version for one in changed} == {1}
    record = await harness.record(accepted)
    assert (record.artifact_count, len(record.artifacts)) == (MANY, KEPT_ARTIFACTS)
    edges = [edge for edge in record.relationships if edge.kind == "produced_artifact"]
    assert [edge.target for edge in edges] == [one.artifact_id for one in changed]
    assert await harness.read(accepted) == task
    frames = [event for event in await harness.events(accepted) if event.fact.facade]
    assert len(frames) == 1, "callers see one frame: the whole task"


@pytest.mark.requirement("EVC-14", "A2A-10", "GR-7")
async def test_artifacts_beyond_the_record_are_read_like_the_first_after_a_restart(
    harness: Harness,
) -> None:
    harness.peer.next(send_artifacts(40))
    accepted, _ = await harness.talk("go")
    control = ControlClient(harness)
    changed = find_changed(await harness.events(accepted))
    await harness.restart()
    task: Any = await control.do("get_task", taskId=accepted.task_id)
    summary: Any = await control.do("get_task_summary", taskId=accepted.task_id)
    listed: Any = await control.do("get_artifacts", taskId=accepted.task_id)
    wanted = [one.artifact_id for one in changed]
    assert len(set(wanted)) == 40
    for read in (task, summary):
        edges = [one for one in read["relationships"] if one["kind"] == "produced_artifact"]
        assert [one["target"] for one in edges] == wanted
        assert {one["status"] for one in edges} == {"satisfied"}
        refs = {one["artifactId"]: (one["sha256"], one["last"] > 0) for one in read["artifacts"]}
        assert refs == {one.artifact_id: (one.sha256, True) for one in changed}
    assert [one["artifactId"] for one in listed["artifacts"]] == wanted
    assert {len(one["versions"]) for one in listed["artifacts"]} == {1}
    assert "artifacts" not in listed["marks"]
    (loaded,) = await harness.store.log.load([task_of(accepted)])
    assert len(loaded.snapshot) <= SNAPSHOT_CAP
    assert (await verify_store(harness.store)).ok


async def test_completion_lists_every_artifact_by_reference(harness: Harness) -> None:
    harness.peer.next(send_artifacts(MANY))
    accepted, _ = await harness.talk("go")
    events = await harness.events(accepted)
    (completed,) = [event for event in events if event.type == "task.completed"]
    payload = cast("TaskCompleted", completed.fact.payload)
    assert (payload.artifact_count, len(payload.artifacts)) == (MANY, KEPT_ARTIFACTS)
    blob = await harness.blobs.get(
        shard_of(accepted.task_id), completed.fact.refs["artifacts"].blob or ""
    )
    listed = cast("list[JsonObject]", orjson.loads(blob or b"[]"))
    changed = find_changed(events)
    assert sorted(str(one["artifactId"]) for one in listed) == sorted(
        one.artifact_id for one in changed
    )


async def test_artifacts_are_recorded_once_across_a_restart(harness: Harness) -> None:
    async def refuse_further_writes(batch: Batch) -> None:
        if any(event.type == "artifact.changed" for event in batch.events):
            harness.log.refuses_writes = True

    harness.log.after_append = refuse_further_writes
    harness.peer.next(send_artifacts(MANY))
    accepted = await harness.send("go")
    await wait_until(lambda: harness.log.refused > 0, 10, "the store refuses writes half way")
    harness.log.after_append = None
    await harness.parts.dispatch.drain()
    harness.log.refuses_writes = False
    await harness.start()
    before = find_changed(await harness.events(accepted))
    assert 0 < len(before) < MANY
    await harness.adopt(accepted)
    await harness.until(accepted, Status.COMPLETED)
    changed = find_changed(await harness.events(accepted))
    assert len({one.name_at_peer for one in changed}) == len(changed) == MANY


async def test_missed_artifacts_are_sent_as_one_update_each(harness: Harness) -> None:
    async def send_all(turn: Turn) -> None:
        task = await turn.open()
        await turn.status("WORKING", "a moment")
        task.record["artifacts"] = [
            {"artifactId": f"a-{count}", "parts": [{"text": f"part {count}"}]}
            for count in range(MANY)
        ]
        await turn.drop()
        task.status("COMPLETED")

    harness.peer.next(send_all)
    accepted = await harness.send("go", wait="stream")
    frames = await harness.watch(accepted)
    assert sum("artifactUpdate" in frame for frame in frames) == MANY
    assert "statusUpdate" in frames[-1]
    assert (await harness.record(accepted)).artifact_count == MANY


@pytest.mark.requirement("A2A-10")
async def test_artifact_beyond_the_record_gets_a_second_version(harness: Harness) -> None:
    async def send_one_twice(turn: Turn) -> None:
        task = await turn.open()
        for count in range(KEPT_ARTIFACTS + 2):
            task.artifact([{"text": "one"}], artifact_id=f"a-{count}")
        last = f"a-{KEPT_ARTIFACTS + 1}"
        task.artifact([{"text": "two"}], artifact_id=last)
        await turn.status("COMPLETED")

    harness.peer.next(send_one_twice)
    accepted = await harness.send("go", wait="stream")
    await harness.watch(accepted)
    first, second = [
        one
        for one in find_changed(await harness.events(accepted))
        if one.name_at_peer == f"a-{KEPT_ARTIFACTS + 1}"
    ]
    assert (first.version, second.version) == (1, 2)
    assert first.artifact_id == second.artifact_id == second.replaces
    assert (await harness.record(accepted)).artifact_count == KEPT_ARTIFACTS + 2


async def test_task_over_the_artifact_limit_fails_before_any_is_stored(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(artifacts, "MOST_ARTIFACTS", MANY)
    harness.peer.next(send_artifacts(MANY + 1, "INPUT_REQUIRED"))
    accepted = await harness.send("go")
    with pytest.raises(InvalidAgentResponse, match="list of artifacts"):
        await harness.await_answer(accepted)
    record = await harness.record(accepted)
    assert (record.status, record.artifact_count) == (Status.FAILED, 0)
