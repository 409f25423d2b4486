"""Presence: writes the presence of this instance's connections, and shows them that of all devices of the principal.

A device that reports its presence is sent that of all others: at once, then after each change, with a pause between two
frames. The expiry of a presence triggers no notification, so the store is read again when the next one may expire.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

from passerelle.core.errors import StoreUnavailable
from passerelle.core.ports.channels import Presence
from passerelle.protocol.frames import ShowPresence

if TYPE_CHECKING:
    from passerelle.channels.admission import Admission
    from passerelle.core.ports.channels import Presences, PresentDevice
    from passerelle.core.wire.json import Json, JsonObject
    from passerelle.protocol.frames import SayPresence

_LATE_S: Final = 0.05
"""How long after a presence's expiry the store is read again."""


class PresenceWatcher(Protocol):
    """A connection that is sent presence."""

    def show_presence(self, shown: ShowPresence) -> None:
        """Sends the frame."""
        ...


@dataclass(slots=True, eq=False)
class _PresenceGroup:
    """The devices of one principal, as last sent to its connections here."""

    watchers: dict[PresenceWatcher, tuple[Presence, ...] | None] = field(
        default_factory=dict[PresenceWatcher, "tuple[Presence, ...] | None"]
    )
    reading: asyncio.Task[None] | None = None
    stale: bool = False
    timer: asyncio.TimerHandle | None = None


class PresenceBoard:
    """Presence for the connections of this instance. All methods run in one event loop."""

    def __init__(self, presences: Presences, pause_s: float) -> None:
        self._presences = presences
        self._pause_s = pause_s
        self._groups: dict[str, _PresenceGroup] = {}

    def watch(self, owner: str, watcher: PresenceWatcher) -> None:
        """Starts sending presence to a connection; no effect if it is sent already."""
        group = self._groups.setdefault(owner, _PresenceGroup())
        if watcher not in group.watchers:
            group.watchers[watcher] = None
            self.refresh(owner)

    def leave(self, owner: str, watcher: PresenceWatcher) -> None:
        """A connection has ended."""
        group = self._groups.get(owner)
        if group is None:
            return
        group.watchers.pop(watcher, None)
        if not group.watchers:
            del self._groups[owner]
            if group.timer is not None:
                group.timer.cancel()
            if group.reading is not None:
                group.reading.cancel()

    def refresh(self, owner: str) -> None:
        """The presence of a device may have changed."""
        group = self._groups.get(owner)
        if group is None:
            return
        group.stale = True
        if group.reading is None:
            group.reading = asyncio.create_task(self._read(owner, group))

    async def _read(self, owner: str, group: _PresenceGroup) -> None:
        try:
            while group.stale:
                group.stale = False
                with suppress(StoreUnavailable):  # retried at the next change
                    self._show(owner, group, await self._presences.list_present(owner))
                await asyncio.sleep(self._pause_s)
        finally:
            group.reading = None

    def _show(self, owner: str, group: _PresenceGroup, present: tuple[PresentDevice, ...]) -> None:
        presences = tuple(one.presence for one in present)
        frame = ShowPresence(f"inbox:{owner}", tuple(_describe(presence) for presence in presences))
        for watcher, shown in tuple(group.watchers.items()):
            if shown != presences:
                group.watchers[watcher] = presences
                watcher.show_presence(frame)
        if group.timer is not None:
            group.timer.cancel()
        if present:
            ends_s = min(one.left_ms for one in present) / 1000 + _LATE_S
            loop = asyncio.get_running_loop()
            group.timer = loop.call_later(ends_s, self.refresh, owner)


class OwnPresence:
    """Writes the presence of one connection: one write at a time; the last state wins."""

    def __init__(self, presences: Presences) -> None:
        self._presences = presences
        self._next: SayPresence | None = None
        self._is_writing = False
        self.has_spoken = False
        """Whether presence was ever written to the store."""

    def put(self, said: SayPresence) -> bool:
        """Sets the next state; returns True if ``write`` must be started."""
        self._next = said
        return not self._is_writing

    async def write(self, known: Admission) -> None:
        """Writes states until none is left. If the store is unavailable, the next heartbeat writes again."""
        self._is_writing = self.has_spoken = True
        try:
            while (said := self._next) is not None:
                self._next = None
                presence = Presence(
                    known.channel, known.device_id, known.tab, said.state, tuple(sorted(said.focus))
                )
                await self._presences.announce(known.principal.key, known.generation, presence)
        except StoreUnavailable:
            return
        finally:
            self._is_writing = False

    async def withdraw(self, known: Admission) -> None:
        """Removes the presence at the end of the connection. Raises StoreUnavailable; it expires by itself then."""
        await self._presences.withdraw(known.principal.key, known.channel, known.generation)


def _describe(presence: Presence) -> JsonObject:
    focus: list[Json] = [*presence.focus]
    tab: JsonObject = {} if presence.tab is None else {"tab": presence.tab}
    return {"device": presence.device, **tab, "state": presence.state, "focus": focus}
