"""A server whose settings change while it is used: what the start refuses is reported."""

from __future__ import annotations

import json
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import pytest

from passerelle.a2a_mapping.members import text_at
from passerelle.store.engine_binary import find_engine
from tests.support.engine import ask, run_server
from tests.support.processes import AGENT, open_caller, run_gateway
from tests.support.scripted_peer import ScriptedPeer
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from passerelle.core.wire.json import JsonObject
    from passerelle.demo.processes import GatewayProcess

pytestmark = pytest.mark.anyio
WITHIN_S = 10.0


def read_log(gateway: GatewayProcess, event: str) -> list[JsonObject]:
    lines = (gateway.folder / "gateway.log").read_text().splitlines()
    said = [json.loads(line) for line in lines if line.startswith("{")]
    return [one for one in said if one["event"] == event]


@pytest.mark.parametrize(
    ("setting", "bad", "good", "reason"),
    [
        ("maxmemory-policy", "allkeys-lru", "noeviction", "(allkeys-lru): tasks and their history"),
        ("maxmemory-policy", "volatile-ttl", "noeviction", "(volatile-ttl): leases"),
        ("appendonly", "no", "yes", "has no append-only file; set appendonly yes"),
    ],
)
async def test_setting_that_can_lose_writes_is_reported_while_it_lasts(
    tmp_path: Path, setting: str, bad: str, good: str, reason: str
) -> None:
    async with AsyncExitStack() as stack:
        server = stack.enter_context(run_server(find_engine(None)))
        peer = await stack.enter_async_context(ScriptedPeer(AGENT))
        gateway = await stack.enter_async_context(
            run_gateway(tmp_path, {AGENT: peer.url}, redis_url=server.url)
        )
        caller = await stack.enter_async_context(open_caller(gateway))

        async def read_risk() -> str:
            answer = await caller.http.get("/readyz")
            assert answer.status_code == 200, "work continues"
            said: JsonObject = answer.json()
            return text_at(said, "durability")

        async def read_gauge() -> float:
            lines = (await caller.http.get("/metrics")).text.splitlines()
            name = "passerelle_primaries_at_risk "
            return next(float(line.split()[1]) for line in lines if line.startswith(name))

        assert (await read_risk(), await read_gauge()) == ("", 0)
        ask(server.url, "CONFIG", "SET", setting, bad)
        assert await wait_until(
            lambda: read_log(gateway, "store.at_risk"), WITHIN_S, "the risk is logged"
        )
        assert reason in await read_risk()
        assert await read_gauge() == 1
        assert (await caller.send("echo hello"))["status"]["state"] == "TASK_STATE_COMPLETED"
        ask(server.url, "CONFIG", "SET", setting, good)
        assert await wait_until(
            lambda: read_log(gateway, "store.not_at_risk"), WITHIN_S, "its end is logged"
        )
        assert (await read_risk(), await read_gauge()) == ("", 0)
        assert len(read_log(gateway, "store.at_risk")) == 1
