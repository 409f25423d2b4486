"""The overview of open work: counts by owner and status, the age of the oldest, and the store calls it takes."""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import httpx
import pytest
from starlette.applications import Starlette

from passerelle.cli.verbs.overview import describe
from passerelle.control.oversight import Oversight
from passerelle.control.overview import MOST_TASKS, Overviews
from passerelle.core.ids import shard_of
from passerelle.core.oversight_requests import GetOverview
from passerelle.core.ports.projections import IndexRow
from passerelle.core.principal import OWNER, Principal
from passerelle.core.read_models.overview import RuntimeOverview
from passerelle.core.wire.times import parse_ms
from passerelle.gateway.http.v1 import make_v1_routes
from passerelle.runtime.common.clock import SystemClock, SystemIds
from passerelle.runtime.records.lag import Lag
from passerelle.runtime.records.places import Home
from passerelle.runtime.records.task_lists import TaskLists
from passerelle.runtime.records.writes import Writes
from passerelle.store.store import Store, StoreSettings
from tests.integration.callers.test_oversight import OUT, FixedAuthenticator, get, list_reads
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

    from tests.integration.callers.rig import Answer, Instance, Rig

pytestmark = pytest.mark.anyio
MEMBER: Final = ["a2a:call", "tasks:read", "tasks:write"]
CLIENTS: Final[list[dict[str, object]]] = [
    {"name": "ada", "scopes": MEMBER},
    {"name": "bob", "scopes": MEMBER},
    {"name": "eve", "scopes": ["tasks:oversee"]},
    {"name": "far", "scopes": ["tasks:oversee"], "may_call": ["another"]},
    {"name": "ops", "scopes": ["runtime:operate"]},
]


async def send(one: Instance, who: str, text: str) -> str:
    answer = await one.send(f"{who}-key", text, returnImmediately=True)
    return str(answer.json()["result"]["task"]["id"])


async def look(one: Instance, who: str = "eve") -> Answer:
    answer = await get(one, who, "/v1/overview")
    assert answer.status_code == httpx.codes.OK, answer.text
    return dict(answer.json())


@contextmanager
def fail_with(seen: list[Answer]) -> Generator[None]:
    """Adds the last overview to a failed assertion."""
    try:
        yield
    except AssertionError as error:
        error.add_note(str(seen[-1:]))
        raise


async def until_open(one: Instance, by_status: dict[str, int], who: str = "eve") -> Answer:
    """Returns the overview once its tasks by status are ``by_status``."""

    async def read() -> Answer | None:
        seen.append(await look(one, who))
        return seen[-1] if seen[-1]["tasks"]["byStatus"] == by_status else None

    seen: list[Answer] = []
    with fail_with(seen):
        found = await wait_until(read, 20, f"the overview counts {by_status}")
    assert found is not None
    return found


async def test_tasks_of_all_owners_are_counted_and_the_longest_waiting_is_named(rig: Rig) -> None:
    one = await rig.start(clients=CLIENTS)
    assert (await look(one))["tasks"]["open"] == 0
    await send(one, "ada", "silent")
    oldest = await send(one, "bob", "ask which boat")
    await until_open(one, {"queued": 1, "waiting_input": 1})
    await send(one, "ada", "ask which tide")
    done = await one.send("ada-key", "echo over")
    assert done.is_success
    tasks = (await until_open(one, {"queued": 1, "waiting_input": 2}))["tasks"]
    assert (tasks["open"], tasks["counted"], tasks["complete"]) == (3, 3, True)
    assert (tasks["byAgent"], tasks["needPerson"]) == ({"echo": 3}, 2)
    record = (await get(one, "bob", f"/v1/tasks/{oldest}")).json()
    assert tasks["oldestWaiting"] == {
        "taskId": oldest,
        "agent": "echo",
        "status": "waiting_input",
        "since": record["statusAt"],
    }
    questions = (await look(one))["approvals"]
    assert (questions["open"], questions["complete"]) == (2, True)
    assert abs(parse_ms(questions["oldestAt"]) - parse_ms(record["statusAt"])) < 5_000
    reads = [read["payload"]["of"] for read in await list_reads(one, "eve")]
    assert reads == ["tenant:default"], "one for the hour, however often it was looked at"


