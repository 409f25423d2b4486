"""Store reads of a page of a task list: the content of its own tasks only, and records in bulk."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import cast

import pytest

from passerelle.a2a_mapping.members import object_at, text_at
from passerelle.core.batch import EntityRef, Loaded
from passerelle.core.commands import ListTasks
from passerelle.core.ports.log import Entry, StreamRef
from passerelle.core.wire.json import JsonObject
from tests.support.faults import FaultyLog
from tests.support.harness import ADA, Harness

pytestmark = pytest.mark.anyio


@dataclass(slots=True)
class CountingLog(FaultyLog):
    """Counts reads, and loads of the test's own asyncio task only: drivers of open tasks load at any time."""

    reads: list[str] = field(default_factory=list[str])
    loaded: int = 0
    reader: asyncio.Task[object] | None = field(default_factory=asyncio.current_task)

    async def load(self, refs: Sequence[EntityRef]) -> list[Loaded]:
        if asyncio.current_task() is self.reader:
            self.reads.append("load")
            self.loaded += len(refs)
        return await self.log.load(refs)

    async def read_page(self, stream: StreamRef, after: int, limit: int = 256) -> list[Entry]:
        self.reads.append("page")
        return await self.log.read_page(stream, after, limit)

    async def read_frame(self, stream: StreamRef, sequence: int) -> bytes:
        self.reads.append("frame")
        return await self.log.read_frame(stream, sequence)


async def test_page_reads_its_own_tasks_only(harness: Harness) -> None:
    for number in range(9):
        await harness.talk(f"number {number}")
    counting = CountingLog(harness.log.log)
    writes = harness.parts.writes
    contents = replace(harness.parts.contents, log=counting)
    writes.log = counting
    listing = harness.parts.tasks.listing
    listing.contents = contents
    page = await listing.list_tasks(ADA, ListTasks("echo", page_size=2))
    assert (page["totalSize"], len(cast("list[JsonObject]", page["tasks"]))) == (9, 2)
    assert page["nextPageToken"]
    assert (counting.reads.count("load"), counting.loaded) == (1, 2)
    assert counting.reads.count("page") + counting.reads.count("frame") <= 2


async def test_filter_by_state_reads_open_tasks_and_its_own_page_only(harness: Harness) -> None:
    for number in range(9):
        await harness.talk(f"number {number}")
    asked = [await harness.send("ask which?") for _ in range(2)]
    for accepted in asked:
        await harness.await_answer(accepted)
    await harness.parts.dispatch.drain()  # drivers read as well
    counting = CountingLog(harness.log.log)
    harness.parts.writes.log = counting
    listing = harness.parts.tasks.listing
    listing.contents = replace(harness.parts.contents, log=counting)

    async def count(state: str, size: int = 3) -> tuple[int, int, int]:
        counting.loaded = 0
        page = await listing.list_tasks(ADA, ListTasks("echo", state=state, page_size=size))
        tasks = cast("list[JsonObject]", page["tasks"])
        assert {text_at(object_at(task, "status"), "state") for task in tasks} <= {state}
        return cast("int", page["totalSize"]), len(tasks), counting.loaded

    # Both open tasks are read each time; of the ended tasks only those of the page.
    assert await count("TASK_STATE_COMPLETED") == (9, 3, 2 + 3)
    assert await count("TASK_STATE_FAILED") == (0, 0, 2)
    assert await count("TASK_STATE_INPUT_REQUIRED") == (2, 2, 2 + 2)
    assert await count("TASK_STATE_INPUT_REQUIRED", 1) == (2, 1, 2 + 1)


async def test_task_that_has_just_ended_is_listed_once_under_its_new_state(
    harness: Harness,
) -> None:
    """No relay runs here: a task that ended after it was listed as open is found all the same (LT-7)."""
    first = await harness.send("ask which?")
    await harness.await_answer(first)
    for number in range(3):
        await harness.talk(f"number {number}")
    await harness.await_answer(await harness.send("blue", task=first.facade))
    listing = harness.parts.tasks.listing
    seen: list[str] = []
    token: str | None = None
    while token != "":
        query = ListTasks("echo", state="TASK_STATE_COMPLETED", page_size=1, page_token=token)
        page = await listing.list_tasks(ADA, query)
        assert page["totalSize"] == 4
        seen += [text_at(task, "id") for task in cast("list[JsonObject]", page["tasks"])]
        token = cast("str", page["nextPageToken"])
    assert len(seen) == len(set(seen)) == 4
    assert seen[0] == first.facade
    waiting = ListTasks("echo", state="TASK_STATE_INPUT_REQUIRED")
    assert (await listing.list_tasks(ADA, waiting))["totalSize"] == 0
