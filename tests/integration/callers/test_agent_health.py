"""Agent health for operators: calls, limits, breakers and card, without the agent's address or key."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import httpx
import pytest

from passerelle.cli.verbs.agents import describe_health
from passerelle.core.wire.times import parse_ms
from tests.integration.callers.test_oversight import get
from tests.support.engine import ask as ask_engine
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from tests.integration.callers.rig import Rig

pytestmark = pytest.mark.anyio
SECRET: Final = "a-key-of-the-agent"
CLIENTS: Final[list[dict[str, object]]] = [
    {"name": "ada", "scopes": ["a2a:call", "tasks:read"]},
    {"name": "eve", "scopes": ["tasks:oversee"]},
    {"name": "far", "scopes": ["tasks:oversee"], "may_call": ["another"]},
    {"name": "ops", "scopes": ["runtime:operate"]},
]


async def test_health_shows_calls_limits_and_the_card(rig: Rig) -> None:
    (rig.folder / "key").write_text(SECRET, "utf-8")
    (rig.folder / "key").chmod(0o600)
    agent = {
        "limits": {"concurrency": 3, "rate": "60/m"},
        "auth": {"api_key": {"file": str(rig.folder / "key"), "name": "X-Key"}},
    }
    one = await rig.start(clients=CLIENTS, agent=agent)
    unseen = (await get(one, "ops", "/v1/agents/echo/health")).json()
    assert (unseen["status"], unseen["calls"]["outcomes"]) == ("unknown", {})
    for text in ("echo one", "echo two", "silent"):
        sent = await one.send("ada-key", text, returnImmediately=text == "silent")
        assert sent.is_success
    answer = await get(one, "eve", "/v1/agents/echo/health")
    health = answer.json()
    assert (health["name"], health["status"], health["rests"]) == ("echo", "ready", False)
    assert health["calls"]["outcomes"]["answered"] >= 2
    assert health["calls"]["p50Ms"] <= health["calls"]["p95Ms"]
    assert parse_ms(health["calls"]["answeredAt"]) >= parse_ms(health["calls"]["since"])
    assert (health["limits"]["concurrency"], health["limits"]["rate"]) == (3, 60)
    assert 0 <= health["limits"]["inUse"] <= 3
    assert set(health["breakers"].values()) == {"closed"}
    assert (health["runs"], health.get("links")) == (1, None)
    assert health["cardSince"] is not None
    assert SECRET not in answer.text
    assert rig.peer.url not in answer.text


async def test_health_adds_up_calls_and_runs_of_all_instances(rig: Rig) -> None:
    one, two = await rig.start(clients=CLIENTS), await rig.start(clients=CLIENTS)
    watches = [each.gateway.parts.agent_watch for each in (one, two)]

    async def know_each_other() -> bool:
        return all(len(each.list_instances()) == 2 for each in watches)

    await wait_until(know_each_other, 20, "both know of both")
    for each, count in ((one, 2), (two, 3)):
        for number in range(count):
            assert (await each.send("ada-key", f"echo {number}")).is_success
    assert (await two.send("ada-key", "silent", returnImmediately=True)).is_success
    for watch in watches:
        await watch.publish()
    seen = [(await get(each, "ops", "/v1/agents/echo/health")).json() for each in (one, two)]
    for health in seen:
        assert health["calls"]["outcomes"]["answered"] >= 5
        assert (health["runs"], health.get("alone", False)) == (1, False)
        assert health["calls"]["p50Ms"] <= health["calls"]["p95Ms"]
        by_name = {each["instance"]: each for each in health["instances"]}
        assert {each["instance"] for each in seen} == by_name.keys()
        assert (
            sum(each["outcomes"]["answered"] for each in by_name.values())
            == (health["calls"]["outcomes"]["answered"])
        )
        assert sum(each["runs"] for each in by_name.values()) == 1
    assert seen[0]["calls"]["outcomes"] == seen[1]["calls"]["outcomes"]
    assert max(map(len, describe_health(seen[0], parse_ms(seen[0]["at"])))) <= 80
    published = ask_engine(rig.url, "GET", f"{{00}}:hr:{seen[0]['instance']}")
    assert isinstance(published, bytes)
    assert rig.peer.url not in published.decode()
    # An instance that has stopped is no longer included.
    await two.gateway.duties.stop()

    async def is_left() -> bool:
        found = (await get(one, "ops", "/v1/agents/echo/health")).json()
        return len(found["instances"]) == 1

    await wait_until(is_left, 20, "the other one is gone")


async def test_a_single_instance_publishes_no_health_row(rig: Rig) -> None:
    one = await rig.start(clients=CLIENTS)
    assert (await one.send("ada-key", "echo 1")).is_success
    await one.gateway.parts.agent_watch.publish()
    assert ask_engine(rig.url, "KEYS", "*:hr:*") == []
    health = (await get(one, "ops", "/v1/agents/echo/health")).json()
    assert [each["instance"] for each in health["instances"]] == [health["instance"]]


async def test_health_of_a_hidden_agent_equals_that_of_an_unknown_one(rig: Rig) -> None:
    one = await rig.start(clients=CLIENTS)
    hidden = await get(one, "far", "/v1/agents/echo/health")
    absent = await get(one, "far", "/v1/agents/nobody/health")
    assert hidden.status_code == absent.status_code == httpx.codes.NOT_FOUND
    assert hidden.text.replace("echo", "nobody") == absent.text
    refused = await get(one, "ada", "/v1/agents/echo/health")
    assert refused.status_code == httpx.codes.FORBIDDEN


async def test_an_agent_without_a_card_is_unknown(rig: Rig) -> None:
    one = await rig.start(clients=CLIENTS, agents=[{"name": "echo", "url": "http://127.0.0.1:9"}])
    for _ in range(2):
        await one.send("ada-key", "echo nobody hears this")
    health = (await get(one, "ops", "/v1/agents/echo/health")).json()
    assert health["status"] == "unknown"
    assert health["calls"]["outcomes"].keys() <= {"unreached", "breaker"}
    assert health.keys().isdisjoint({"cardSince", "version", "protocol"})


def test_health_output_fits_80_columns() -> None:
    answer: Any = {
        "name": "echo" * 60,
        "at": "2026-01-01T00:10:00.000Z",
        "status": "stale",
        "cardSince": "2026-01-01T00:00:00.000Z",
        "version": "1.2.3" * 30,
        "protocol": "a2a/1.0",
        "signature": "verified",
        "breakers": {"JSONRPC": "closed", "HTTP+JSON" * 9: "open"},
        "rests": True,
        "links": 2,
        "runs": 4,
        "instances": [
            {
                "instance": "in_" + "0" * 60,
                "status": "stale",
                "rests": True,
                "runs": 3,
                "outcomes": {"answered": 9},
            },
            {"instance": "in_1", "status": "ready", "runs": 1, "outcomes": {"answered": 1}},
        ],
        "limits": {"concurrency": 8, "rate": 60, "rateS": 60.0, "inUse": 4, "usedUp": True},
        "calls": {
            "since": "2026-01-01T00:05:00.000Z",
            "outcomes": {"answered": 10, "refused": 2, "unknown": 1},
            "p50Ms": 3,
            "p95Ms": 500,
            "answeredAt": "2026-01-01T00:09:00.000Z",
            "failedAt": "2026-01-01T00:07:00.000Z",
        },
    }
    lines = [*describe_health(answer, parse_ms("2026-01-01T00:10:00.000Z"))]
    assert max(map(len, lines)) <= 80
    text = "\n".join(lines)
    for said in (
        "stale, known for 10m",
        "3m ago",
        "p50 3 ms, p95 500 ms",
        "4 of 8",
        "used up",
        "2 sockets",
        "2 instances",
        "in_1 ready, 1 runs, 1 calls",
        "stale, breaker open, 3 runs, 9 calls",
    ):
        assert said in text