async def test_approvals_of_hidden_agents_are_not_counted(rig: Rig) -> None:
    near = {"name": "near", "scopes": ["tasks:oversee"], "may_call": ["echo"]}
    one = await rig.start(clients=[*CLIENTS, near])
    for who in ("ada", "bob"):
        await send(one, who, "ask which boat")
    for who in ("eve", "near"):

        async def see_both(who: str = who) -> Answer | None:
            counted = (await look(one, who))["approvals"]
            return counted if counted["open"] == 2 else None

        counted = await wait_until(see_both, 20, f"both questions are counted for {who}")
        assert counted is not None
        assert counted["complete"] is True
        assert counted["oldestAt"]
    assert (await look(one, "far"))["approvals"] == {"open": 0, "complete": True, "oldestAt": None}


async def test_each_part_requires_its_own_scope(rig: Rig) -> None:
    one = await rig.start(clients=CLIENTS)
    await send(one, "ada", "silent")
    whole = await until_open(one, {"queued": 1})
    assert whole.keys() == {"at", "tasks", "approvals"}
    runs = await look(one, "ops")
    assert runs.keys() == {"at", "deliveries", "runtime"}
    assert runs["deliveries"] == {"failing": 0, "complete": True, "oldestAt": None}
    runtime = runs["runtime"]
    assert (runtime["instances"], runtime["shardsLed"], runtime["primaries"]) == (1, 64, 1)
    assert (runtime.get("configFault"), runtime["replicasMissing"]) == (None, False)
    assert await list_reads(one, "ops") == []
    assert (await look(one, "far"))["tasks"]["open"] == 0, "of an agent that it does not see"
    refused = await get(one, "ada", "/v1/overview")
    assert refused.status_code == httpx.codes.FORBIDDEN
    assert "tasks:oversee" in refused.text
    routes = make_v1_routes(one.gateway.parts.service, FixedAuthenticator(OUT), SystemIds())
    transport = httpx.ASGITransport(Starlette(routes=routes))
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as http:
        counted = (await http.get("/v1/overview")).json()
    assert (counted["tasks"]["open"], counted["tasks"]["byAgent"]) == (0, {}), "of another tenant"
    assert counted["approvals"]["open"] == 0
    one.gateway.terms.fault = "agents.0.url: is no URL"
    assert (await look(one, "ops"))["runtime"]["configFault"] == "agents.0.url: is no URL"


async def test_two_instances_are_reported_and_share_the_shards(rig: Rig) -> None:
    one, two = await rig.start(clients=CLIENTS), await rig.start(clients=CLIENTS)

    async def are_both_seen() -> bool:
        counted = [(await look(each, "ops"))["runtime"] for each in (one, two)]
        assert counted[0]["instance"] != counted[1]["instance"]
        return [each["instances"] for each in counted] == [2, 2] and sum(
            each["shardsLed"] for each in counted
        ) == 64

    await wait_until(are_both_seen, 30, "each instance knows the other")


async def open_overviews(rig: Rig, folder: Path, exchanges: Counter[int]) -> Overviews:
    """Returns an overview service over a store of its own, so that ``exchanges`` counts only its calls."""
    store = await Store.open(StoreSettings(rig.url, folder / "blobs", batches=exchanges))
    rig.stack.push_async_callback(store.close)
    clock = SystemClock()
    writes = Writes(store.log, clock, SystemIds(), store.runtime_id)
    lag = Lag(store.projections, clock)
    records = TaskLists(writes, store.projections, lambda: ("echo",), lag)
    oversight = Oversight(writes, Home(writes))
    return Overviews(
        records, store.list_surveys, store.targets, oversight, lambda: (OWNER,), RuntimeOverview
    )


