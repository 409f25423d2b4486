"""The same asks the same of the store, whether there are a thousand tasks or twenty thousand."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeAlias

import httpx
import pytest

from passerelle.core.ids import Shard
from passerelle.core.wire.json import JsonObject
from tests.integration.archive.test_archived_reads import open_store
from tests.integration.callers.rig import Instance, Rig, run_rig
from tests.integration.devices.asking import ADA, bearer
from tests.support.copies import TaskCopies, TaskPopulation, record_task
from tests.support.engine import Server, engine_server, started_legs
from tests.support.store_trips import Trips, watch

__all__ = ["engine_server", "started_legs"]
pytestmark = pytest.mark.anyio

FEW: Final = 1_000
MANY: Final = 20_000
LIVE: Final = 100
"""At either count, so many are still in the engine."""
ORIGINALS: Final = 12
PAGE: Final = 10
LISTED: Final = 50

TRIES: Final = 20

Asked: TypeAlias = "Counter[tuple[tuple[str, ...], int]]"
"""Calls by their commands and by how many values came back."""


@pytest.fixture
def trips(monkeypatch: pytest.MonkeyPatch) -> Trips:
    return watch(monkeypatch)


@pytest.fixture
async def rig(
    engine_server: Server, tmp_path: Path, anyio_backend: str, trips: Trips
) -> AsyncGenerator[Rig]:
    async with run_rig(engine_server.url, tmp_path) as opened:
        yield opened


@dataclass(slots=True)
class Reader:
    """A caller whose requests are counted: ``asked`` is what each asked of the store, by its name."""

    at: Instance
    trips: Trips
    asked: dict[str, Asked] = field(default_factory=dict[str, Asked])

    async def call(self, name: str, method: str, params: JsonObject) -> dict[str, Any]:
        before = len(self.trips.all)
        answer = await self.at.call("ada-key", method, params)
        return self._note(name, answer, before)

    async def get(self, name: str, path: str) -> dict[str, Any]:
        before = len(self.trips.all)
        answer = await self.at.http.get(path, headers=bearer("ada"))
        return self._note(name, answer, before)

    async def send(self, name: str, key: str) -> None:
        before, headers = len(self.trips.all), {**bearer("ada"), "Idempotency-Key": key}
        call = {
            "jsonrpc": "2.0",
            "id": 1,
            "method": "SendMessage",
            "params": self.at.message("hello"),
        }
        answer = await self.at.http.post("/agents/echo", json=call, headers=headers)
        self._note(name, answer, before)

    def _note(self, name: str, answer: httpx.Response, before: int) -> dict[str, Any]:
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        assert "error" not in found, found
        own = [one for one in self.trips.all[before:] if one.errand[0] in ("call", "request")]
        self.asked[name] = Counter((one.names, one.values) for one in own)
        assert self.asked[name], f"{name} asked nothing"
        result: dict[str, Any] = found.get("result", found)
        return result


async def read_all(
    at: Instance, trips: Trips, population: TaskPopulation, archived: int
) -> dict[str, Asked]:
    """What a caller does, and what each asks of the store; ``archived`` was the last to leave."""
    reader = Reader(at, trips)
    await reader.call("a task", "GetTask", {"id": population.name_task(archived + TRIES)})
    await reader.call("an archived task", "GetTask", {"id": population.name_task(archived)})
    await reader.get("a task over /v1", f"/v1/tasks/{population.name_task(archived + 2 * TRIES)}")
    size: JsonObject = {"pageSize": PAGE}
    page = await reader.call("a page", "ListTasks", size)
    page = await reader.call(
        "the next page", "ListTasks", {**size, "pageToken": page["nextPageToken"]}
    )
    assert len(page["tasks"]) == PAGE
    completed: JsonObject = {**size, "status": "TASK_STATE_COMPLETED", "includeArtifacts": True}
    await reader.call("a page of a status, whole", "ListTasks", completed)
    listed = await reader.get("a list over /v1", "/v1/tasks")
    assert len(listed["tasks"]) == LISTED
    return reader.asked


async def read_at_rest(
    at: Instance, trips: Trips, population: TaskPopulation, left: int
) -> dict[str, Asked]:
    """What is asked twice in a row: at first, what was sent before may still be passed on to lists."""
    before = dict[str, Asked]()
    for archived in range(left - 1, left - TRIES, -1):
        del trips.all[:]
        told = await read_all(at, trips, population, archived)
        if told == before:
            return told
        before = told
    raise AssertionError(f"each time something else is asked: {before}")


async def test_the_store_is_asked_the_same_of_few_tasks_and_of_many(rig: Rig, trips: Trips) -> None:
    at = await rig.start(clients=[ADA])
    # Of each shard one: tasks that follow each other are asked for in as many calls, wherever a page begins.
    originals = dict[Shard, TaskCopies]()
    while len(originals) < ORIGINALS:
        one = await record_task(at, "ada", "hello")
        originals.setdefault(one.shard, one)
    async with await open_store(rig) as store:
        population = TaskPopulation(store, [*originals.values()])
        asked, last = list[dict[str, Asked]](), 0
        for count in (FEW, MANY):
            await population.write_all(range(last, count))
            await population.archive(range(max(0, last - LIVE), count - LIVE))
            last = count
            told = await read_at_rest(at, trips, population, count - LIVE)
            writer = Reader(at, trips)
            await writer.send("a message", f"key-{count}")
            asked.append({**told, **writer.asked})
    few, many = asked
    assert few == many
