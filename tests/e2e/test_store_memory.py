"""Low memory in the store: it is reported in time, new tasks are refused, and existing ones continue."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Final, cast

import httpx
import pytest

from passerelle.core.wire.json import JsonObject
from passerelle.demo.processes import GatewayProcess
from tests.support.engine import ask
from tests.support.processes import (
    AGENT,
    Caller,
    count_stored,
    find_engine_url,
    open_caller,
    run_gateway,
)
from tests.support.scripted_peer import ScriptedPeer
from tests.support.waiting import wait_until

LIMIT: Final = 64_000_000
PIECE: Final = 160_000
NEAR: Final = 10_000
FILLER: Final = "{{00}}:idem:filler-{}"

pytestmark = pytest.mark.anyio


def fill(engine: str, share: float) -> None:
    """Fills a share of the limit, to a few kB, with keys that expire."""
    names = [FILLER.format(number) for number in range(LIMIT // PIECE)]
    ask(engine, "DEL", *names)
    for name in names:
        missing = round(LIMIT * share) - read_used(engine)
        if missing < NEAR:
            break
        # The overhead per value is small, and the next value compensates for it.
        ask(engine, "SET", name, b"x" * min(missing, PIECE), "EX", 600)


def read_used(engine: str) -> int:
    """Bytes that count towards the limit."""
    reported = cast("Mapping[str, int]", ask(engine, "INFO", "memory"))
    return reported["used_memory"] - reported["mem_not_counted_for_evict"]


def read_log(gateway: GatewayProcess, event: str) -> list[JsonObject]:
    lines = (gateway.folder / "gateway.log").read_text().splitlines()
    said = [json.loads(line) for line in lines if line.startswith("{")]
    return [one for one in said if one["event"] == event]


async def test_low_memory_is_reported_and_new_tasks_are_refused_while_existing_ones_continue(
    tmp_path: Path,
) -> None:
    async with (
        ScriptedPeer(AGENT) as peer,
        run_gateway(tmp_path, {AGENT: peer.url}, memory={"engine_bytes": LIMIT}) as gateway,
        open_caller(gateway) as caller,
    ):
        engine = find_engine_url(gateway)

        async def says(text: str, end: str = "") -> bool:
            answer = await caller.http.get("/readyz")
            assert answer.status_code == 200, "what is there goes on"
            said = str(answer.json().get("memory", ""))
            return text in said and said.endswith(end)

        assert [one["limit_bytes"] for one in read_log(gateway, "engine.memory")] == [LIMIT]
        kept = await caller.send("kept")
        peer.hold()
        ongoing = await submit(caller, "ongoing")
        await wait_until(lambda: peer.texts == ["kept", "ongoing"], 10, "it is under way")
        fill(engine, 0.85)
        assert await wait_until(lambda: says("85% of 64 MB are used"), 10, "it is said")
        assert await wait_until(lambda: read_log(gateway, "store.memory_low"), 15, "and logged")
        assert (await submit(caller, "still taken")).status_code == 202
        fill(engine, 0.93)
        assert await wait_until(
            lambda: says("of 64 MB are used; new tasks are refused", "refused"), 10, "it is full"
        )
        before = count_stored(gateway)
        refused = await submit(caller, "no")
        assert (refused.status_code, refused.json()["code"]) == (503, "store_unavailable")
        assert refused.headers["Retry-After"] == "30"
        made = await caller.http.post("/v1/tasks", json={"agent": AGENT, "objective": "no"})
        assert (made.status_code, made.json()["code"]) == (503, "store_unavailable")
        assert "error" in await caller.ask("SendMessage", caller.write("no"))
        assert count_stored(gateway) == before
        assert "no" not in peer.texts
        peer.release_all()

        async def has_ended() -> bool:
            answer = await caller.http.get(f"/v1/tasks/{ongoing.json()['taskId']}")
            return bool(answer.json()["status"] == "completed")

        assert await wait_until(has_ended, 10, "what was there goes on")
        assert await caller.get_task(kept["id"]) == kept
        metrics = (await caller.http.get("/metrics")).text
        [share] = [
            float(line.split()[1])
            for line in metrics.splitlines()
            if line.startswith("passerelle_store_memory_share ")
        ]
        assert 0.92 < share < 0.95
        assert await wait_until(lambda: read_log(gateway, "store.memory_full"), 15, "it is logged")
        fill(engine, 0.2)
        assert await wait_until(lambda: takes(caller, "room again"), 10, "there is room again")
        assert await wait_until(
            lambda: read_log(gateway, "store.memory_normal"), 15, "it is logged"
        )
        assert [len(read_log(gateway, f"store.memory_{how}")) for how in ("low", "full")] == [1, 1]


async def takes(caller: Caller, text: str) -> bool:
    return (await submit(caller, text)).status_code == 202


async def submit(caller: Caller, text: str) -> httpx.Response:
    return await caller.http.post("/v1/turns", json={"agent": AGENT, "text": text})
