"""A session that is deleted right after its last event is not reported as a lost tail by the gateway that wrote it."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from passerelle.core.ids import Shard, shard_of
from passerelle.core.ports.log import StreamKind, StreamRef
from passerelle.core.principal import Principal
from passerelle.delegation.duties.tail_repair import TailRepair
from passerelle.store import keys
from passerelle.store.archive.session_survey import SessionChoice
from passerelle.store.store import Store
from tests.integration.archive.test_archived_reads import archive_ended, open_store
from tests.integration.callers.rig import Instance, Rig, run_rig
from tests.integration.devices.asking import ADA, bearer
from tests.support.engine import Server, ask, engine_server, started_legs
from tests.support.waiting import wait_until

__all__ = ["engine_server", "started_legs"]
pytestmark = pytest.mark.anyio


@pytest.fixture
async def rig(engine_server: Server, tmp_path: Path, anyio_backend: str) -> AsyncGenerator[Rig]:
    async with run_rig(engine_server.url, tmp_path) as opened:
        yield opened


@pytest.fixture
def losses(monkeypatch: pytest.MonkeyPatch) -> list[Shard]:
    """Shards that a gateway reports as having lost events."""
    noted = list[Shard]()

    def note(repair: TailRepair, shard: Shard, epoch: int, noticed_by: str) -> None:
        noted.append(shard)

    monkeypatch.setattr(TailRepair, "find_loss", note)
    return noted


async def send(at: Instance) -> str:
    """Sends a message and returns the session of its completed task."""
    task = (await at.send("ada-key", "hello")).json()["result"]["task"]["id"]
    shown = await at.http.get(f"/v1/tasks/{task}", headers=bearer("ada"))
    return str(shown.json()["sessionId"])


async def audit(at: Instance) -> None:
    """Waits until the gateway has compared its acknowledged events with the store, as it does periodically."""
    repair = at.gateway.duties.repair
    acknowledged, looks = repair.events.list_acknowledged, list[float]()

    def count(oldest_s: float) -> object:
        looks.append(oldest_s)
        return acknowledged(oldest_s)

    setattr(repair.events, "list_acknowledged", count)  # noqa: B010  a method takes no assignment
    repair.look_s = 0.01
    # The second audit starts after the end of the first.
    await wait_until(lambda: len(looks) > 1, 20, "the gateway has audited once")


async def forget(store: Store, session: str, what: str) -> None:
    now_ms = store.clock.now_ms()
    if what == "an owner":
        await store.forgetting.forget(Principal("ada").key, "carl", now_ms)
    else:
        choice = SessionChoice(now_ms, frozenset({session}), (shard_of(session),))
        assert (await store.session_forgetting.forget(choice, "carl")).count == 1


@pytest.mark.parametrize("where", ["in memory", "in the archive"])
@pytest.mark.parametrize("what", ["an owner", "a session"])
async def test_deleted_session_is_not_reported_as_a_loss(
    rig: Rig, losses: list[Shard], what: str, where: str
) -> None:
    at = await rig.start(clients=[ADA])
    session = await send(at)
    if where == "in the archive":
        assert await archive_ended(rig) == 1
    async with await open_store(rig) as store:
        await forget(store, session, what)
        assert await store.log.read_head(StreamRef(StreamKind.SESSION, session)) is None
    await audit(at)
    assert losses == []


async def test_session_missing_for_another_reason_is_reported_as_a_loss(
    rig: Rig, losses: list[Shard]
) -> None:
    at = await rig.start(clients=[ADA])
    session = await send(at)
    ask(rig.url, "DEL", keys.head(StreamRef(StreamKind.SESSION, session)))
    await audit(at)
    assert shard_of(session) in losses
