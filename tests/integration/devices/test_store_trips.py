"""Store round trips between an agent and a person: three at most, in either direction.

The count covers what must finish before the frame, or the message, is sent. To a person: the read of the grants that
may decide instead, the append that opens the approval, the copy into the inbox. To the agent: the read that checks the
answer, the append that closes the approval, the attempt stored before the send. Later work does not count: marks, due
rows, notices, links.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Final

import pytest

from passerelle.core.ports.log import StreamKind, StreamRef
from passerelle.core.principal import Principal
from passerelle.core.wire.json import JsonObject
from passerelle.delegation.runs.follow_strategy import Timeouts
from passerelle.store import keys
from tests.integration.callers.rig import Instance, Rig
from tests.integration.devices.asking import ADA, BOB, ask, asks, bearer, make_answer, say
from tests.support.paired_device import PairedDevice, sign_decision
from tests.support.raw_channel import RawChannel, open_channel
from tests.support.store_trips import Trip, Trips, count, describe, watch
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio

MOST: Final = 3
_WITHIN_S: Final = 20.0
_ASKED: Final = b"action.required"
_UNHURRIED: Final = replace(Timeouts(), parked_poll_s=3600.0, parked_poll_max_s=3600.0)
"""No instance polls a waiting agent, so a driver that acts was notified."""


@pytest.fixture
def trips(monkeypatch: pytest.MonkeyPatch) -> Trips:
    return watch(monkeypatch)


@pytest.fixture
async def at(rig: Rig, monkeypatch: pytest.MonkeyPatch, trips: Trips) -> Instance:
    monkeypatch.setattr("passerelle.gateway.assembly.Timeouts", lambda: _UNHURRIED)
    return await rig.start(clients=[ADA, BOB])


async def until_at_rest(at: Instance, view: JsonObject) -> None:
    """Waits until the driver of the only task rests."""

    def look() -> bool:
        dispatch = at.gateway.parts.dispatch
        driver = dispatch.find(str(view["taskId"]).partition(".")[0])
        return driver is not None and dispatch.throttle.resting == 1

    await wait_until(look, _WITHIN_S, "the driver rests")


async def find_trip(
    trips: Trips, kind: str, name: str, since_s: float, holding: bytes = b""
) -> Trip:
    found = await wait_until(
        lambda: trips.find(kind, name, since_s, holding), _WITHIN_S, f"{name} of a {kind}"
    )
    assert found is not None
    return found


async def list_return_trips(trips: Trips, rig: Rig, sent: int, since_s: float) -> list[Trip]:
    """Returns the trips from a received answer to the message that its agent receives."""
    await wait_until(lambda: rig.counted() > sent, _WITHIN_S, "the agent got the answer")
    decided = await find_trip(trips, "request", "append", since_s)
    begun = await find_trip(trips, "driver", "append", decided.ended_s)
    return [
        *trips.list_errand(decided),
        *trips.list_errand(begun, decided.began_s),
    ]


async def test_approval_is_at_a_device_after_three_trips(at: Instance, trips: Trips) -> None:
    url = str(at.http.base_url).rstrip("/")
    async with open_channel(url) as phone:
        await phone.greet("ada-key")
        await phone.send({"t": "sub", "id": "1", "s": "inbox"})
        await phone.expect("live")
        for number in range(1, 10):
            opened, copied, later = await ask_and_follow(at, phone, trips, number)
            visit = trips.list_errand(copied)
            # A relay round that began before does not count: it came upon the row, or reads the shard for the first
            # time.
            if visit[0].began_s >= opened.ended_s and "HGET" not in visit[0].names:
                break
        else:
            pytest.fail("the relay was always under way")
    way = [*trips.list_errand(opened), *visit, *later]
    assert count(way) <= MOST, describe(way)


async def ask_and_follow(
    at: Instance, phone: RawChannel, trips: Trips, number: int
) -> tuple[Trip, Trip, list[Trip]]:
    """Opens an approval; returns the trips of its append, its inbox copy, and the inbox reads until it is shown."""
    since_s = asyncio.get_running_loop().time()
    await at.send("ada-key", asks(action=f"act_asked_{number}"))
    await until_shown(phone, number)
    shown_s = asyncio.get_running_loop().time()
    opened = await find_trip(trips, "driver", "append", since_s, _ASKED)
    copied = await find_trip(trips, "relay", "advance_projection", since_s, _ASKED)
    inbox = keys.entries(StreamRef(StreamKind.INBOX, Principal("ada").key)).encode()
    later = [one for one in trips.all if copied.ended_s <= one.began_s <= shown_s]
    return opened, copied, [one for one in later if "XRANGE" in one.names and inbox in one.packed]


async def until_shown(phone: RawChannel, many: int) -> None:
    """Waits until ``many`` approvals have arrived as events."""

    def count_shown() -> int:
        events = [frame["d"] for frame in phone.frames if frame["t"] == "ev"]
        return sum(event["type"] == "action.required" for event in events)

    async with asyncio.timeout(_WITHIN_S):
        while count_shown() < many:
            await phone.read_more()


@pytest.mark.parametrize("risk", ["medium", "high"])
async def test_answer_over_http_is_at_its_agent_after_three_trips(
    rig: Rig, at: Instance, trips: Trips, risk: str
) -> None:
    view = await ask(at, risk)
    await until_at_rest(at, view)
    sent = rig.counted()
    since_s = asyncio.get_running_loop().time()
    won = await say(at, bearer("ada"), make_answer(view))
    assert won.json()["outcome"] == "won", won.text
    way = await list_return_trips(trips, rig, sent, since_s)
    assert count(way) <= MOST, describe(way)


async def test_signed_answer_of_a_paired_device_is_at_its_agent_after_three_trips(
    rig: Rig, at: Instance, trips: Trips
) -> None:
    device = PairedDevice(at.http)
    await device.pair("ada-key")
    view = await ask(at, "high")
    await until_at_rest(at, view)
    sent = rig.counted()
    since_s = asyncio.get_running_loop().time()
    won = await say(at, device.headers, sign_decision(device, make_answer(view)))
    assert won.json()["outcome"] == "won", won.text
    way = await list_return_trips(trips, rig, sent, since_s)
    assert count(way) <= MOST, describe(way)


async def test_answer_over_a_channel_is_at_its_agent_after_three_trips(
    rig: Rig, at: Instance, trips: Trips
) -> None:
    url = str(at.http.base_url).rstrip("/")
    async with open_channel(url) as phone:
        await phone.greet("ada-key")
        view = await ask(at)
        await until_at_rest(at, view)
        sent = rig.counted()
        since_s = asyncio.get_running_loop().time()
        call: JsonObject = {"t": "rpc", "id": "1", "m": "respond_action", "idem": "k"}
        await phone.send({**call, "d": make_answer(view)})
        assert (await phone.expect("ok", id="1"))["d"]["outcome"] == "won"
        way = await list_return_trips(trips, rig, sent, since_s)
    assert count(way) <= MOST, describe(way)
