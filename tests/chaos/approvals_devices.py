"""Devices that reconnect: what was open when their connection broke is shown to them first (P8)."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import aiohttp
from websockets.exceptions import WebSocketException

from passerelle.a2a_mapping.members import objects_at
from tests.support.raw_channel import RawChannel, open_channel
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from passerelle.core.wire.json import JsonObject
    from tests.chaos.approvals_site import ApprovalSite
    from tests.support.raw_channel import ServerFrame

_BACK_S: Final = 60.0
_BROKEN: Final = (OSError, TimeoutError, WebSocketException)


@dataclass(slots=True)
class Onlooker:
    """A person's device that reconnects whenever its connection breaks.

    ``place`` is its preferred gateway. ``shown`` are all approvals that it has seen, ``closed`` those that it knows
    to be closed; ``welcomes`` counts the snapshots of open approvals that it received.
    """

    site: ApprovalSite
    http: aiohttp.ClientSession
    key: str
    place: int
    shown: set[str] = field(default_factory=set[str])
    closed: set[str] = field(default_factory=set[str])
    welcomes: int = 0
    faults: list[str] = field(default_factory=list[str])

    async def run(self) -> None:
        """Runs until cancelled."""
        while True:
            with suppress(*_BROKEN):
                async with open_channel(self.site.url(self.site.choose(self.place))) as channel:
                    await self._attend(channel)
            await asyncio.sleep(0.1)  # no busy loop when connections fail at once

    async def _attend(self, channel: RawChannel) -> None:
        await channel.send(compose_hello(self.key, f"dev_onlooker{self.place}"))
        first = await channel.read()
        if first["t"] != "welcome":
            self.faults.append(f"a device that reconnected was sent {first} first")
            return
        await self._compare(first)
        while True:
            frame = await channel.read()
            if frame["t"] == "ev" and frame["d"]["type"] == "action.required":
                self.shown.add(str(frame["d"]["actionId"]))
            elif frame["t"] == "snap":
                self.shown |= {str(one["actionId"]) for one in frame["d"]["pending"]}

    async def _compare(self, welcome: ServerFrame) -> None:
        """An approval that was shown before and is missing now must be closed."""
        pending = {str(one["actionId"]) for one in welcome["pending"]}
        self.welcomes += bool(pending & self.shown)
        self.shown |= pending
        for action in self.shown - self.closed - pending:
            view = await self._find(action)
            if view is not None and view.get("state") == "pending":
                self.faults.append(f"{action} is open, and was not shown again: {pending}")
            elif view is not None:
                self.closed.add(action)

    async def _find(self, action: str) -> JsonObject | None:
        """The current approval; None if no gateway can answer."""
        with suppress(aiohttp.ClientError, *_BROKEN):
            url = f"{self.site.url(self.site.choose(0))}/v1/approvals/{action}"
            headers = {"Authorization": f"Bearer {self.key}"}
            async with self.http.get(url, headers=headers) as response:
                found: JsonObject = await response.json(content_type=None)
                return found if response.ok else None
        return None


async def greet_again(site: ApprovalSite, key: str, action: str) -> None:
    """A device greets a gateway, which dies of it; the next gateway has to show the approval.

    Raises:
        AssertionError: something else was shown first, or nothing in time.
    """
    number = 0

    async def greet() -> bool:
        nonlocal number
        number += 1
        with suppress(*_BROKEN):
            async with open_channel(site.url(site.choose(number))) as channel:
                await channel.send(compose_hello(key, "dev_back"))
                first = await channel.read()
                assert first["t"] == "welcome", first
                pending = [one["actionId"] for one in objects_at(first, "pending")]
                assert action in pending, f"{action} is not shown again: {pending}"
                return True
        return False

    before = site.deaths
    await wait_until(greet, _BACK_S, "a device is welcome")
    assert site.deaths > before, "no gateway died of the greeting"


def compose_hello(key: str, device: str) -> JsonObject:
    """The hello of a device that follows its inbox."""
    return {
        "t": "hello",
        "v": 1,
        "token": key,
        "device": device,
        "role": "ui",
        "sdk": "test",
        "caps": ["rpc"],
        "resume": None,
        "subs": [{"s": "inbox", "from": "live"}],
    }
