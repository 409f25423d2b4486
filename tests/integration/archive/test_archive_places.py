"""What one instance moves out of memory all others have to find: else nothing leaves, and that is said."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from tests.integration.callers.rig import Instance, Rig, run_rig
from tests.integration.devices.asking import ADA
from tests.support.engine import Server, engine_server, started_legs
from tests.support.waiting import wait_until

__all__ = ["engine_server", "started_legs"]
pytestmark = pytest.mark.anyio
AT_ONCE = {"memory": "1s"}
_SESSIONS = 24


@pytest.fixture
async def rig(engine_server: Server, tmp_path: Path, anyio_backend: str) -> AsyncGenerator[Rig]:
    async with run_rig(engine_server.url, tmp_path) as opened:
        yield opened


async def read_notice(at: Instance) -> str | None:
    answer = await at.http.get("/readyz")
    assert answer.status_code == 200
    notice: str | None = answer.json().get("archive")
    return notice


async def test_a_shared_server_takes_a_place_that_is_shared(rig: Rig) -> None:
    at = await rig.start(clients=[ADA], retention=AT_ONCE)
    assert "blobs names no place that all instances share" in str(await read_notice(at))
    assert await read_notice(await rig.start(retention={"memory": None})) is None
    assert at.gateway.duties.sweeps.archive.terms.keep_ms == 1_000
    assert (await at.send("ada-key")).status_code == 200
    assert not await at.gateway.duties.sweeps.archive.may_archive()
    assert len(rig.list_sessions()) == 1


async def test_an_instance_with_another_place_moves_nothing_there(rig: Rig, tmp_path: Path) -> None:
    first = await rig.start(clients=[ADA], blobs=tmp_path / "first", retention={"memory": "1h"})
    moved = await rig.start(clients=[ADA], blobs=tmp_path / "moved", retention={"memory": "1s"})
    assert await read_notice(moved) is None, "while nothing is archived, a place may be another one"
    # Each instance moves what is in its own shards: of so many sessions some are the second one's.
    told = [(await moved.send("ada-key")).json()["result"]["task"]["id"] for _ in range(_SESSIONS)]
    await wait_until(lambda: len(rig.list_sessions()) < _SESSIONS, 20, "a session has left")
    sweep = first.gateway.duties.sweeps.archive
    assert not await sweep.may_archive(), (
        "it was the first, and would move sessions where nobody looks"
    )
    other = await rig.start(clients=[ADA], blobs=tmp_path / "other", retention=AT_ONCE)
    assert "blobs differs from that of the other instances" in str(await read_notice(other))
    for at in (first, other):
        assert "blobs differs from that of the other instances" in str(await read_notice(at))
        left = _SESSIONS - len(rig.list_sessions())
        answers = [(await at.call("ada-key", "GetTask", {"id": each})).json() for each in told]
        refused = [answer["error"] for answer in answers if "error" in answer]
        assert len(refused) >= left > 0
        assert {error["data"][0]["reason"] for error in refused} == {"UNAVAILABLE"}


async def test_two_instances_with_one_place_read_what_either_has_moved(
    rig: Rig, tmp_path: Path
) -> None:
    one, two = [
        await rig.start(clients=[ADA], blobs=tmp_path / "shared", retention=AT_ONCE)
        for _ in range(2)
    ]
    assert [await read_notice(at) for at in (one, two)] == [None, None]
    told = (await one.send("ada-key")).json()["result"]["task"]
    await wait_until(lambda: not rig.list_sessions(), 20, "the session has left")
    for at in (one, two):
        read = (await at.call("ada-key", "GetTask", {"id": told["id"]})).json()["result"]
        assert read == told
