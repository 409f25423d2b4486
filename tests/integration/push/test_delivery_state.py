"""The delivery state of a result for each consumer (PO-6, SNAP-19)."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from passerelle.client.channel import ChannelClient
from passerelle.client.items import Event, Gap, Live
from tests.integration.push.rig import Rig
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio
_WITHIN_S = 10


async def consumers(rig: Rig, task: str) -> dict[str, str]:
    response = await rig.http.get(f"/v1/tasks/{task}/delivery")
    assert response.status_code == 200, response.text
    return cast("dict[str, str]", response.json()["consumers"])


async def until_state(rig: Rig, task: str, consumer: str, state: str) -> None:
    async def look() -> bool:
        return (await consumers(rig, task)).get(consumer) == state

    await wait_until(look, _WITHIN_S, f"{consumer} is {state}")


async def follow(rig: Rig, session: str, ready: asyncio.Event) -> None:
    """A phone that acknowledges every item."""
    url = str(rig.http.base_url).replace("http", "ws", 1).rstrip("/") + "/v1/channel"
    async with ChannelClient(url, device="phone", token=rig.token) as channel:
        async for item in channel.stream(f"session:{session}"):
            if isinstance(item, Gap):
                continue
            await item.ack()
            if isinstance(item, Live | Event):
                ready.set()


async def leave(following: asyncio.Task[None]) -> None:
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)


@pytest.mark.requirement("PO-6", "SNAP-19")
async def test_webhook_is_pending_then_queued_failed_or_delivered(rig: Rig) -> None:
    task = await rig.held_task()
    await rig.hook(task, "/well", id="well")
    await rig.hook(task, "/busy", id="busy")
    await rig.hook(task, "/gone", id="gone")
    assert await consumers(rig, task) == {
        "parent": "not_applicable",
        "webhook:well": "pending",
        "webhook:busy": "pending",
        "webhook:gone": "pending",
    }
    rig.receiver.answer("/busy", *[503] * 50)
    rig.receiver.answer("/gone", *[410] * 50)
    rig.peer.release_all()
    await until_state(rig, task, "webhook:well", "delivered")
    await until_state(rig, task, "webhook:busy", "queued")
    await until_state(rig, task, "webhook:gone", "failed")
    assert (await consumers(rig, task))["facade"] == "delivered"


@pytest.mark.requirement("SNAP-19", "I5")
async def test_reconnected_device_receives_the_result(rig: Rig) -> None:
    task = await rig.held_task()
    session, ready = (await rig.session_of(task)).id, asyncio.Event()
    following = asyncio.create_task(follow(rig, session, ready))
    await asyncio.wait_for(ready.wait(), _WITHIN_S)
    await until_state(rig, task, "device:phone", "pending")
    await leave(following)
    rig.peer.release_all()
    await until_state(rig, task, "facade", "delivered")
    assert (await consumers(rig, task))["device:phone"] == "pending", (
        "the delivery does not wait for a device"
    )
    following = asyncio.create_task(follow(rig, session, asyncio.Event()))
    await until_state(rig, task, "device:phone", "delivered")
    await leave(following)
