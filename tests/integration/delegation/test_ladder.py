"""How a run is followed, rung by rung: by its stream, a subscription, questions, and calls of the peer (A2A-6)."""

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

TELL = "CreateTaskPushNotificationConfig"


async def work_and_break_off(turn: Turn) -> None:
    await turn.status("WORKING")
    await turn.drop()


def make_able(harness: Harness, **capabilities: bool) -> None:
    harness.peer.card = {**harness.peer.card, "capabilities": cast("JsonObject", capabilities)}


async def until_followed_by(harness: Harness, accepted: TurnAccepted, mechanism: str) -> None:
    async def look() -> bool:
        run = (await harness.record(accepted)).run
        return run is not None and run.delivery_mechanism == mechanism

    await wait_until(look, 15, f"the run is followed by {mechanism}")


@pytest.mark.requirement("A2A-6")
async def test_each_rung_that_a_run_was_followed_by_stands_in_its_record(harness: Harness) -> None:
    harness.public_url = "https://gw.example.com"
    await harness.restart()
    make_able(harness, streaming=True, pushNotifications=True)
    harness.peer.subscribes = False
    harness.peer.next(work_and_break_off)
    accepted = await harness.send("go", wait="stream")
    await until_followed_by(harness, accepted, "push")
    assert harness.peer.count(TELL) == 1
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
async def test_whoever_takes_a_run_over_finds_what_its_peer_was_told(harness: Harness) -> None:
    harness.public_url = "https://gw.example.com"
    await harness.restart()
    make_able(harness, streaming=True, pushNotifications=True)
    harness.peer.subscribes = False
    harness.peer.next(work_and_break_off)
    accepted = await harness.send("go", wait="stream")
    await until_followed_by(harness, accepted, "push")
    await harness.restart()
    asked = harness.peer.count("GetTask")
    await harness.adopt(accepted)
    await wait_until(lambda: harness.peer.count("GetTask") > asked + 2, 15, "the run is followed")
    assert harness.peer.count(TELL) == 1
    await until_followed_by(harness, accepted, "push")


@pytest.mark.requirement("A2A-6")
async def test_peer_that_takes_no_such_request_is_asked_as_before(harness: Harness) -> None:
    harness.public_url = "https://gw.example.com"
    await harness.restart()
    make_able(harness, streaming=True, pushNotifications=True)
    harness.peer.subscribes = False
    harness.peer.next(work_and_break_off)
    harness.peer.refuses = frozenset({TELL})
    accepted = await harness.send("go", wait="stream")
    await until_followed_by(harness, accepted, "polling")
    asked = harness.peer.count("GetTask")
    await wait_until(lambda: harness.peer.count("GetTask") > asked + 2, 15, "it is asked")
    assert harness.peer.count(TELL) == 1
    (remote,) = harness.peer.tasks.values()
    remote.status("COMPLETED")
    await harness.until(accepted, Status.COMPLETED)
