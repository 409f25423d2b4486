"""Lists of tasks that are carried by the relay, while it stands still: what may be missing is said (ST-19, SNAP-21)."""

from __future__ import annotations

from typing import Any

import pytest
import structlog

from passerelle.cli.verbs.task_text import list_tasks
from passerelle.core.ids import ALL_SHARDS, Shard
from passerelle.core.task.status import Status
from passerelle.delegation.duties.relay import Relay
from passerelle.runtime.records.lag import BEHIND_MS
from tests.support.control_client import ControlClient

pytestmark = pytest.mark.anyio


async def carry(control: ControlClient) -> None:
    """What the relay of every shard does, until nothing is left."""
    store = control.harness.store

    async def learn_nothing() -> None:
        """No epoch changes here."""

    async def lose_nothing(shard: Shard, *_seen: object) -> None:
        raise AssertionError(shard)

    relay = Relay(
        store.log,
        store.projections,
        lambda: frozenset(ALL_SHARDS),
        structlog.get_logger(),
        store.log.shard_epoch,
        learn_nothing,
        lose_nothing,
        lose_nothing,
    )
    for shard in ALL_SHARDS:
        while await relay.pass_on(shard) < 1.0:
            continue


@pytest.mark.requirement("ST-19", "SNAP-21", "CF-16")
async def test_list_says_how_far_it_is_behind_while_the_relay_stands_still(
    control: ControlClient,
) -> None:
    task_id = await control.start()
    await control.until(task_id, Status.COMPLETED)
    control.harness.clock.ahead_ms += BEHIND_MS + 60_000
    behind: Any = await control.do("list_tasks")
    mark = behind["marks"]["tasks"]
    assert mark["state"] == "stale"
    assert mark["behindMs"] > BEHIND_MS + 50_000
    assert any(line.startswith("stale: ") for line in list_tasks(behind))
    session = str((await control.record(task_id)).session_id)
    alone: Any = await control.do("list_tasks", sessionId=session)
    assert "marks" not in alone, "the list of a session is written with its tasks"
    await carry(control)
    control.harness.clock.ahead_ms += 2_000
    fresh: Any = await control.do("list_tasks")
    assert "marks" not in fresh
    assert [one["taskId"] for one in fresh["tasks"]] == [task_id]


@pytest.mark.requirement("SNAP-21")
async def test_list_that_was_just_written_is_not_doubted(control: ControlClient) -> None:
    await control.create()
    assert "marks" not in await control.do("list_tasks")
