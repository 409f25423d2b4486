"""A large request holds its share of the memory budget until it is answered, not only until it is read.

So does a large Task that is read in a form other than the stored one.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import grpc.aio
import httpx
import pytest

from passerelle.core.wire.json import Json
from passerelle.gateway.a2a.face import FaceSettings
from passerelle.gateway.a2a.http_request import FREE_BYTES
from passerelle.gateway.grpc.face import GrpcFace
from passerelle.gateway.grpc.server import start_grpc
from passerelle.runtime.memory.budget import Budget
from passerelle.runtime.memory.room import MemoryRoom
from tests.conformance.callers import Answer
from tests.conformance.grpc_caller import GrpcCaller
from tests.integration.a2a.rig import OWNER, Rig, run_rig
from tests.support.engine import Server
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio
LARGE = "x" * (2 * FREE_BYTES)
WIDE = FaceSettings(body_limit_bytes=4 * FREE_BYTES)


@pytest.mark.parametrize("binding", ["JSONRPC", "HTTP+JSON"])
async def test_a_large_request_holds_memory_until_it_is_answered(
    engine_server: Server, tmp_path: Path, anyio_backend: str, binding: str
) -> None:
    room = MemoryRoom(Budget(4 * FREE_BYTES))
    async with run_rig(engine_server, tmp_path / "blobs", WIDE, memory=room) as rig:

        async def send() -> int:
            params = rig.message(f"echo {LARGE}")
            if binding == "JSONRPC":
                return (await rig.post("SendMessage", params)).status_code
            return (await rig.http.post("/agents/echo/message:send", json=params)).status_code

        rig.peer.hold()
        asked = asyncio.create_task(send())
        await wait_until(lambda: rig.counted() == 1, 20, "the agent has it")
        assert FREE_BYTES < room.held["body"] < 2 * FREE_BYTES
        # One caller may hold half of the budget.
        assert await send() == 429
        rig.peer.release_all()
        assert await asked == 200
        assert not room.held["body"]
        assert await send() == 200


async def test_a_large_request_holds_memory_until_its_stream_ends(
    engine_server: Server, tmp_path: Path, anyio_backend: str
) -> None:
    room = MemoryRoom()
    async with run_rig(engine_server, tmp_path / "blobs", WIDE, memory=room) as rig:
        rig.peer.hold()
        rig.peer.release(1)
        async with rig.stream("SendStreamingMessage", rig.message(f"echo {LARGE}")) as events:
            await anext(events)
            held = room.held["body"]
            rig.peer.release_all()
        assert held > FREE_BYTES
        await wait_until(lambda: not room.held["body"], 10, "it is given back")


async def test_a_refused_request_returns_its_memory(
    engine_server: Server, tmp_path: Path, anyio_backend: str
) -> None:
    room = MemoryRoom()
    async with run_rig(engine_server, tmp_path / "blobs", WIDE, memory=room) as rig:
        for method, code in (("SendMessage", -32602), ("Nothing", -32601)):
            assert (await rig.refuse(method, {"message": LARGE}))["code"] == code
        assert not room.budget.held


async def _make_task(rig: Rig) -> str:
    sent = await rig.call("SendMessage", rig.message(f"echo {LARGE}"))
    task = sent["task"]
    assert len(task["artifacts"][0]["parts"][0]["text"]) > FREE_BYTES
    return str(task["id"])


@pytest.mark.parametrize(
    ("method", "asked", "version"),
    [("tasks/get", {}, "0.3"), ("GetTask", {"historyLength": 1}, "1.0")],
)
async def test_a_large_task_in_another_form_needs_memory(
    engine_server: Server,
    tmp_path: Path,
    anyio_backend: str,
    method: str,
    asked: dict[str, Json],
    version: str,
) -> None:
    room = MemoryRoom(Budget(32 * FREE_BYTES))
    async with run_rig(engine_server, tmp_path / "blobs", WIDE, memory=room) as rig:
        task = await _make_task(rig)

        async def read() -> httpx.Response:
            headers = {"A2A-Version": version}
            return await rig.post(method, {"id": task, **asked}, **headers)

        whole = (await read()).json()["result"]
        others = [room.bind("body", f"caller:{name}") for name in ("ada", "bob")]
        for one in others:
            one.take(room.budget.share)
        refused = await read()
        # The stored form is streamed from the store, so it needs none.
        kept = await rig.post("GetTask", {"id": task})
        for one in others:
            one.give_back(room.budget.share)
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        assert (
            kept.json()["result"]["artifacts"]
            == (await rig.call("GetTask", {"id": task}))["artifacts"]
        )
        assert (await read()).json()["result"] == whole
        assert LARGE in str(whole["artifacts"])
        assert not room.held["response"]


async def test_a_large_task_over_grpc_needs_memory(
    engine_server: Server, tmp_path: Path, anyio_backend: str
) -> None:
    room = MemoryRoom(Budget(32 * FREE_BYTES))
    async with AsyncExitStack() as stack:
        rig = await stack.enter_async_context(
            run_rig(engine_server, tmp_path / "blobs", WIDE, memory=room)
        )
        face = GrpcFace(rig.face.operations, rig.face.parts, default_agent="echo")
        server = await start_grpc(face, "127.0.0.1", 0)
        stack.push_async_callback(server.stop)
        asked: dict[str, Json] = {"id": await _make_task(rig)}

        async def read(most_bytes: int) -> Answer:
            options = (("grpc.max_receive_message_length", most_bytes),)
            address = f"127.0.0.1:{server.port}"
            async with grpc.aio.insecure_channel(address, options=options) as channel:
                headers = {"Authorization": f"Bearer {OWNER}", "A2A-Version": "1.0"}
                answer = await GrpcCaller(channel, "echo", headers).call("GetTask", asked)
            await wait_until(lambda: not room.held["response"], 10, "it is given back")
            return answer

        whole = await read(-1)
        assert LARGE in str(whole.result)
        # A client that cannot receive it leaves nothing held either.
        assert (await read(FREE_BYTES)).refusal is not None
        others = [room.bind("body", f"caller:{name}") for name in ("ada", "bob")]
        for one in others:
            one.take(room.budget.share)
        refused = await read(-1)
        for one in others:
            one.give_back(room.budget.share)
        assert refused.refusal is not None
        assert refused.refusal.code == "UNAVAILABLE"
        assert (await read(-1)).result == whole.result
