"""A start, a second start, kill -9 and the start after it."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from pathlib import Path
from typing import Final

import httpx
import pytest

from passerelle.demo.processes import GatewayProcess, read_port, start
from tests.support.processes import (
    AGENT,
    find_engine_pid,
    is_alive,
    open_caller,
    read_stored,
    run_gateway,
)
from tests.support.scripted_peer import ScriptedPeer
from tests.support.waiting import wait_until

TAKEN_OVER_WITHIN_S: Final = 12.0
LEASE_S: Final = 5.0

pytestmark = pytest.mark.anyio


async def is_ready(url: str) -> bool:
    async with httpx.AsyncClient() as http:
        return (await http.get(f"{url}/readyz")).status_code == 200


async def test_serve_without_arguments_is_ready_and_prints_next_steps(tmp_path: Path) -> None:
    environ = {"XDG_STATE_HOME": str(tmp_path / "state"), "PASSERELLE_PORT": "0"}
    child = start("gateway", ("passerelle", "serve"), tmp_path, environ)
    try:
        url = f"http://127.0.0.1:{read_port(await child.read_line('passerelle '))}"
        assert await is_ready(url)
        said = child.stdout_file.read_text("utf-8")
        assert "no agent is configured; add one:" in said
        data_dir = tmp_path / "state" / "passerelle"
        assert data_dir.stat().st_mode & 0o777 == 0o700
        assert (data_dir / "owner-token").read_text("ascii").strip() in said
    finally:
        status = await child.stop()
    assert status == 0


async def test_second_gateway_on_one_data_directory_refuses_and_names_the_first(
    gateway: GatewayProcess,
) -> None:
    command = ["-m", "passerelle", "serve", "--data-dir", str(gateway.data_dir), "--port", "0"]
    second = subprocess.run(
        [sys.executable, *command],
        cwd=gateway.folder,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert gateway.child is not None
    assert second.returncode == 2
    assert f"{gateway.data_dir} is in use by process {gateway.child.process.pid}" in second.stderr
    assert "Traceback" not in second.stderr
    assert await is_ready(gateway.url)


@pytest.mark.requirement("AP-3", "ID-1")
async def test_killed_gateway_leaves_no_engine_and_its_restart_keeps_everything(
    tmp_path: Path,
) -> None:
    async with ScriptedPeer(AGENT) as peer, run_gateway(tmp_path, {AGENT: peer.url}) as gateway:
        async with open_caller(gateway) as caller:
            done = await caller.send("kept")
            peer.hold()
            peer.release(2)
            begun = await caller.begin("work in the background")
            await wait_until(lambda: peer.count("SendStreamingMessage") >= 1, 15, "it is at work")
            record = await caller.read_record(begun["id"])
        engine = find_engine_pid(gateway)
        gateway.kill()
        await wait_until(lambda: not is_alive(engine), 15, "the engine is gone as well")
        await gateway.start()
        async with open_caller(gateway) as caller:
            assert await caller.get_task(done["id"]) == done
            peer.release_all()
            task = await caller.await_end(begun["id"], TAKEN_OVER_WITHIN_S)
        assert task["status"]["state"] == "TASK_STATE_COMPLETED"
        assert peer.texts == ["kept", "work in the background"]
        events = read_stored(gateway, record["sessionId"])
        assert [event["sequence"] for event in events] == list(range(1, len(events) + 1))
        before = read_stored(gateway, (await read_session(gateway, done["id"])))
        assert len({event["runtimeId"] for event in (*before, *events)}) == 1
        assert events[-1]["timestamp"] > before[-1]["timestamp"]


async def read_session(gateway: GatewayProcess, task_id: str) -> str:
    async with open_caller(gateway) as caller:
        return str((await caller.read_record(task_id))["sessionId"])


async def test_suspended_process_answers_calls_received_meanwhile(
    tmp_path: Path, peer: ScriptedPeer
) -> None:
    """As after a machine's sleep: its leases have expired, while the store was up all the time."""
    async with run_gateway(tmp_path, {AGENT: peer.url}) as gateway, open_caller(gateway) as caller:
        ended = await caller.send("echo before")
        assert gateway.child is not None
        process = gateway.child.process
        process.send_signal(signal.SIGSTOP)
        try:
            waiting = [
                asyncio.create_task(caller.ask("SendMessage", caller.write(text, **ids)))
                for text in ("echo first", "echo another", "echo third")
                for ids in ({}, {"contextId": str(ended["contextId"])})
            ]
            await asyncio.sleep(LEASE_S + 1)  # the elapsed time itself is under test
        finally:
            process.send_signal(signal.SIGCONT)
        answers = await asyncio.gather(*waiting)
        states = [one.get("result", one).get("task", one) for one in answers]
        assert [one["status"]["state"] for one in states] == ["TASK_STATE_COMPLETED"] * 6, answers
