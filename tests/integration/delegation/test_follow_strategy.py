"""The follow strategy of a run: stream, subscription, push notifications, polling (A2A-6)."""

from __future__ import annotations

from typing import cast

import pytest

from passerelle.core.commands import TurnAccepted
from passerelle.core.payloads.run import RunStatus
from passerelle.core.payloads.task import TaskAttemptStarted
from passerelle.core.task.status import Status
from passerelle.core.wire.json import JsonObject
from tests.support.house import House
from tests.support.scripted_tasks import Turn
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio

REGISTER_PUSH = "CreateTaskPushNotificationConfig"


async def work_and_drop(turn: Turn) -> None:
    await turn.status("WORKING")
    await turn.drop()


def make_able(house: House, **capabilities: bool) -> None:
    house.peer.card = {**house.peer.card, "capabilities": cast("JsonObject", capabilities)}


async def until_followed_by(house: House, accepted: TurnAccepted, mechanism: str) -> None:
    async def is_followed() -> bool:
        run = (await house.record(accepted)).run
        return run is not None and run.delivery_mechanism == mechanism

    await wait_until(is_followed, 15, f"the run is followed by {mechanism}")


@pytest.mark.requirement("A2A-6")
async def test_each_delivery_mechanism_of_a_run_is_recorded(house: House) -> None:
    house.public_url = "https://gw.example.com"
    await house.restart()
    make_able(house, streaming=True, pushNotifications=True)
    house.peer.subscribes = False
    house.peer.next(work_and_drop)
    accepted = await house.send("go", wait="stream")
    await until_followed_by(house, accepted, "push")
    assert house.peer.count(REGISTER_PUSH) == 1
    (remote,) = house.peer.tasks.values()
    remote.status("COMPLETED")
    await house.until(accepted, Status.COMPLETED)
    started, *later = [
        event.fact.payload.delivery_mechanism
        for event in await house.events(accepted)
        if isinstance(event.fact.payload, RunStatus | TaskAttemptStarted)
        and event.fact.payload.delivery_mechanism is not None
    ]
    assert started == "streaming"
    assert [one for one in later if one != "streaming"] == ["subscription", "push"]


@pytest.mark.requirement("A2A-6")
async def test_next_driver_keeps_the_push_registration_of_a_run(house: House) -> None:
    house.public_url = "https://gw.example.com"
    await house.restart()
    make_able(house, streaming=True, pushNotifications=True)
    house.peer.subscribes = False
    house.peer.next(work_and_drop)
    accepted = await house.send("go", wait="stream")
    await until_followed_by(house, accepted, "push")
    await house.restart()
    asked = house.peer.count("GetTask")
    await house.adopt(accepted)
    await wait_until(lambda: house.peer.count("GetTask") > asked + 2, 15, "the run is followed")
    assert house.peer.count(REGISTER_PUSH) == 1
    await until_followed_by(house, accepted, "push")


@pytest.mark.requirement("A2A-6")
async def test_agent_that_refuses_push_registration_is_polled(house: House) -> None:
    house.public_url = "https://gw.example.com"
    await house.restart()
    make_able(house, streaming=True, pushNotifications=True)
    house.peer.subscribes = False
    house.peer.next(work_and_drop)
    house.peer.refuses = frozenset({REGISTER_PUSH})
    accepted = await house.send("go", wait="stream")
    await until_followed_by(house, accepted, "polling")
    asked = house.peer.count("GetTask")
    await wait_until(lambda: house.peer.count("GetTask") > asked + 2, 15, "it is polled")
    assert house.peer.count(REGISTER_PUSH) == 1
    (remote,) = house.peer.tasks.values()
    remote.status("COMPLETED")
    await house.until(accepted, Status.COMPLETED)
