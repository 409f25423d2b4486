"""``passerelle store stats``: next to a running gateway, and on the same store after its stop."""

from __future__ import annotations

import json
from pathlib import Path
from typing import cast

import anyio.to_thread
import httpx
import pytest

from passerelle.cli.exit_status import ExitStatus
from passerelle.core.wire.json import JsonObject
from tests.e2e.test_cli import run
from tests.support.processes import AGENT, run_gateway
from tests.support.scripted_peer import ScriptedPeer

pytestmark = pytest.mark.anyio

TASKS = 3


async def measure(folder: Path) -> JsonObject:
    flags = ("--json", "--config", folder / "passerelle.yaml", "--data-dir", folder / "data")
    done = await anyio.to_thread.run_sync(lambda: run(folder, "store", "stats", *flags))
    assert done.returncode == ExitStatus.DONE, done.stderr
    return cast("JsonObject", json.loads(done.stdout))


async def test_numbers_match_the_work_with_and_without_a_running_gateway(
    tmp_path: Path,
) -> None:
    async with (
        ScriptedPeer(AGENT) as peer,
        run_gateway(tmp_path, {AGENT: peer.url}, data_dir=str(tmp_path / "data")) as gateway,
    ):
        token = (tmp_path / "data" / "owner-token").read_text().strip()
        headers = {"Authorization": f"Bearer {token}", "A2A-Version": "1.0"}
        async with httpx.AsyncClient(base_url=gateway.url, headers=headers, timeout=20) as http:
            for number in range(TASKS):
                message: JsonObject = {
                    "messageId": f"m-{number}",
                    "role": "ROLE_USER",
                    "parts": [{"text": "x" * 20_000}],
                }
                call = {"jsonrpc": "2.0", "id": 1, "method": "SendMessage"}
                body = {**call, "params": {"message": message}}
                answer = await http.post(f"/agents/{AGENT}", json=body)
                assert "result" in answer.json(), answer.text
        second = await measure(tmp_path)
    after = await measure(tmp_path)
    assert second["tasks"] == after["tasks"] == TASKS
    assert second["sessions"] == TASKS
    content = cast("JsonObject", second["content"])
    assert cast("int", content["count"]) >= TASKS, "texts over 16 KiB are stored outside the engine"
    assert cast("int", content["bytes"]) >= TASKS * 20_000
    kinds = cast("dict[str, dict[str, int]]", after["kinds"])
    assert (
        sum(one["bytes"] for one in kinds.values())
        == cast("dict[str, int]", after["total"])["bytes"]
    )
    people = await anyio.to_thread.run_sync(
        lambda: run(tmp_path, "store", "stats", "--data-dir", tmp_path / "data")
    )
    assert "total" in people.stdout
    assert f"sessions with tasks: {TASKS}, 0 with something open" in people.stdout
    table = [line for line in people.stdout.splitlines() if "/" not in line]
    assert all(len(line) <= 80 for line in table)


def test_folder_without_a_store_is_named_and_not_created(tmp_path: Path) -> None:
    place = tmp_path / "nothing"
    done = run(tmp_path, "store", "stats", "--data-dir", place)
    assert done.returncode == ExitStatus.CALLER
    assert f"there is no store in {place}" in done.stderr
    assert not place.exists()
