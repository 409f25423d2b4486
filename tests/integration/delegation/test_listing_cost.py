"""What a page of a list costs the store: the content of its own tasks, and records many at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import cast

import pytest

from passerelle.core.batch import EntityRef, Loaded
from passerelle.core.commands import ListTasks
from passerelle.core.json import JsonObject
from passerelle.core.ports import Entry, StreamRef
from tests.support.faults import FaultyLog
from tests.support.house import ADA, House

pytestmark = pytest.mark.anyio


@dataclass(slots=True)
class CountingLog(FaultyLog):
    """Counts the reads that go through it."""

    reads: list[str] = field(default_factory=list[str])
    loaded: int = 0

    async def load(self, refs: Sequence[EntityRef]) -> list[Loaded]:
        self.reads.append("load")
        self.loaded += len(refs)
        return await self.log.load(refs)

    async def read_page(self, stream: StreamRef, after: int, limit: int = 256) -> list[Entry]:
        self.reads.append("page")
        return await self.log.read_page(stream, after, limit)


async def test_page_reads_its_own_tasks_only(house: House) -> None:
    for number in range(9):
        await house.talk(f"number {number}")
    counting = CountingLog(house.log.log)
    writes = house.service.writes
    contents = replace(house.service.contents, log=counting)
    writes.log = counting
    listing = house.service.listing
    listing.contents = contents
    page = await listing.list_tasks(ADA, ListTasks("echo", page_size=2))
    assert (page["totalSize"], len(cast("list[JsonObject]", page["tasks"]))) == (9, 2)
    assert page["nextPageToken"]
    assert (counting.reads.count("load"), counting.loaded) == (1, 2)
    assert counting.reads.count("page") <= 2