MOST_EXCHANGES: Final = 20


async def test_store_calls_do_not_grow_with_owners_and_tasks(rig: Rig, tmp_path: Path) -> None:
    """The lists of many owners are read together. Rows without a record stand in for any number of tasks."""
    one = await rig.start(clients=CLIENTS)
    await send(one, "ada", "silent")
    await until_open(one, {"queued": 1})
    exchanges: Counter[int] = Counter()
    overviews = await open_overviews(rig, tmp_path, exchanges)
    await overviews.read(OWNER, GetOverview())
    before = sum(exchanges.values())
    overviews = await open_overviews(rig, tmp_path, exchanges)
    started = sum(exchanges.values())
    first: Any = await overviews.read(OWNER, GetOverview())
    assert first["tasks"]["complete"]
    few = sum(exchanges.values()) - started
    assert 0 < few <= MOST_EXCHANGES
    assert before > 0
    projections = one.gateway.store.projections
    for number in range(200):
        owner = Principal(f"owner-{number}").key
        rows = [IndexRow(owner, "echo", f"task_{number}_{row}", 1000 + row) for row in range(20)]
        await projections.advance(shard_of(owner), shard_of(owner), f"{number + 1}-0", rows)
    overviews = await open_overviews(rig, tmp_path, exchanges)
    started = sum(exchanges.values())
    second: Any = await overviews.read(OWNER, GetOverview())
    assert second["tasks"]["counted"] <= MOST_TASKS
    assert not second["tasks"]["complete"], "4,000 rows are more than are read"
    assert sum(exchanges.values()) - started <= MOST_EXCHANGES


async def test_concurrent_readers_query_the_store_once(rig: Rig, tmp_path: Path) -> None:
    exchanges: Counter[int] = Counter()
    overviews = await open_overviews(rig, tmp_path, exchanges)
    await overviews.look(OWNER)
    seen = sum(exchanges.values())
    for _ in range(20):
        await overviews.look(OWNER)
    assert sum(exchanges.values()) == seen


def test_overview_fits_80_columns_and_shows_ages() -> None:
    answer: Any = {
        "at": "2026-01-01T00:10:00.000Z",
        "tasks": {
            "open": 7,
            "counted": 5,
            "complete": False,
            "byStatus": {f"waiting_for_{number}": number for number in range(40)},
            "byAgent": {f"agent-with-a-name-{number}": number for number in range(30)},
            "needPerson": 3,
            "oldestWaiting": {
                "taskId": "task_" + "f" * 28,
                "agent": "a" * 128,
                "status": "waiting_permission",
                "since": "2026-01-01T00:00:00.000Z",
            },
        },
        "approvals": {"open": 3, "complete": True, "oldestAt": "2026-01-01T00:08:00.000Z"},
        "deliveries": {"failing": 0, "complete": True, "oldestAt": None},
        "runtime": {
            "instances": 2,
            "shardsLed": 32,
            "relayBehindMs": 0,
            "primaries": 3,
            "replicated": 3,
            "memoryShare": 0.5,
            "configFault": "agents.0.url: " + "is no URL " * 20,
        },
    }
    lines = [*describe(answer, parse_ms("2026-01-01T00:10:00.000Z"))]
    assert max(map(len, lines)) <= 80
    text = "\n".join(lines)
    for said in (
        "7 open, 5 of them counted",
        "waiting_permission for 10m",
        "the oldest for 2m",
        "50%",
    ):
        assert said in text
    assert "more" in text
    assert "3 primaries, 3 replicated" in text
    answer["runtime"]["primaries"] = 1
    assert "1 primary, 3 replicated" in "\n".join(describe(answer, 0))
    bare: Any = {"at": answer["at"], "tasks": None, "approvals": None}
    assert [*describe(bare, 0)] == []
