"""A command at another instance than the driver's, while the agent streams without a pause."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final, cast

import pytest

from passerelle.core.batch import Batch, EntityKind, EntityRef
from passerelle.core.commands import CancelTask, SubmitTurn, TurnAccepted
from passerelle.core.event_type import EventType
from passerelle.core.principal import AccessScope, Principal
from passerelle.core.task.record import TaskRecord
from passerelle.core.task.requests import FailTask
from passerelle.core.task.status import Status
from passerelle.core.wire.json import Json, JsonObject
from tests.integration.callers.rig import Instance, Rig
from tests.integration.delegation.test_talkative_agents import MANY, talk
from tests.integration.devices.asking import ADA
from tests.support.faults import FaultyLog
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio

OWNER: Final = Principal("ada", kind="person", scopes=frozenset(AccessScope))
_WITHIN_S: Final = 30.0


async def send(at: Instance) -> TurnAccepted:
    parts: list[Json] = [{"text": "go"}]
    message: JsonObject = {"messageId": "m-go", "role": "ROLE_USER", "parts": parts}
    command = SubmitTurn("echo", message, "a2a", "stream")
    return cast("TurnAccepted", await at.gateway.parts.service.execute(OWNER, command, None))


async def read_status(at: Instance, accepted: TurnAccepted) -> Status:
    ref = EntityRef(EntityKind.TASK, accepted.task_id)
    record = (await at.gateway.parts.writes.load_one(ref)).record
    assert isinstance(record, TaskRecord)
    return record.status


def delay_appends(
    driving: Instance, other: Instance, accepted: TurnAccepted, wanted: EventType
) -> list[str]:
    """Lets the driver write before each append of ``wanted``; returns the operations that were tried."""
    tried: list[str] = []

    async def lose(batch: Batch) -> None:
        driver = driving.gateway.parts.dispatch.find(accepted.task_id)
        if driver is None or all(event.type != wanted for event in batch.events):
            return
        tried.append(batch.op)
        stored = driver.run.record.last
        # The first try loses, however long that takes here; the driver yields to the next ones for a moment.
        with suppress(TimeoutError):
            async with asyncio.timeout(_WITHIN_S if len(tried) == 1 else 0.05):
                while driver.run.record.last == stored:
                    await asyncio.sleep(0)

    writes = other.gateway.parts.writes
    writes.log = FaultyLog(writes.log, before_append=lose)
    return tried


@pytest.fixture
async def two(rig: Rig) -> tuple[Instance, Instance]:
    rate = {"events_per_s": 1_000_000, "bytes_per_s": 1 << 30}
    return await rig.start(clients=[ADA], outputs=rate), await rig.start(clients=[ADA])


async def test_a_cancel_at_another_instance_gets_through(
    rig: Rig, two: tuple[Instance, Instance]
) -> None:
    driving, other = two
    rig.peer.next(talk(MANY))
    accepted = await send(driving)

    async def is_running() -> bool:
        return await read_status(other, accepted) is Status.RUNNING

    await wait_until(is_running, _WITHIN_S, "the agent talks")
    tried = delay_appends(driving, other, accepted, EventType.TASK_CANCEL_REQUESTED)
    await other.gateway.parts.service.execute(OWNER, CancelTask(accepted.facade), None)
    assert 1 < len(tried) < 10
    assert rig.peer.count("CancelTask") == 1

    async def is_cancelled() -> bool:
        return await read_status(other, accepted) is Status.CANCELLED

    await wait_until(is_cancelled, _WITHIN_S, "the task is cancelled")


async def test_an_end_stored_by_another_instance_gets_through(
    rig: Rig, two: tuple[Instance, Instance]
) -> None:
    driving, other = two
    rig.peer.next(talk(MANY))
    accepted = await send(driving)

    async def is_running() -> bool:
        return await read_status(other, accepted) is Status.RUNNING

    await wait_until(is_running, _WITHIN_S, "the agent talks")
    tried = delay_appends(driving, other, accepted, EventType.TASK_FAILED)
    await other.gateway.parts.service.execute(
        OWNER, FailTask(accepted.facade, reason="enough"), None
    )
    assert 1 < len(tried) < 10
    assert await read_status(other, accepted) is Status.FAILED
