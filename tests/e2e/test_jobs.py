"""A job of 200 items whose gateway is killed meanwhile: every item ends, and none is sent twice (EXT-9)."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from passerelle.demo.processes import GatewayProcess
from tests.support.processes import AGENT, run_gateway
from tests.support.scripted_peer import ScriptedPeer
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio

ITEMS: Final = 200
FAILS: Final = 10
"""One of this many items fails, at each attempt."""
ATTEMPTS: Final = 2


async def ask(gateway: GatewayProcess, method: str, path: str, body: object = None) -> Any:  # noqa: ANN401  JSON
    async with httpx.AsyncClient(headers=gateway.authorization, timeout=30) as http:
        answer = await http.request(method, f"{gateway.url}{path}", json=body)
    answer.raise_for_status()
    return answer.json()


@pytest.mark.requirement("EXT-9", "PRS-8")
async def test_two_hundred_items_end_by_their_policy_despite_kills(tmp_path: Path) -> None:
    async with ScriptedPeer(AGENT) as peer, run_gateway(tmp_path, {AGENT: peer.url}) as gateway:
        inputs = [f"{'fail' if n % FAILS == 0 else 'echo'} {n}" for n in range(1, ITEMS + 1)]
        batch = {"title": "kills", "agents": [AGENT], "inputs": inputs}
        terms = {"concurrency": 16, "attempts": ATTEMPTS, "mostFailed": ITEMS // FAILS}
        job = (await ask(gateway, "POST", "/v1/jobs", {**batch, **terms}))["job"]["jobId"]
        path = f"/v1/jobs/{job}"
        for share in (0.15, 0.45, 0.75):

            async def has_come(share: float = share) -> bool:
                counts = (await ask(gateway, "GET", path))["counts"]
                return bool(counts["completed"] + counts["failed"] >= share * ITEMS)

            await wait_until(has_come, 60, f"{share:.0%} of the items have ended")
            gateway.kill()
            await gateway.start()

        async def is_over() -> Any:  # noqa: ANN401  JSON
            shown = await ask(gateway, "GET", path)
            return shown if shown["status"] not in {"created", "running"} else None

        shown = await wait_until(is_over, 120, "the job is over")
        rows: list[Any] = []
        while len(rows) < ITEMS:
            page = await ask(gateway, "GET", f"{path}/results?limit=100&after={len(rows)}")
            rows += page["items"]
    assert shown["status"] == "completed"
    failed = ITEMS // FAILS
    assert (shown["counts"]["completed"], shown["counts"]["failed"]) == (ITEMS - failed, failed)
    assert [row["item"] for row in rows] == list(range(1, ITEMS + 1))
    for row in rows:
        fails = row["item"] % FAILS == 0
        assert row["state"] == ("failed" if fails else "completed"), row
        assert row["attempts"] == (ATTEMPTS if fails else 1), row
        assert row["taskStatus"] == row["state"], row
    names = Counter(str(message["messageId"]) for message in peer.messages)
    assert len(names) == ITEMS + failed * (ATTEMPTS - 1), "one message for each attempt"
