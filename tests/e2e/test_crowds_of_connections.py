"""More connections than file descriptors: callers and agents are served, and the shortage is reported."""

from __future__ import annotations

import asyncio
import resource
from contextlib import AsyncExitStack, contextmanager
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from tests.support.processes import AGENT, open_caller, run_gateway
from tests.support.scripted_peer import ScriptedPeer
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Generator

    from passerelle.demo.processes import GatewayProcess

pytestmark = pytest.mark.anyio
LIMIT: Final = 256
SILENT: Final = 400
WITHIN_S: Final = 5.0


@contextmanager
def limit_descriptors(limit: int) -> Generator[None]:
    """Limits processes that are started meanwhile; this process may have more open already."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def read_log(gateway: GatewayProcess) -> str:
    return (gateway.folder / "gateway.log").read_text(encoding="utf-8")


@pytest.mark.parametrize("begun", [b"", b"POST /agents/scripted HTTP/1.1\r\nHost: x\r\n"])
async def test_callers_and_agents_are_served_despite_many_silent_connections(
    tmp_path: Path, begun: bytes
) -> None:
    async with AsyncExitStack() as stack:
        peer = await stack.enter_async_context(ScriptedPeer(AGENT))
        with limit_descriptors(LIMIT):
            gateway = await stack.enter_async_context(run_gateway(tmp_path, {AGENT: peer.url}))
        before = await stack.enter_async_context(open_caller(gateway))
        peer.hold()
        streaming = asyncio.create_task(before.stream("held"))
        await wait_until(lambda: peer.texts == ["held"], 10, "a stream is under way")
        for _ in range(SILENT):
            _, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
            stack.callback(writer.close)
            writer.write(begun)
        await wait_until(
            lambda: "server.connections_full" in read_log(gateway), 10, "every place is taken"
        )
        peer.release_all()
        async with asyncio.timeout(WITHIN_S):
            assert "COMPLETED" in str((await streaming)[-1])
        for text in ("first", "second"):
            async with asyncio.timeout(WITHIN_S), open_caller(gateway) as caller:
                sent = await caller.send(text)
                assert sent["status"]["state"] == "TASK_STATE_COMPLETED"
                assert (await caller.http.get("/readyz")).status_code == 200
        assert peer.texts == ["held", "first", "second"]
        assert "Too many open files" not in read_log(gateway)


async def test_gateway_without_descriptors_is_not_ready_and_reports_why(tmp_path: Path) -> None:
    async with (
        ScriptedPeer(AGENT) as peer,
        run_gateway(tmp_path, {AGENT: peer.url}) as gateway,
        open_caller(gateway) as caller,
    ):
        assert gateway.child is not None
        pid = gateway.child.process.pid
        assert (await caller.http.get("/readyz")).status_code == 200
        before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        used = {int(one.name) for one in Path(f"/proc/{pid}/fd").iterdir()}
        free = next(number for number in count() if number not in used)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (free, before[1]))
        try:
            unready = await caller.http.get("/readyz")
            assert unready.status_code == 503
            assert unready.json()["reason"] == "out of file descriptors"
            await wait_until(
                lambda: "server.out_of_descriptors" in read_log(gateway), 10, "it is logged"
            )
        finally:
            resource.prlimit(pid, resource.RLIMIT_NOFILE, before)
        await wait_until(
            lambda: "server.descriptors_again" in read_log(gateway), 10, "that is logged, too"
        )
        assert (await caller.http.get("/readyz")).status_code == 200
