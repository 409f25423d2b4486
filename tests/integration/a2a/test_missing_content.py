"""Content that the blob store has lost: the rest is answered, the missing parts are named, and no list fails."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from passerelle.delegation.verification.report import VerifyReport
from passerelle.delegation.verification.walk import verify_store
from passerelle.runtime.records.long_content import MISSING
from passerelle.store.store import Store, StoreSettings
from tests.integration.a2a.rig import Answer, run_rig
from tests.support.engine import Server

pytestmark = pytest.mark.anyio


def list_lost(task: Answer) -> list[str]:
    """Returns the hashes of the placeholder parts in artifacts and history."""
    holders = [*task.get("artifacts", []), *task.get("history", [])]
    parts = [part for holder in holders for part in holder["parts"]]
    return [
        part["metadata"][MISSING]["sha256"] for part in parts if MISSING in part.get("metadata", {})
    ]


async def verify(server: Server, blobs: Path) -> VerifyReport:
    async with await Store.open(StoreSettings(server.url, blobs)) as store:
        return await verify_store(store)


@pytest.mark.parametrize("large", ["answer", "question", "both"])
async def test_task_with_lost_content_is_answered_with_the_rest(
    engine_server: Server, tmp_path: Path, large: str
) -> None:
    blobs = tmp_path / "blobs"
    async with run_rig(engine_server, blobs) as rig:
        text = {"answer": "big", "question": "hello " + "x" * 40_000, "both": "big" + " " * 40_000}
        whole = await rig.send("hello")
        damaged = await rig.send(text[large])
        assert (await verify(engine_server, blobs)).lines == []
        [*kept] = [path for path in blobs.rglob("*") if path.is_file()]
        assert kept, "some of it is stored in blobs"
        shutil.rmtree(blobs)

        found = await rig.call("GetTask", {"id": damaged["id"]})
        assert found["status"]["state"] == damaged["status"]["state"]
        assert found["contextId"] == damaged["contextId"]
        names = [one["artifactId"] for one in damaged.get("artifacts", [])]
        assert [one["artifactId"] for one in found.get("artifacts", [])] == names
        lost = list_lost(found)
        assert lost
        gone = {path.name for path in kept}
        assert {one["sha256"] for one in found["metadata"][MISSING]} <= gone
        assert await rig.call("GetTask", {"id": whole["id"]}) == whole

        page = await rig.call("ListTasks", {"includeArtifacts": True})
        listed = {one["id"]: one for one in page["tasks"]}
        assert listed.keys() >= {whole["id"], damaged["id"]}
        assert list_lost(listed[damaged["id"]]) == lost

        report = await verify(engine_server, blobs)
        assert {problem.kind for problem in report.problems} == {"content"}
        named = {problem.detail.split()[1] for problem in report.problems}
        assert named == gone

        again = await rig.send(text[large])
        assert not list_lost(await rig.call("GetTask", {"id": again["id"]})), (
            "new content is kept again"
        )


async def test_content_of_another_length_is_detected(engine_server: Server, tmp_path: Path) -> None:
    blobs = tmp_path / "blobs"
    async with run_rig(engine_server, blobs) as rig:
        await rig.send("big")
        for path in blobs.rglob("*"):
            if path.is_file():
                path.write_bytes(path.read_bytes()[:-1])
        report = await verify(engine_server, blobs)
        assert {problem.kind for problem in report.problems} == {"content"}
