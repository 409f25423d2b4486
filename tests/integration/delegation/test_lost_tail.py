"""What a driver reports as a loss: never a concurrent write, always a missing acknowledged event."""

from __future__ import annotations

import asyncio

import pytest

from passerelle.a2a_mapping.members import object_at
from passerelle.core.batch import EntityRef
from passerelle.core.decision import Decision
from passerelle.core.events import Fact
from passerelle.core.ids import Shard
from passerelle.core.payloads.run import RunStatus
from passerelle.core.task import machine as tasks
from passerelle.core.task.record import TaskRecord
from passerelle.core.task.status import Status
from passerelle.delegation.runs.active_run import ActiveRun
from passerelle.delegation.runs.draft import DecisionDraft
from passerelle.runtime.records.writes import AppendOptions, Written
from passerelle.store import keys
from tests.support.engine import Server, ask
from tests.support.harness import Harness, task_of
from tests.support.lost_tail import take_snapshot
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio

RACES = 1_000
CONCURRENT_WRITES = 8


def add_status(draft: DecisionDraft) -> None:
    """Adds a fact that changes the record."""
    draft.add([Fact(tasks.scope_of(draft.record), RunStatus(native_status="TASK_STATE_WORKING"))])


async def write_status(harness: Harness, session: str, task: EntityRef) -> None:
    """Writes the same fact as another writer, not as the driver."""

    def body(decision: Decision) -> AppendOptions:
        record = decision.state(task)
        assert isinstance(record, TaskRecord)
        status = RunStatus(native_status="TASK_STATE_WORKING")
        decision.add([Fact(tasks.scope_of(record), status)])
        return AppendOptions()

    assert isinstance(await harness.parts.writes.decide(session, [task], body), Written)


@pytest.fixture
def losses(harness: Harness) -> list[tuple[Shard, int, str]]:
    """Losses that drivers of the house have reported."""
    reported: list[tuple[Shard, int, str]] = []
    harness.parts.dispatch.on_loss = lambda shard, epoch, by: reported.append((shard, epoch, by))
    return reported


async def begin(harness: Harness) -> tuple[ActiveRun, EntityRef, str]:
    harness.peer.hold()
    accepted = await harness.send("chunks 3", wait="stream")
    harness.peer.release(2)
    await harness.until(accepted, Status.RUNNING)
    driver = harness.parts.dispatch.find(accepted.task_id)
    assert driver is not None

    def is_at_work() -> bool:
        status = object_at(driver.run.content or {}, "status")
        return status.get("state") == "TASK_STATE_WORKING"

    # A status stored later would be an append by the driver, which detects the loss itself.
    await wait_until(is_at_work, 15, "the agent's status is stored")
    return driver, task_of(accepted), accepted.session_id


async def test_concurrent_writes_are_not_reported_as_a_loss(
    harness: Harness, engine_server: Server, losses: list[tuple[Shard, int, str]]
) -> None:
    driver, task, session = await begin(harness)
    for _ in range(RACES // CONCURRENT_WRITES):
        others = (write_status(harness, session, task) for _ in range(CONCURRENT_WRITES))
        await asyncio.gather(driver.run.append(add_status), driver.run.refresh(), *others)
    assert losses == []
    assert not driver.run.moved
    assert ask(engine_server.url, "HGET", keys.meta(task.shard), "epoch") is None
    harness.peer.release_all()


@pytest.mark.parametrize("rewritten", [0, 1, 5], ids=["lower", "same", "higher"])
async def test_missing_acknowledged_event_is_reported_as_a_loss(
    harness: Harness,
    engine_server: Server,
    losses: list[tuple[Shard, int, str]],
    rewritten: int,
) -> None:
    driver, task, session = await begin(harness)
    before = take_snapshot(engine_server.url, task.shard)
    await driver.run.append(add_status)
    before.restore()
    for _ in range(rewritten):
        await write_status(harness, session, task)
    assert not await driver.run.is_stored()
    assert losses == [(task.shard, 0, "driver")]
    assert driver.run.moved, "nothing is written over another history"
    harness.peer.release_all()
