"""Quotas, budgets and prices: refusals before an agent is called; each amount is a fact of its turn."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import httpx
import pytest

from passerelle.core.batch import EntityKind, EntityRef
from passerelle.core.ids import parse_facade
from passerelle.core.principal import Principal
from passerelle.core.task.record import TaskRecord
from passerelle.runtime.records.places import name_home
from tests.support.open_metrics import read_families
from tests.support.scripted_peer import ScriptedResponse
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from passerelle.core.wire.json import JsonObject
    from tests.integration.callers.rig import Instance, Rig
    from tests.support.scripted_tasks import Turn

pytestmark = pytest.mark.anyio
PRICED = {"price": {"currency": "EUR", "per_call": "0.10"}}
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
LIMIT_FACTS = ("cost.", "quota.", "rate_limit.")


async def fail(turn: Turn) -> None:
    await turn.open()
    await turn.status("FAILED")


async def list_limit_facts(one: Instance, facade: str) -> list[dict[str, Any]]:
    """Returns the facts about limits in the session of a task."""
    return [
        event
        for event in await one.read_session(await find_session(one, facade))
        if event["type"].startswith(LIMIT_FACTS)
    ]


async def find_session(one: Instance, facade: str) -> str:
    parsed = parse_facade(facade)
    assert parsed is not None
    ref = EntityRef(EntityKind.TASK, parsed[0])
    record = (await one.gateway.parts.writes.load_one(ref)).record
    assert isinstance(record, TaskRecord)
    return record.session_id


def task_of(response: httpx.Response) -> str:
    return str(response.json()["result"]["task"]["id"])


@pytest.mark.requirement("EXT-7", "PRS-11")
async def test_budget_of_two_calls_refuses_the_third(rig: Rig) -> None:
    quota = {"cost": "0.20", "per": "day"}
    one = await rig.start(clients=[{"name": "thrifty", "quotas": [quota]}], agent=PRICED)
    first, second = [await one.send("thrifty-key") for _ in range(2)]
    third = await one.send("thrifty-key")
    assert [first.status_code, second.status_code, third.status_code] == [200, 200, 429]
    assert rig.counted() == 2

    facts = await list_limit_facts(one, task_of(first)) + await list_limit_facts(
        one, task_of(second)
    )
    assert [fact["type"] for fact in facts] == [
        "cost.estimated",
        "cost.recorded",
        "cost.estimated",
        "quota.low",
        "cost.recorded",
    ]
    for fact in facts:
        assert {"sessionId", "threadId", "turnId", "taskId"} <= fact.keys(), fact["type"]
    estimated, recorded, *_ = facts
    assert estimated["payload"] == {
        "peer": "echo",
        "amountMicros": 100_000,
        "currency": "EUR",
        "basis": "per_call",
    }
    assert (recorded["payload"]["amountMicros"], recorded["payload"]["source"]) == (
        100_000,
        "per_call",
    )
    assert "runId" in recorded
    low = facts[3]["payload"]
    assert (low["kind"], low["unit"], low["limit"], low["used"]) == (
        "budget",
        "micros",
        200_000,
        200_000,
    )

    async def blocked() -> bool:
        return len(await one.read_home("thrifty")) == 2

    assert await wait_until(blocked, 15, "the refusal is a fact")
    fact = (await one.read_home("thrifty"))[1]
    assert fact["type"] == "quota.blocked"
    said = fact["payload"]
    assert (said["kind"], said["limit"], said["used"], said["asked"]) == (
        "budget",
        200_000,
        200_000,
        100_000,
    )
    assert said["resetsAt"].endswith("T00:00:00.000Z")


@pytest.mark.requirement("EXT-7")
async def test_call_quota_is_shared_by_all_instances_and_survives_them(rig: Rig) -> None:
    client = {"name": "few", "quotas": [{"calls": 3, "per": "month"}]}
    first = await rig.start(clients=[client])
    assert (await first.send("few-key")).status_code == 200
    second = await rig.start(clients=[client])
    statuses = [(await second.send("few-key")).status_code for _ in range(4)]
    assert statuses == [200, 200, 429, 429]
    refused = await first.send("few-key")
    assert refused.json()["error"]["data"][0]["metadata"]["limit"] == "quota"
    assert int(refused.headers["retry-after"]) > 60


@pytest.mark.requirement("PRS-11")
async def test_refusal_carries_the_trace_of_its_request(rig: Rig) -> None:
    one = await rig.start(clients=[{"name": "none", "quotas": [{"calls": 0}]}])
    key = {"Authorization": "Bearer none-key", "traceparent": f"00-{TRACE}-00f067aa0ba902b7-01"}
    body = {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": one.message("x")}
    assert (await one.http.post("/agents/echo", json=body, headers=key)).status_code == 429

    async def is_stored() -> bool:
        return len(await one.read_home("none")) == 2

    assert await wait_until(is_stored, 15, "the refusal is a fact")
    assert (await one.read_home("none"))[1]["traceId"] == TRACE


@pytest.mark.requirement("PRS-11")
async def test_metric_exemplars_name_the_trace_of_a_calls_facts(rig: Rig) -> None:
    one = await rig.start(clients=[{"name": "thrifty"}], agent=PRICED)
    key = {"Authorization": "Bearer thrifty-key", "A2A-Version": "1.0"}
    trace = {"traceparent": f"00-{TRACE}-00f067aa0ba902b7-01"}
    body = {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": one.message("x")}
    answer = await one.http.post("/agents/echo", json=body, headers=key | trace)
    facts = await list_limit_facts(one, task_of(answer))
    assert {fact["traceId"] for fact in facts} == {TRACE}
    accept = {"Accept": "application/openmetrics-text; version=1.0.0"}
    shown = (await one.http.get("/metrics", headers=accept)).text
    assert "passerelle_request_seconds" in read_families(shown)
    [line] = [one for one in shown.splitlines() if TRACE in one]
    named = 'passerelle_request_seconds_bucket{agent="echo",le="'
    assert line.startswith(named)
    assert f'# {{trace_id="{TRACE}"}}' in line


async def test_usage_reported_by_the_agent_sets_the_cost_of_the_call(rig: Rig) -> None:
    price = {"currency": "EUR", "per_million_input_tokens": 1, "per_million_output_tokens": 2}
    client = {"name": "reader", "quotas": [{"cost": 1, "currency": "EUR"}]}
    one = await rig.start(clients=[client], agent={"price": price})

    async def report(turn: Turn) -> None:
        task = await turn.open()
        usage: JsonObject = {"input_tokens": 300_000, "output_tokens": 350_000}
        task.record["metadata"] = {"usage": usage}
        await turn.status("COMPLETED")

    rig.peer.next(report)
    facts = await list_limit_facts(one, task_of(await one.send("reader-key")))
    assert [fact["type"] for fact in facts][:2] == ["cost.estimated", "cost.recorded"]
    assert facts[0]["payload"]["amountMicros"] == 3_000
    assert facts[1]["payload"] == {
        "peer": "echo",
        "amountMicros": 1_000_000,
        "currency": "EUR",
        "source": "peer_usage",
        "durationMs": facts[1]["payload"]["durationMs"],
        "inputTokens": 300_000,
        "outputTokens": 350_000,
    }
    assert (await one.send("reader-key")).status_code == 429
    assert rig.counted() == 1


@pytest.mark.requirement("EXT-7")
async def test_429_of_an_agent_is_a_fact_and_costs_nothing(rig: Rig) -> None:
    client = {"name": "once", "quotas": [{"cost": "0.15"}]}
    one = await rig.start(clients=[client], agent=PRICED)
    rig.peer.answer_next(
        ScriptedResponse(status=429, headers={"retry-after": "7200"})
    )  # longer than the run's time limit
    refused = await one.send("once-key")
    assert (refused.status_code, refused.headers["retry-after"]) == (429, "7200")
    (session,) = [name for name in rig.list_sessions() if name != name_home(Principal("once"))]
    hits = [
        event for event in await one.read_session(session) if event["type"].startswith(LIMIT_FACTS)
    ]
    assert [hit["type"] for hit in hits] == ["cost.estimated", "rate_limit.hit"]
    assert hits[1]["payload"]["limited"] == {"kind": "peer", "name": "echo"}
    assert hits[1]["payload"]["source"] == "peer"
    assert "runId" in hits[1]
    assert (await one.send("once-key")).status_code == httpx.codes.OK
    assert (await one.send("once-key")).status_code == httpx.codes.TOO_MANY_REQUESTS


@pytest.mark.requirement("EXT-7", "ATT-13")
async def test_budget_counts_the_attempts_that_the_gateway_makes_itself(rig: Rig) -> None:
    client = {"name": "thrifty", "quotas": [{"cost": "0.45"}]}
    retry = {"attempts": 3, "initial": "10ms", "retry_on": ["failed"]}
    one = await rig.start(clients=[client], agent={**PRICED, "retry": retry})
    rig.peer.next(fail, fail, fail)
    failed = await one.send("thrifty-key")
    assert failed.json()["result"]["task"]["status"]["state"] == "TASK_STATE_FAILED"
    recorded = [
        fact
        for fact in await list_limit_facts(one, task_of(failed))
        if fact["type"] == "cost.recorded"
    ]
    assert len(recorded) == rig.counted() == 3
    # Three tenths are spent, and one more call is covered.
    answers = [await one.send("thrifty-key") for _ in range(2)]
    assert [answer.status_code for answer in answers] == [200, 429]


@pytest.mark.requirement("EXT-7")
async def test_budget_is_charged_to_the_agent_that_took_over(rig: Rig) -> None:
    """Nothing listens where the first agent is said to be: it costs nothing."""
    client = {"name": "thrifty", "quotas": [{"cost": "0.45"}]}
    away = {"name": "away", "url": "http://127.0.0.1:9", "fallback": ["echo"]}
    dear = {"price": {"currency": "EUR", "per_call": "0.30"}}
    agents = [{**away, **PRICED}, {"name": "echo", "url": rig.peer.url, **dear}]
    one = await rig.start(clients=[client], agents=agents)
    answers = [await one.send("thrifty-key", agent="away") for _ in range(2)]
    assert [answer.status_code for answer in answers] == [200, 200]
    assert rig.counted() == 2
    assert (await one.send("thrifty-key")).status_code == 429


async def test_repeat_under_the_same_key_is_charged_once(rig: Rig) -> None:
    one = await rig.start(clients=[{"name": "few", "quotas": [{"calls": 2}]}])
    body = {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": one.message("x")}
    key = {"Authorization": "Bearer few-key", "Idempotency-Key": "k-1"}
    for _ in range(4):
        answer = await one.http.post("/agents/echo", json=body, headers=key)
        assert answer.status_code == 200
    assert rig.counted() == 1
    assert (await one.send("few-key")).status_code == 200
    assert (await one.send("few-key")).status_code == 429


async def test_a_message_that_is_not_stored_is_refunded(rig: Rig) -> None:
    one = await rig.start(clients=[{"name": "few", "quotas": [{"calls": 2}]}])
    key = {"Authorization": "Bearer few-key", "Idempotency-Key": "k-1"}
    refused: list[bool] = []
    for text in ("x", "another", "and another"):
        body = {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": one.message(text)}
        answer = await one.http.post("/agents/echo", json=body, headers=key)
        refused.append("the idempotency key was used for another request" in answer.text)
    assert refused == [False, True, True]
    assert (await one.send("few-key")).status_code == 200
    assert (await one.send("few-key")).status_code == 429


@pytest.mark.requirement("TR-11", "EXT-7")
async def test_a_task_over_its_estimated_cost_limit_is_not_sent(
    rig: Rig,
) -> None:
    one = await rig.start(
        clients=[{"name": "thrifty", "scopes": ["a2a:call", "tasks:write"]}], agent=PRICED
    )
    headers = {"Authorization": "Bearer thrifty-key"}
    statuses: list[int] = []
    for most in (99_999, 100_000):
        wanted: JsonObject = {
            "agent": "echo",
            "objective": "echo hello",
            "constraints": {"maxCostMicros": most},
        }
        key = {"Idempotency-Key": f"k-{most}"}
        made = await one.http.post("/v1/tasks", json=wanted, headers={**headers, **key})
        assert made.status_code == 201, made.text
        path = f"/v1/tasks/{made.json()['task']['taskId']}/start"
        started = await one.http.post(path, json={}, headers=headers)
        statuses.append(started.status_code)
        if started.status_code >= httpx.codes.BAD_REQUEST:
            assert "constraint maxCostMicros" in started.text
    assert statuses == [403, 202]
    await wait_until(lambda: rig.counted() == 1, 10, "the one that may be sent is sent")
