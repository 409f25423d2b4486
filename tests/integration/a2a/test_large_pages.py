"""Pages of ListTasks with artifacts: one page is in memory as a whole, so it ends early where they are large."""

from __future__ import annotations

import pytest

from passerelle.core.wire.json import JsonObject
from passerelle.runtime.records import task_pages
from tests.integration.a2a.rig import Answer, Rig
from tests.support.scripted_tasks import Turn

pytestmark = pytest.mark.anyio

SIZE = 1_000


async def write_much(turn: Turn) -> None:
    await turn.artifact("y" * SIZE)
    await turn.status("COMPLETED")


async def read_pages(rig: Rig, query: JsonObject) -> list[list[Answer]]:
    """Returns the tasks of each page, to the last one."""
    pages: list[list[Answer]] = []
    token = ""
    while not pages or token:
        page = await rig.call("ListTasks", {"pageToken": token, **query})
        pages.append(page["tasks"])
        token = page["nextPageToken"]
        assert page["totalSize"] == 5
    return pages


@pytest.mark.parametrize("by", ["all", "state", "context"])
async def test_page_with_artifacts_ends_at_its_size_and_no_task_is_left_out(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    monkeypatch.setattr(task_pages, "PAGE_BYTES", 2 * SIZE + SIZE // 2)
    rig.peer.on("much", write_much)
    first = await rig.send("much")
    context = first["contextId"]
    made = [first["id"], *[(await rig.send("much", contextId=context))["id"] for _ in range(4)]]
    queries: dict[str, JsonObject] = {
        "all": {},
        "state": {"status": "TASK_STATE_COMPLETED"},
        "context": {"contextId": context},
    }
    query = queries[by]
    wide: JsonObject = {"includeArtifacts": True, **query}
    pages = await read_pages(rig, wide)
    assert [len(page) for page in pages] == [2, 2, 1]
    assert sorted(task["id"] for page in pages for task in page) == sorted(made)
    assert all(len(task["artifacts"]) == 1 for page in pages for task in page)
    (whole,) = await read_pages(rig, query)
    assert [task["id"] for task in whole] == [task["id"] for page in pages for task in page]
    monkeypatch.setattr(task_pages, "PAGE_BYTES", SIZE // 2)
    pages = await read_pages(rig, wide)
    assert [len(page) for page in pages] == [1] * 5
