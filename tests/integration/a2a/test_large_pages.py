"""Pages of ListTasks with large tasks: a page is in memory as a whole, so it ends early; each task is read alone."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest

from passerelle.core.task.record import TaskRecord
from passerelle.core.wire.json import JsonObject
from passerelle.runtime.records import task_pages
from passerelle.runtime.records.contents import Contents
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


@pytest.mark.parametrize("by", ["all", "state", "context"])
async def test_page_ends_at_the_size_of_its_messages(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    monkeypatch.setattr(task_pages, "PAGE_BYTES", 2 * SIZE + SIZE // 2)
    text = f"done {'y' * SIZE}"
    first = await rig.send(text)
    context = first["contextId"]
    made = [first["id"], *[(await rig.send(text, contextId=context))["id"] for _ in range(4)]]
    queries: dict[str, JsonObject] = {
        "all": {},
        "state": {"status": "TASK_STATE_COMPLETED"},
        "context": {"contextId": context},
    }
    query = queries[by]
    pages = await read_pages(rig, query)
    assert [len(page) for page in pages] == [3, 2]
    assert sorted(task["id"] for page in pages for task in page) == sorted(made)
    (whole,) = await read_pages(rig, {**query, "historyLength": 0})
    assert len(whole) == 5


@pytest.mark.parametrize("query", [{}, {"status": "TASK_STATE_COMPLETED"}])
async def test_large_tasks_are_read_one_at_a_time_by_all_callers(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, query: JsonObject
) -> None:
    rig.peer.on("much", write_much)
    for _ in range(5):
        await rig.send("much")
    reading, most = 0, 0
    read_task = Contents.read_task

    async def count(
        self: Contents, record: TaskRecord, fields: Mapping[str, bytes]
    ) -> JsonObject | None:
        nonlocal reading, most
        reading += 1
        most = max(most, reading)
        await asyncio.sleep(0)
        try:
            return await read_task(self, record, fields)
        finally:
            reading -= 1

    monkeypatch.setattr(Contents, "read_task", count)
    monkeypatch.setattr(task_pages, "LARGE_BYTES", SIZE // 2)
    pages = await asyncio.gather(*(read_pages(rig, query) for _ in range(4)))
    assert [len(page) for (page,) in pages] == [5] * 4
    assert most == 1
