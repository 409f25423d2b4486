"""The connections of this instance by principal: their number, and the newest one of each channel.

A newer connection of the same device and tab may be on another instance, so the instance subscribes to notifications of
each connected principal. A lost notification only costs time: acks, answers and the next recheck compare generations
themselves (CHN-9).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol, assert_never

from passerelle.core.errors import Limited
from passerelle.core.ports.channels import (
    ConnectionOpened,
    DevicesChanged,
    OwnerForgotten,
    PresenceChanged,
)
from passerelle.protocol.concurrency import keep_until_done

if TYPE_CHECKING:
    from collections.abc import Callable

    from passerelle.channels.limits import ChannelLimits
    from passerelle.core.ports.channels import Channels, ChannelUpdate

_RETRY_S: Final = 5


class RosterMember(Protocol):
    """A connection in the roster."""

    @property
    def channel(self) -> str:
        """Empty before its welcome."""
        ...

    @property
    def generation(self) -> int:
        """Its number within the channel; 0 before its welcome."""
        ...

    def supersede(self) -> None:
        """Ends it: there is a newer one."""
        ...

    def recheck(self) -> None:
        """Makes it check its credential now."""
        ...

    def forget(self) -> None:
        """Ends it: the data of its principal was erased."""
        ...


@dataclass(slots=True, eq=False)
class _Owner:
    """One principal: its connections with the device of each, and the newest one of each channel."""

    devices: dict[RosterMember, str] = field(default_factory=dict["RosterMember", str])
    counts: Counter[str] = field(default_factory=Counter[str])
    """Connections of each device."""
    newest: dict[str, RosterMember] = field(default_factory=dict[str, "RosterMember"])
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Serializes subscribing and unsubscribing."""
    listens: bool = False
    beginning: asyncio.Task[None] | None = None

    def forget_beginning(self, beginning: asyncio.Task[None]) -> None:
        """Waiting connections get the exception; it is retrieved here for those that left."""
        self.beginning = None
        if not beginning.cancelled():
            beginning.exception()


class Roster:
    """All methods run in one event loop."""

    def __init__(
        self, channels: Channels, limits: ChannelLimits, on_presence: Callable[[str], None]
    ) -> None:
        """``on_presence`` is called with principals whose devices changed their presence."""
        self._channels = channels
        self._limits = limits
        self._on_presence = on_presence
        self._owners: dict[str, _Owner] = {}
        self._leaving: set[asyncio.Task[None]] = set()

    async def enter(self, owner: str, device: str, member: RosterMember) -> None:
        """Counts a connection; returns when notifications of newer connections are subscribed.

        Raises:
            Limited: the device or the principal has its maximum; nothing is counted.
            StoreUnavailable: the subscription failed; nothing is counted.
        """
        held = self._owners.setdefault(owner, _Owner())
        self._check(held, device)
        held.devices[member] = device
        held.counts[device] += 1
        try:
            if not held.listens:
                await asyncio.shield(self._listen(owner, held))
        except BaseException:
            self.leave(owner, member)
            raise

    def install(self, owner: str, member: RosterMember) -> None:
        """Registers a welcomed connection and ends the older one of its channel, whatever their generations.

        A store that lost data may have assigned a lower generation.
        """
        held = self._owners.get(owner)
        if held is None:
            return
        older = held.newest.get(member.channel)
        held.newest[member.channel] = member
        if older is not None and older is not member:
            older.supersede()

    def leave(self, owner: str, member: RosterMember) -> None:
        """A connection has ended."""
        held = self._owners.get(owner)
        device = held.devices.pop(member, None) if held else None
        if held is None or device is None:
            return
        held.counts[device] -= 1
        if not held.counts[device]:
            del held.counts[device]
        if held.newest.get(member.channel) is member:
            del held.newest[member.channel]
        if held.devices:
            return
        keep_until_done(asyncio.create_task(self._retire(owner, held)), self._leaving)

    async def close(self) -> None:
        """Returns when the subscriptions of departed principals have ended."""
        if self._leaving:
            await asyncio.wait(self._leaving)

    def _listen(self, owner: str, held: _Owner) -> asyncio.Task[None]:
        """Connections that enter meanwhile share one confirmation."""
        if held.beginning is None:
            held.beginning = asyncio.create_task(self._begin(owner, held))
            held.beginning.add_done_callback(held.forget_beginning)
        return held.beginning

    async def _begin(self, owner: str, held: _Owner) -> None:
        async with held.turn:
            # The connections may have left while waiting for the lock; then nothing would end the subscription.
            if held.devices and not held.listens:
                await self._channels.listen(owner, partial(self._take, owner))
                held.listens = True

    def _check(self, held: _Owner, device: str) -> None:
        limits = self._limits
        if len(held.devices) >= limits.principal_connections:
            raise Limited("concurrency", "too many connections of the principal", _RETRY_S)
        if held.counts[device] >= limits.device_connections:
            raise Limited("concurrency", "too many connections of the device", _RETRY_S)

    def _take(self, owner: str, news: ChannelUpdate) -> None:
        match news:
            case ConnectionOpened(channel, generation):
                held = self._owners.get(owner)
                member = held.newest.get(channel) if held else None
                if member is not None and member.generation < generation:
                    member.supersede()
            case PresenceChanged():
                self._on_presence(owner)
            case DevicesChanged():
                held = self._owners.get(owner)
                for member in tuple(held.devices) if held else ():
                    member.recheck()
            case OwnerForgotten():
                held = self._owners.get(owner)
                for member in tuple(held.devices) if held else ():
                    member.forget()
            case _:
                assert_never(news)

    async def _retire(self, owner: str, held: _Owner) -> None:
        async with held.turn:
            if held.devices or self._owners.get(owner) is not held:
                return
            if held.listens:
                held.listens = False
                await self._channels.ignore(owner)
            if not held.devices:
                del self._owners[owner]
