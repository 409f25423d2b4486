"""Archives only if all instances use the same place: otherwise nothing leaves memory, and ``/readyz`` reports why."""

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


async def test_local_archive_on_a_shared_server_is_reported_and_moves_nothing(rig: Rig) -> None:
    at = await rig.start(clients=[ADA], retention=AT_ONCE)
    assert "blobs names no place that all instances share" in str(await read_notice(at))
    assert await read_notice(await rig.start(retention={"memory": None})) is None
    assert at.gateway.duties.sweeps.archive.terms.keep_ms == 1_000
    assert (await at.send("ada-key")).status_code == 200
    assert not await at.gateway.duties.sweeps.archive.may_archive()
    assert len(rig.list_sessions()) == 1


async def test_instance_whose_archive_differs_moves_nothing(rig: Rig, tmp_path: Path) -> None:
    first = await rig.start(clients=[ADA], blobs=tmp_path / "first", retention={"memory": "1h"})
    moved = await rig.start(clients=[ADA], blobs=tmp_path / "moved", retention={"memory": "1s"})
    assert await read_notice(moved) is None, "the place may change while nothing is archived"
    # Each instance archives the sessions of its own shards; with 24 sessions, some belong to the second instance.
    sent = [(await moved.send("ada-key")).json()["result"]["task"]["id"] for _ in range(_SESSIONS)]
    await wait_until(lambda: len(rig.list_sessions()) < _SESSIONS, 20, "a session is archived")
    sweep = first.gateway.duties.sweeps.archive
    assert not await sweep.may_archive(), "its place is out of date: no other instance reads there"
    other = await rig.start(clients=[ADA], blobs=tmp_path / "other", retention=AT_ONCE)
    assert "blobs differs from that of the other instances" in str(await read_notice(other))
    for at in (first, other):
        assert "blobs differs from that of the other instances" in str(await read_notice(at))
        left = _SESSIONS - len(rig.list_sessions())
        answers = [(await at.call("ada-key", "GetTask", {"id": each})).json() for each in sent]
        refused = [answer["error"] for answer in answers if "error" in answer]
        assert len(refused) >= left > 0
        assert {error["data"][0]["reason"] for error in refused} == {"UNAVAILABLE"}


async def test_both_instances_read_what_either_has_archived(rig: Rig, tmp_path: Path) -> None:
    one, two = [
        await rig.start(clients=[ADA], blobs=tmp_path / "shared", retention=AT_ONCE)
        for _ in range(2)
    ]
    assert [await read_notice(at) for at in (one, two)] == [None, None]
    sent = (await one.send("ada-key")).json()["result"]["task"]
    await wait_until(lambda: not rig.list_sessions(), 20, "the session is archived")
    for at in (one, two):
        read = (await at.call("ada-key", "GetTask", {"id": sent["id"]})).json()["result"]
        assert read == sent
