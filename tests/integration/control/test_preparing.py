"""A start that waits for the card of its agent: shown, ended in either way, and left by nobody (ST-4, CF-3)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from passerelle.core.errors import PeerUnavailable, VersionMismatch
from passerelle.core.task.status import Status
from tests.support.control_client import ControlClient

pytestmark = pytest.mark.anyio


@pytest.mark.requirement("ST-4", "CF-3")
async def test_while_the_card_is_read_task_and_thread_are_being_prepared(
    control: ControlClient,
) -> None:
    task_id = await control.create("echo done")
    control.hold_card()
    starting = asyncio.create_task(control.do("start_task", "s", taskId=task_id))
    record = await control.until(task_id, Status.PREPARING)
    thread: Any = await control.do("get_thread", threadId=str(record.thread_id))
    assert (thread["activity"], thread["status"]) == ("preparing", "idle")
    line: Any = await control.do("get_task_summary", taskId=task_id)
    assert (line["status"], line["progress"]["step"]) == ("preparing", "card")
    assert control.harness.peer.messages == []
    control.harness.peer.card_open.set()
    assert (await starting)["repeated"] is False
    record = await control.until(task_id, Status.COMPLETED)
    assert record.progress.step is None, "what was read is no step of the work"
    assert f"prepare:{task_id}" not in await control.harness.due(task_id)
    # The card is known now.
    second = await control.start("echo done")
    progress = [event.fact.payload for event in await control.events(second)]
    assert "preparing" not in {getattr(one, "status", None) for one in progress}


@pytest.mark.requirement("ST-4")
async def test_a_task_whose_agent_has_no_card_may_be_started_again(control: ControlClient) -> None:
    task_id = await control.create("echo done", draft=True)
    peer = control.harness.peer
    await peer.stop()
    with pytest.raises(PeerUnavailable):
        await control.do("start_task", "s", taskId=task_id)
    record = await control.record(task_id)
    assert (record.status, record.attempts, record.turn_id) == (Status.ACCEPTED, (), None)
    assert f"prepare:{task_id}" not in await control.harness.due(task_id)
    with pytest.raises(VersionMismatch):
        await control.do("start_task", taskId=task_id, version=1)
    await peer.start()
    control.harness.clock.ahead_ms += 60_000
    await control.do("start_task", "s", taskId=task_id)
    await control.until(task_id, Status.COMPLETED)


@pytest.mark.requirement("ST-4", "I9")
async def test_a_task_that_nobody_prepares_any_more_is_put_back(control: ControlClient) -> None:
    task_id = await control.create("echo done")
    control.hold_card()
    starting = asyncio.create_task(control.do("start_task", taskId=task_id))
    await control.until(task_id, Status.PREPARING)
    await control.harness.run_due("prepare", task_id, after_ms=120_000)
    record = await control.record(task_id)
    assert (record.status, record.progress.summary) == (
        Status.ACCEPTED,
        "the preparing instance is gone",
    )
    # One that was only slow goes on all the same.
    control.harness.peer.card_open.set()
    await starting
    await control.until(task_id, Status.COMPLETED)
