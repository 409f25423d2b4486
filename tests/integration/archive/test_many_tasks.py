"""A request makes the same store calls with a thousand tasks as with twenty thousand."""

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
"""Tasks that stay in the engine, at either count."""
ORIGINALS: Final = 12
PAGE: Final = 10
LISTED: Final = 50

TRIES: Final = 20

Asked: TypeAlias = "Counter[tuple[tuple[str, ...], int]]"
"""Store calls by their commands and number of returned values."""


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
    """A caller that counts the store calls of its requests: ``asked`` holds them by request name."""

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
    """Makes each request once and returns its store calls; ``archived`` is the last archived task."""
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
    """Returns the first store calls that repeat: at first, earlier messages may still be relayed to lists."""
    before = dict[str, Asked]()
    for archived in range(left - 1, left - TRIES, -1):
        del trips.all[:]
        calls = await read_all(at, trips, population, archived)
        if calls == before:
            return calls
        before = calls
    raise AssertionError(f"each time something else is asked: {before}")


async def test_store_calls_per_request_do_not_grow_with_the_number_of_tasks(
    rig: Rig, trips: Trips
) -> None:
    at = await rig.start(clients=[ADA])
    # One per shard: tasks in sequence take one call each, wherever a page begins.
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
            calls = await read_at_rest(at, trips, population, count - LIVE)
            writer = Reader(at, trips)
            await writer.send("a message", f"key-{count}")
            asked.append({**calls, **writer.asked})
    few, many = asked
    assert few == many
