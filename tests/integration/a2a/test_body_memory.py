"""A large request has its place in memory until it is answered, and not only until it is read."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from passerelle.gateway.a2a.face import FaceSettings
from passerelle.gateway.a2a.incoming import FREE_BYTES
from passerelle.runtime.memory.budget import Budget
from passerelle.runtime.memory.room import MemoryRoom
from tests.integration.a2a.rig import run_rig
from tests.support.engine import Server
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio
LARGE = "x" * (2 * FREE_BYTES)
WIDE = FaceSettings(body_limit_bytes=4 * FREE_BYTES)


@pytest.mark.parametrize("binding", ["JSONRPC", "HTTP+JSON"])
async def test_a_large_request_has_its_room_until_it_is_answered(
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
        # One caller has half of all.
        assert await send() == 429
        rig.peer.release_all()
        assert await asked == 200
        assert not room.held["body"]
        assert await send() == 200


async def test_a_large_request_has_its_room_as_long_as_its_stream_lasts(
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


async def test_a_refused_request_gives_its_room_back(
    engine_server: Server, tmp_path: Path, anyio_backend: str
) -> None:
    room = MemoryRoom()
    async with run_rig(engine_server, tmp_path / "blobs", WIDE, memory=room) as rig:
        for method, code in (("SendMessage", -32602), ("Nothing", -32601)):
            assert (await rig.refuse(method, {"message": LARGE}))["code"] == code
        assert not room.budget.held
