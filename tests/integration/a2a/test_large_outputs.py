"""Outputs of agents are limited, and large ones are read in pieces."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import orjson
import pytest

from passerelle.a2a_mapping.extensions import RESUME
from passerelle.core.wire.json import JsonObject
from passerelle.delegation.runs.peer_profile import PeerTerms
from passerelle.delegation.runs.volume import LARGE_BYTES, OutputLimits
from passerelle.runtime.records.contents import Contents
from passerelle.runtime.records.long_content import MISSING
from passerelle.store.blobs import DirectoryBlobs
from tests.integration.a2a.rig import PATIENCE, Rig
from tests.support.scripted_tasks import Turn
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio


def bring(rig: Rig, *texts: str, artifacts: int = 1) -> None:
    async def story(turn: Turn) -> None:
        for number in range(artifacts):
            for place, text in enumerate(texts):
                name = f"art-{number}"
                last = place == len(texts) - 1
                await turn.artifact(text, artifact_id=name, append=place > 0, last=last)
        await turn.status("COMPLETED")

    rig.peer.next(story)


def limit(rig: Rig, limits: OutputLimits) -> None:
    rig.terms["echo"] = replace(rig.terms.get("echo", PeerTerms(PATIENCE)), limits=limits)


@pytest.mark.parametrize("size", [100, 20_000, 700_000])
@pytest.mark.parametrize("artifacts", [1, 4], ids=["one artifact", "many"])
async def test_agent_over_the_output_limit_is_stopped_and_its_output_so_far_stays(
    rig: Rig, size: int, artifacts: int
) -> None:
    limits = OutputLimits(3 * size, 3 * size * artifacts)
    if artifacts == 1:
        bring(rig, *["x" * size] * 5)
    else:
        limits = OutputLimits(10 * size, 3 * size)
        bring(rig, "x" * size, artifacts=5)
    limit(rig, limits)
    events = await rig.collect("SendStreamingMessage", rig.message("go"))
    pieces = [one.result for one in events if "artifactUpdate" in one.result]
    assert len(pieces) == 3
    status = events[-1].result["statusUpdate"]["status"]
    assert status["state"] == "TASK_STATE_FAILED"
    (part,) = status["message"]["parts"]
    named = "artifact_bytes" if artifacts == 1 else "task_bytes"
    assert named in part["text"]
    assert str(3 * size) in part["text"]
    task_id = events[0].result["task"]["id"]
    task = await rig.call("GetTask", {"id": task_id})
    texts = ["".join(part["text"] for part in one["parts"]) for one in task["artifacts"]]
    assert "".join(texts) == "x" * 3 * size
    await wait_until(lambda: rig.peer.count("CancelTask") == 1, 10, "the agent receives the cancel")


async def test_agent_whose_status_metadata_grows_without_bound_is_stopped(rig: Rig) -> None:
    async def story(turn: Turn) -> None:
        task = await turn.open()
        status: JsonObject = {"state": "TASK_STATE_WORKING"}
        for number in range(60):
            update: JsonObject = {
                "taskId": task.id,
                "contextId": task.context_id,
                "status": status,
                "metadata": {f"k-{number}": "x" * 1_000},
            }
            await turn.tell({"statusUpdate": update})
        await asyncio.Event().wait()

    rig.peer.next(story)
    limit(rig, OutputLimits(held_bytes=65_536))
    events = await rig.collect("SendStreamingMessage", rig.message("go"))
    status = events[-1].result["statusUpdate"]["status"]
    assert status["state"] == "TASK_STATE_FAILED"
    assert "memory.budget_bytes" in status["message"]["parts"][0]["text"]
    await wait_until(lambda: rig.peer.count("CancelTask") == 1, 10, "the agent receives the cancel")


async def test_an_artifact_of_exactly_the_limit_is_accepted(rig: Rig) -> None:
    limit(rig, OutputLimits(3_000, 3_000))
    bring(rig, *["x" * 1_000] * 3)
    events = await rig.collect("SendStreamingMessage", rig.message("go"))
    assert events[-1].result["statusUpdate"]["status"]["state"] == "TASK_STATE_COMPLETED"
    assert rig.peer.count("CancelTask") == 0


@pytest.mark.parametrize("size", [LARGE_BYTES // 8, LARGE_BYTES // 2, LARGE_BYTES])
async def test_a_task_is_equal_over_every_way_to_read_it(rig: Rig, size: int) -> None:
    bring(rig, *[f"{number}ä" * (size // 3) for number in range(4)])
    events = await rig.collect("SendStreamingMessage", rig.message("go"))
    params: JsonObject = {"id": events[0].result["task"]["id"]}
    plain = await rig.post("GetTask", params)
    assert int(plain.headers["content-length"]) == len(plain.content)
    task = orjson.loads(plain.content)["result"]
    (artifact,) = task["artifacts"]
    assert "".join(part["text"] for part in artifact["parts"]) == "".join(
        f"{number}ä" * (size // 3) for number in range(4)
    )
    marked = orjson.loads((await rig.post("GetTask", params, **{"A2A-Extensions": RESUME})).content)
    assert RESUME in marked["result"].pop("metadata")
    assert marked["result"] == task
    whole = await rig.call("GetTask", {**params, "historyLength": 100})
    assert whole == task
    rest = await rig.http.get(f"/agents/echo/tasks/{params['id']}", headers={"A2A-Version": "1.0"})
    assert rest.json() == task


@pytest.mark.parametrize("binding", ["JSON-RPC", "HTTP+JSON", "0.3"])
async def test_cancel_of_a_large_task_is_answered_from_the_store(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, binding: str
) -> None:
    async def story(turn: Turn) -> None:
        for number in range(4):
            await turn.artifact("x" * 700_000, artifact_id="a", append=number > 0, last=False)
        await asyncio.Event().wait()

    rig.peer.next(story)
    opened = await rig.call(
        "SendMessage", rig.message("go", configuration={"returnImmediately": True})
    )
    params: JsonObject = {"id": opened["task"]["id"]}

    async def is_there() -> bool:
        (artifact,) = (await rig.call("GetTask", params)).get("artifacts", [{"parts": []}])
        return len(artifact["parts"]) == 4

    await wait_until(is_there, 10, "the agent has brought it")

    async def refuse(*_: object) -> None:
        raise AssertionError("all of it was read at once")

    with monkeypatch.context() as patch:
        patch.setattr(Contents, "read_task", refuse)
        if binding == "JSON-RPC":
            cancelled = await rig.call("CancelTask", params)
        elif binding == "0.3":
            answer = await rig.post("tasks/cancel", params, **{"A2A-Version": "0.3"})
            cancelled = answer.json()["result"]
        else:
            path = f"/agents/echo/tasks/{params['id']}:cancel"
            answer = await rig.http.post(path, json={}, headers={"A2A-Version": "1.0"})
            cancelled = answer.json()
    (artifact,) = cancelled["artifacts"]
    assert [part["text"] for part in artifact["parts"]] == ["x" * 700_000] * 4
    assert cancelled["status"]["state"] in {"TASK_STATE_CANCELED", "canceled"}


async def test_a_task_without_its_assembled_content_is_read_from_its_frames(rig: Rig) -> None:
    bring(rig, *["x" * LARGE_BYTES] * 2)
    events = await rig.collect("SendStreamingMessage", rig.message("go"))
    params: JsonObject = {"id": events[0].result["task"]["id"]}
    before = await rig.call("GetTask", params)
    blobs = rig.parts.dispatch.blobs
    assert isinstance(blobs, DirectoryBlobs)
    files = [one for one in blobs.root.rglob("*") if one.is_file()]
    max(files, key=lambda one: one.stat().st_size).unlink()
    after = await rig.call("GetTask", params)
    assert after["artifacts"] == before["artifacts"]


async def test_a_large_running_task_with_lost_chunks_is_answered_with_the_rest(
    rig: Rig,
) -> None:
    rest, texts = asyncio.Event(), [letter * LARGE_BYTES for letter in "abc"]

    async def story(turn: Turn) -> None:
        for number, text in enumerate(texts):
            await turn.artifact(text, artifact_id=f"art-{number}")
        await rest.wait()
        await turn.status("COMPLETED")

    rig.peer.next(story)
    params = rig.message("go", configuration={"returnImmediately": True})
    task_id = (await rig.call("SendMessage", params))["task"]["id"]

    async def has_all() -> bool:
        found = await rig.call("GetTask", {"id": task_id})
        return len(found.get("artifacts", [])) == len(texts)

    await wait_until(has_all, 20, "all chunks are stored")
    blobs = rig.parts.dispatch.blobs
    assert isinstance(blobs, DirectoryBlobs)
    files = [one for one in blobs.root.rglob("*") if one.is_file()]
    gone = [one for one in files if b"b" * 1_000 in one.read_bytes()]
    for one in gone:
        one.unlink()
    answer = await rig.post("GetTask", {"id": task_id})
    assert answer.status_code == 200
    task = orjson.loads(answer.content)["result"]
    whole = [one["parts"][0]["text"] for one in task["artifacts"]]
    assert [text in whole for text in texts] == [True, False, True]
    lost = {one["sha256"] for one in task["metadata"][MISSING]}
    assert lost
    assert lost <= {one.name for one in gone}
    rest.set()


@pytest.mark.parametrize("size", [1_000, 20_000, 300_000])
async def test_a_running_task_is_equal_over_every_way_to_read_it(rig: Rig, size: int) -> None:
    rest = asyncio.Event()

    async def story(turn: Turn) -> None:
        for number in range(4):
            # Equal chunks share one blob, and one chunk is contained in another.
            text = "z" * (size if number < 2 else 2 * size)
            await turn.artifact(text, artifact_id="a", append=number > 0, last=False)
        await turn.artifact("ö", artifact_id="b")
        await rest.wait()
        await turn.status("COMPLETED")

    rig.peer.next(story)
    async with rig.stream("SendStreamingMessage", rig.message("go")) as events:
        params: JsonObject = {"id": (await anext(events)).result["task"]["id"]}
        for _ in range(5):
            await anext(events)
        whole = await rig.call("GetTask", {**params, "historyLength": 100})
        assert [len(one["parts"]) for one in whole["artifacts"]] == [4, 1]
        assert await rig.call("GetTask", params) == whole
        for headers in ({}, {"A2A-Extensions": RESUME}):
            async with rig.stream("SubscribeToTask", params, **headers) as again:
                task = (await anext(again)).result["task"]
                assert (RESUME in task.pop("metadata", {})) is bool(headers)
                assert task == whole
        rest.set()
        assert [event async for event in events]
