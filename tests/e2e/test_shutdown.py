"""SIGTERM with everything open: the process exits in time, and no task ends because of it (I6)."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncGenerator
from pathlib import Path

import httpx
import pytest

from passerelle.demo.devices import open_device
from tests.support.processes import AGENT, Answer, open_caller, run_gateway
from tests.support.scripted_peer import ScriptedPeer
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio


async def test_sigterm_ends_in_time_with_open_streams_and_channels_and_ends_no_task(
    tmp_path: Path,
) -> None:
    async with ScriptedPeer(AGENT) as peer, run_gateway(tmp_path, {AGENT: peer.url}) as gateway:
        peer.hold()
        peer.release(3)
        frames: list[Answer] = []
        async with (
            open_caller(gateway) as caller,
            open_device(gateway.url, gateway.token, "laptop") as laptop,
        ):
            reading = asyncio.create_task(read_all(caller.follow("chunks 5"), frames))
            await wait_until(lambda: len(frames) == 3, 10, "the task, WORKING and one chunk")
            task_id = frames[0]["task"]["id"]
            record = await caller.read_record(task_id)
            stream = f"session:{record['sessionId']}"
            laptop.follow(stream)
            await laptop.await_event(stream, "task.started")
            assert await gateway.stop() == 0
            await asyncio.wait_for(reading, 15)
            assert len(frames) == 3
        await gateway.start()
        async with (
            open_caller(gateway) as caller,
            open_device(gateway.url, gateway.token, "laptop") as laptop,
        ):
            assert (await caller.get_task(task_id))["status"]["state"] == "TASK_STATE_WORKING"
            laptop.follow(stream)
            peer.release_all()
            task = await caller.await_end(task_id)
            await laptop.await_event(stream, "task.completed")
            assert laptop.read_artifact(stream) == "chunk-1 chunk-2 chunk-3 chunk-4 chunk-5 "
        texts = [part["text"] for part in task["artifacts"][0]["parts"]]
        assert texts == [f"chunk-{number} " for number in range(1, 6)]
        assert peer.texts == ["chunks 5"]


async def test_readiness_is_withdrawn_as_soon_as_a_stop_begins(tmp_path: Path) -> None:
    async with (
        ScriptedPeer(AGENT) as peer,
        run_gateway(tmp_path, {AGENT: peer.url}) as gateway,
        open_caller(gateway) as balancer,
        open_device(gateway.url, gateway.token, "laptop"),
    ):
        assert (await balancer.http.get("/readyz")).status_code == 200
        assert gateway.child is not None
        gateway.child.process.send_signal(signal.SIGTERM)

        async def ask() -> httpx.Response | None:
            # Over the kept connection: new ones are no longer accepted.
            answer = await balancer.http.get("/readyz")
            return answer if answer.status_code != 200 else None

        unready = await wait_until(ask, 5, "it is said that no work is taken")
        assert unready is not None
        assert (unready.status_code, unready.json()["reason"]) == (503, "stopping")
        assert (await balancer.http.get("/healthz")).status_code == 200
        assert (await balancer.http.get("/readyz")).status_code == 503
        assert await gateway.stop() == 0


async def read_all(stream: AsyncGenerator[Answer], into: list[Answer]) -> None:
    """Reads until the stream ends, cleanly or not."""
    with contextlib.suppress(httpx.TransportError):
        async for frame in stream:
            into.append(frame)  # noqa: PERF401  its length is looked at meanwhile
