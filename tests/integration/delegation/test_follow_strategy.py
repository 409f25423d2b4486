"""The follow strategy of a run: stream, subscription, push notifications, polling (A2A-6)."""

from __future__ import annotations

from typing import cast

import pytest

from passerelle.core.commands import TurnAccepted
from passerelle.core.payloads.run import RunStatus
from passerelle.core.payloads.task import TaskAttemptStarted
from passerelle.core.task.status import Status
from passerelle.core.wire.json import JsonObject
from tests.support.harness import Harness
from tests.support.scripted_tasks import Turn
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio

REGISTER_PUSH = "CreateTaskPushNotificationConfig"


async def work_and_drop(turn: Turn) -> None:
    await turn.status("WORKING")
    await turn.drop()


def make_able(harness: Harness, **capabilities: bool) -> None:
    harness.peer.card = {**harness.peer.card, "capabilities": cast("JsonObject", capabilities)}


async def until_followed_by(harness: Harness, accepted: TurnAccepted, mechanism: str) -> None:
    async def is_followed() -> bool:
        run = (await harness.record(accepted)).run
        return run is not None and run.delivery_mechanism == mechanism

    await wait_until(is_followed, 15, f"the run is followed by {mechanism}")


@pytest.mark.requirement("A2A-6")
async def test_each_delivery_mechanism_of_a_run_is_recorded(harness: Harness) -> None:
    harness.public_url = "https://gw.example.com"
    await harness.restart()
    make_able(harness, streaming=True, pushNotifications=True)
    harness.peer.subscribes = False
    harness.peer.next(work_and_drop)
    accepted = await harness.send("go", wait="stream")
    await until_followed_by(harness, accepted, "push")
    assert harness.peer.count(REGISTER_PUSH) == 1
    (remote,) = harness.peer.tasks.values()
    remote.status("COMPLETED")
    await harness.until(accepted, Status.COMPLETED)
    started, *later = [
        event.fact.payload.delivery_mechanism
        for event in await harness.events(accepted)
        if isinstance(event.fact.payload, RunStatus | TaskAttemptStarted)
        and event.fact.payload.delivery_mechanism is not None
    ]
    assert started == "streaming"
    assert [one for one in later if one != "streaming"] == ["subscription", "push"]


@pytest.mark.requirement("A2A-6")
async def test_next_driver_keeps_the_push_registration_of_a_run(harness: Harness) -> None:
    harness.public_url = "https://gw.example.com"
    await harness.restart()
    make_able(harness, streaming=True, pushNotifications=True)
    harness.peer.subscribes = False
    harness.peer.next(work_and_drop)
    accepted = await harness.send("go", wait="stream")
    await until_followed_by(harness, accepted, "push")
    await harness.restart()
    asked = harness.peer.count("GetTask")
    await harness.adopt(accepted)
    await wait_until(lambda: harness.peer.count("GetTask") > asked + 2, 15, "the run is followed")
    assert harness.peer.count(REGISTER_PUSH) == 1
    await until_followed_by(harness, accepted, "push")


@pytest.mark.requirement("A2A-6")
async def test_agent_that_refuses_push_registration_is_polled(harness: Harness) -> None:
    harness.public_url = "https://gw.example.com"
    await harness.restart()
    make_able(harness, streaming=True, pushNotifications=True)
    harness.peer.subscribes = False
    harness.peer.next(work_and_drop)
    harness.peer.refuses = frozenset({REGISTER_PUSH})
    accepted = await harness.send("go", wait="stream")
    await until_followed_by(harness, accepted, "polling")
    asked = harness.peer.count("GetTask")
    await wait_until(lambda: harness.peer.count("GetTask") > asked + 2, 15, "it is polled")
    assert harness.peer.count(REGISTER_PUSH) == 1
    (remote,) = harness.peer.tasks.values()
    remote.status("COMPLETED")
    await harness.until(accepted, Status.COMPLETED)
