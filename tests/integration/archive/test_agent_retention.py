"""Retention by agent: sessions of one agent are archived, those of another stay in memory until its setting changes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from passerelle.gateway.reload import apply_settings
from passerelle.gateway.settings.model import Settings
from tests.integration.callers.rig import run_rig
from tests.support.engine import Server, engine_server, started_legs
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path

    from tests.integration.callers.rig import Instance, Rig

__all__ = ["engine_server", "started_legs"]
pytestmark = pytest.mark.anyio
_WITHIN_S = 30


@pytest.fixture
async def rig(engine_server: Server, tmp_path: Path, anyio_backend: str) -> AsyncGenerator[Rig]:
    async with run_rig(engine_server.url, tmp_path) as opened:
        yield opened


async def find_session(at: Instance, agent: str) -> str:
    """Sends a message and returns the session of its completed task."""
    body = {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": at.message("hello")}
    headers = {"Authorization": "Bearer ada-key"}
    answer = (await at.http.post(f"/agents/{agent}", json=body, headers=headers)).json()
    task = answer["result"]["task"]["id"]
    record = await at.http.get(f"/v1/tasks/{task}", headers=headers)
    assert record.json()["status"] == "completed"
    return str(record.json()["sessionId"])


@pytest.mark.requirement("ST-18")
async def test_retention_of_an_agent_overrides_the_default_and_can_be_reloaded(
    rig: Rig, tmp_path: Path
) -> None:
    url = rig.peer.url
    ada = {"name": "ada", "scopes": ["a2a:call", "tasks:read"]}
    at = await rig.start(
        clients=[ada],
        blobs=tmp_path / "blobs",
        retention={"memory": "2s"},
        agents=[{"name": "echo", "url": url}, {"name": "bank", "url": url, "memory": "never"}],
    )
    leaves, stays = [await find_session(at, agent) for agent in ("echo", "bank")]
    assert {leaves, stays} <= {*rig.list_sessions()}
    await wait_until(
        lambda: leaves not in rig.list_sessions(), _WITHIN_S, "the session of echo is archived"
    )
    assert at.gateway.duties.sweeps.archive.terms.agents == {"bank": None}
    assert await at.gateway.duties.sweeps.archive.sweep() == 0
    assert stays in rig.list_sessions()
    stored = at.settings.model_dump(exclude_unset=True)
    stored["agents"] = [{"name": "bank", "url": url, "memory": "1s"}]
    await apply_settings(at.gateway, at.access, at.settings, Settings.model_validate(stored))
    await wait_until(
        lambda: stays not in rig.list_sessions(), _WITHIN_S, "the session of bank is archived"
    )
