"""A schedule whose gateway is killed at each tick: no tick has two runs, and none is lost beyond its policy (OBJ-8)."""

from __future__ import annotations

from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from passerelle.core.wire.times import parse_ms
from passerelle.demo.processes import GatewayProcess
from passerelle.runtime.common.clock import SystemClock
from tests.support.processes import AGENT, read_stored, run_gateway
from tests.support.scripted_peer import ScriptedPeer
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio

EVERY_S: Final = 3
KILLS_MS: Final = (0, 5, 15, 40, 100)
"""After the time of a tick."""


async def read(gateway: GatewayProcess, path: str) -> Any:  # noqa: ANN401  JSON
    async with httpx.AsyncClient(headers=gateway.authorization) as http:
        answer = await http.get(f"{gateway.url}{path}")
    answer.raise_for_status()
    return answer.json()


def has_come(clock: SystemClock, at_ms: int) -> bool:
    return clock.now_ms() >= at_ms


@pytest.mark.requirement("OBJ-8", "AP-7")
async def test_gateway_killed_at_each_tick_runs_each_once(tmp_path: Path) -> None:
    async with ScriptedPeer(AGENT) as peer, run_gateway(tmp_path, {AGENT: peer.url}) as gateway:
        terms = {"missed": "all", "overlap": "allow", "everyS": EVERY_S, "graceS": 1}
        body = {"title": "kills", "agent": AGENT, "text": "echo done", **terms}
        async with httpx.AsyncClient(headers=gateway.authorization) as http:
            made = await http.post(f"{gateway.url}/v1/schedules", json=body)
        assert made.status_code == 201, made.text
        path = f"/v1/schedules/{made.json()['schedule']['scheduleId']}"
        clock = SystemClock()
        for after_ms in KILLS_MS:
            tick_ms = parse_ms((await read(gateway, path))["nextAt"])
            await wait_until(partial(has_come, clock, tick_ms + after_ms), 10, "a tick")
            gateway.kill()
            await gateway.start()

        async def settled() -> Any:  # noqa: ANN401  JSON
            shown = await read(gateway, path)
            over = all(run.get("status") == "completed" for run in shown["recent"])
            return shown if not shown["waiting"] and over and shown["recent"] else None

        await wait_until(settled, 30, "every run has ended")
        async with httpx.AsyncClient(headers=gateway.authorization) as http:
            paused = await http.post(f"{gateway.url}{path}/pause")
        assert paused.status_code == 200, paused.text
        shown = paused.json()["schedule"]
        stored = read_stored(gateway, shown["scheduleId"])
    steps = [one["payload"]["schedule"] for one in stored if one["type"] == "session.updated"]
    named = Counter(
        run["tickMs"] for step in steps if step["step"] == "ticked" for run in step["runs"]
    )
    assert set(named.values()) == {1}, "no tick has two runs"
    judged = [step for step in steps if step["step"] == "ticked"]
    assert sum(step.get("missed", 0) + step.get("skipped", 0) for step in judged) == 0
    ticks = sorted(named)
    first, last = ticks[0], ticks[-1]
    expected = set(range(first, last + 1, EVERY_S * 1000))
    assert set(ticks) == expected, "no tick is lost"
    sent = Counter(one["payload"]["messageId"] for one in stored if one["type"] == "turn.submitted")
    assert set(sent.values()) == {1}, "no run has two turns"
    assert len(sent) == shown["runs"] == len(ticks)
    assert {str(message["messageId"]) for message in peer.messages} == set(sent)


async def test_single_gateway_is_on_time_for_ticks_runs_and_waiting_tasks(tmp_path: Path) -> None:
    """It scans all shards every five seconds; rows that it stores itself must not wait for that scan."""
    async with (
        ScriptedPeer(AGENT) as peer,
        run_gateway(tmp_path, {AGENT: peer.url}) as gateway,
        httpx.AsyncClient(headers=gateway.authorization, base_url=gateway.url) as http,
    ):
        body = {"title": "t", "agent": AGENT, "text": "echo done", "everyS": 1, "overlap": "allow"}
        made = await http.post("/v1/schedules", json={**body, "missed": "all"})
        path = f"/v1/schedules/{made.json()['schedule']['scheduleId']}"

        async def ran() -> Any:  # noqa: ANN401  JSON
            shown = await read(gateway, path)
            return shown if shown["runs"] >= 5 else None

        shown = await wait_until(ran, 20, "five runs")
        assert {run["cause"] for run in shown["recent"]} == {"due"}, "none came late"
        assert (await http.post(f"{path}/pause", json={})).status_code == 200
        for _ in range(2):
            before = (await read(gateway, path))["runs"]
            assert (await http.post(f"{path}/run", json={})).status_code == 202

            async def begun(runs: int = before) -> bool:
                shown = await read(gateway, path)
                return shown["runs"] > runs and not shown["waiting"]

            await wait_until(begun, 1.5, "the run has begun")
        for _ in range(2):
            first = await http.post("/v1/tasks", json={"agent": AGENT, "objective": "echo one"})
            task = first.json()["task"]
            turn = {"agent": AGENT, "text": "echo two", "after": [task["taskId"]]}
            context = task["scope"]["contextId"]
            second = await http.post("/v1/turns", json={**turn, "contextId": context})
            assert second.status_code == 202, second.text
            await http.post(f"/v1/tasks/{task['taskId']}/start", json={})
            later = f"/v1/tasks/{second.json()['taskId']}"

            async def ended(path: str = later) -> bool:
                return bool((await read(gateway, path))["status"] == "completed")

            await wait_until(ended, 1.5, "what waited has gone on")
