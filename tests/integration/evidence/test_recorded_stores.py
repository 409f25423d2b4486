"""Stores recorded by earlier versions: each session is exported, archived, and exported again with an equal result."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from passerelle.cli.check_evidence import check
from tests.integration.callers.rig import open_rig
from tests.integration.devices.asking import ADA, BOB, bearer
from tests.integration.evidence.exporting import PATHS, archive_ended, export
from tests.stores.dump import STORES, find_dump, load_dump
from tests.support.engine import ask

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path

    from tests.integration.callers.rig import Instance, Rig
    from tests.support.engine import Server

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("CMD-20", "CMD-26")]
AWAY = "http://127.0.0.1:9"


@pytest.fixture(params=STORES)
async def rig(
    request: pytest.FixtureRequest, engine_server: Server, tmp_path: Path, anyio_backend: str
) -> AsyncGenerator[Rig]:
    """A store recorded by the version."""
    ask(engine_server.url, "FLUSHALL")
    load_dump(engine_server.url, tmp_path / "blobs", find_dump(request.param))
    async with open_rig(engine_server.url, tmp_path) as opened:
        yield opened


async def list_sessions(at: Instance, who: str) -> list[str]:
    answer = await at.http.get("/v1/sessions?pageSize=200", headers=bearer(who))
    return [one["sessionId"] for one in answer.json()["sessions"]]


async def test_every_recorded_session_is_exported_equally_before_and_after_archiving(
    rig: Rig,
) -> None:
    at = await rig.start(clients=[ADA, BOB], agents=[{"name": "echo", "url": AWAY}])
    statements = exported = 0
    for who in ("ada", "bob"):
        for session in await list_sessions(at, who):
            before = [await export(at, kind, {"sessionId": session}, who) for kind in PATHS]
            for bundle in before:
                report = check(bundle.content)
                assert report.faults == []
                assert bundle.manifest["chain"]["proof"] == "whole"
                statements += len(report.statements)
                exported += 1
    assert exported > 20
    assert statements > 50
    left = await archive_ended(rig)
    for session in left:
        for who in ("ada", "bob"):
            if session in await list_sessions(at, who):
                again = await export(at, "evidence", {"sessionId": session}, who)
                assert again.response["repeated"]
                assert check(again.content).ok
