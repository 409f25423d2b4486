"""The store fills up, or its engine is gone: work is refused before anything is done, and the error says why."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
from functools import partial
from pathlib import Path
from typing import Final

import httpx
import orjson
import pytest

from passerelle.demo.processes import GatewayProcess
from passerelle.store.engine_binary import find_engine
from tests.support.engine import ask
from tests.support.processes import (
    AGENT,
    Caller,
    count_stored,
    find_engine_pid,
    find_engine_url,
    open_caller,
    run_gateway,
)
from tests.support.scripted_peer import ScriptedPeer
from tests.support.waiting import wait_until

GIVEN_UP_WITHIN_S: Final = 15.0
ROOM_BYTES: Final = 16_384

pytestmark = pytest.mark.anyio


async def submit(caller: Caller, text: str) -> httpx.Response:
    return await caller.http.post("/v1/turns", json={"agent": AGENT, "text": text})


@pytest.mark.requirement("CMD-28")
async def test_full_store_refuses_a_command_with_neither_state_nor_event_written(
    gateway: GatewayProcess, caller: Caller, peer: ScriptedPeer
) -> None:
    kept = await caller.send("kept")
    before = count_stored(gateway)
    engine = find_engine_url(gateway)
    ask(engine, "CONFIG", "SET", "maxmemory", "1mb")
    try:
        refused = await submit(caller, "too much")
        assert (refused.status_code, refused.json()["code"]) == (503, "store_unavailable")
        assert int(refused.headers["Retry-After"]) >= 1
        assert "error" in await caller.ask("SendMessage", caller.write("too much as well"))
        assert (await caller.http.get("/readyz")).status_code == 503
        assert await caller.get_task(kept["id"]) == kept
    finally:
        ask(engine, "CONFIG", "SET", "maxmemory", "0")
    assert count_stored(gateway) == before
    assert peer.texts == ["kept"]
    assert (await caller.send("room again"))["status"]["state"] == "TASK_STATE_COMPLETED"


async def test_full_disk_refuses_new_work_loses_nothing_and_recovers_with_space(
    gateway: GatewayProcess, caller: Caller, peer: ScriptedPeer
) -> None:
    pid = find_engine_pid(gateway)
    unlimited = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    files = (gateway.data_dir / "appendonlydir").iterdir()
    full = max(file.stat().st_size for file in files) + ROOM_BYTES
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (full, unlimited[1]))
    accepted: list[str] = []
    try:
        while (answer := await submit(caller, f"turn {len(accepted)}")).status_code == 202:
            accepted.append(answer.json()["taskId"])
            assert len(accepted) < 50
        assert accepted
        assert (answer.status_code, answer.json()["code"]) == (503, "store_unavailable")
        assert (await caller.http.get("/readyz")).status_code == 503
        assert (await submit(caller, "still full")).status_code == 503
    finally:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, unlimited)
    await wait_until(partial(is_ready, caller), 10, "there is room again")
    for task_id in accepted:
        await wait_until(partial(is_completed, caller, task_id), 10, "nothing is lost")
    assert set(peer.texts) == {f"turn {number}" for number in range(len(accepted))}
    assert (await caller.send("room again"))["status"]["state"] == "TASK_STATE_COMPLETED"


async def is_ready(caller: Caller) -> bool:
    return (await caller.http.get("/readyz")).status_code == 200


async def is_completed(caller: Caller, task_id: str) -> bool:
    return bool((await caller.read_record(task_id))["status"] == "completed")


async def test_crashed_engine_restarts_without_loss(
    gateway: GatewayProcess, caller: Caller
) -> None:
    kept = await caller.send("kept")
    os.kill(find_engine_pid(gateway), signal.SIGKILL)

    async def is_kept() -> bool:
        answer = await caller.ask("GetTask", {"id": kept["id"]})
        return bool(answer.get("result") == kept)

    await wait_until(is_kept, 10, "the task is there again")
    assert (await caller.send("and on"))["status"]["state"] == "TASK_STATE_COMPLETED"


@pytest.mark.requirement("EVC-19")
async def test_permanently_failed_engine_is_a_runtime_error_and_writes_are_refused(
    tmp_path: Path,
) -> None:
    engine = tmp_path / "engine"
    engine.write_text(f'#!/bin/sh\nexec {find_engine(None).path} "$@"\n', encoding="utf-8")
    engine.chmod(0o700)
    async with ScriptedPeer(AGENT) as peer:
        running = run_gateway(tmp_path, {AGENT: peer.url}, engine_path=str(engine))
        async with running as gateway:
            async with open_caller(gateway) as caller:
                await caller.send("before")
                pid = find_engine_pid(gateway)
                engine.write_text("#!/bin/sh\nexit 1\n", encoding="utf-8")
                os.kill(pid, signal.SIGKILL)
                refused = await submit(caller, "after")
                # On a slow machine the gateway has given up before the write times out.
                code = refused.json()["code"]
                assert refused.status_code == 503
                assert code in {"store_unavailable", "draining"}
                assert peer.texts == ["before"]
            assert gateway.child is not None
            await wait_until(gateway.child.has_ended, GIVEN_UP_WITHIN_S, "the gateway gives up")
            assert gateway.child.process.returncode == 1
            text = gateway.child.stderr_file.read_text("utf-8")
    assert "passerelle: error: the engine failed 5 times" in text
    events = [event for event in map(read_log, text.splitlines()) if event]
    parts = [event["part"] for event in events if event["event"] == "runtime.error"]
    assert parts[-1] == "engine"
    assert set(parts) <= {"store", "engine"}


def read_log(line: str) -> dict[str, str]:
    """One parsed line of the log, or an empty object if it is no log line."""
    with contextlib.suppress(orjson.JSONDecodeError):
        return dict(orjson.loads(line))
    return {}


async def test_lost_place_for_content_is_reported_and_small_messages_are_not_affected(
    gateway: GatewayProcess, caller: Caller
) -> None:
    large = "x" * ROOM_BYTES * 2
    blobs = gateway.data_dir / "blobs"
    away = blobs.rename(blobs.with_name("away"))
    blobs.write_bytes(b"")
    try:
        for _ in range(2):
            refused = await submit(caller, large)
            assert (refused.status_code, refused.json()["code"]) == (503, "store_unavailable")
        assert (await caller.send("small"))["status"]["state"] == "TASK_STATE_COMPLETED"
        ready = await caller.http.get("/readyz")
        assert (ready.status_code, ready.json()["status"]) == (200, "ready")
        assert ready.json()["blobs"].startswith("blob directory: ")
        metrics = (await caller.http.get("/metrics")).text
        assert "passerelle_blob_failures_total 2.0" in metrics
        assert gateway.child is not None
        logged = gateway.child.stderr_file.read_text("utf-8").count("blobs.unavailable")
        assert logged == 1, "one a minute"
    finally:
        blobs.unlink()
        away.rename(blobs)
    assert (await submit(caller, large)).status_code == 202
