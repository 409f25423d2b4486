"""Presence as one instance shows it: the words of its connections go to the store, those of all devices come back.

Who has said something of itself is shown who else is there: at once, then whenever that changes, with a
pause between two. A word that runs out is told by nobody, so the store is looked at again when the next one may have.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

from passerelle.core.errors import StoreUnavailable
from passerelle.core.session.presence import Presence
from passerelle.protocol.frames import ShowPresence

if TYPE_CHECKING:
    from passerelle.channels.admission import Admission
    from passerelle.core.ports.channels import Presences, PresentDevice
    from passerelle.core.wire.json import Json, JsonObject
    from passerelle.protocol.frames import SayPresence

_LATE_S: Final = 0.05
"""How long after its end a word is looked for again."""


class PresenceWatcher(Protocol):
    """A connection that is shown who is there."""

    def show_presence(self, shown: ShowPresence) -> None:
        """Sends it on."""
        ...


@dataclass(slots=True, eq=False)
class _Room:
    """The devices of one principal, as its connections here were shown them last."""

    watchers: dict[PresenceWatcher, tuple[Presence, ...] | None] = field(
        default_factory=dict[PresenceWatcher, "tuple[Presence, ...] | None"]
    )
    reading: asyncio.Task[None] | None = None
    stale: bool = False
    timer: asyncio.TimerHandle | None = None


class PresenceBoard:
    """Who is there, for the connections of this instance. All methods run in one event loop."""

    def __init__(self, presences: Presences, pause_s: float) -> None:
        self._presences = presences
        self._pause_s = pause_s
        self._rooms: dict[str, _Room] = {}

    def watch(self, owner: str, watcher: PresenceWatcher) -> None:
        """Shows who is there from now on; again for who is shown it already does nothing."""
        room = self._rooms.setdefault(owner, _Room())
        if watcher not in room.watchers:
            room.watchers[watcher] = None
            self.refresh(owner)

    def leave(self, owner: str, watcher: PresenceWatcher) -> None:
        """A connection has ended."""
        room = self._rooms.get(owner)
        if room is None:
            return
        room.watchers.pop(watcher, None)
        if not room.watchers:
            del self._rooms[owner]
            if room.timer is not None:
                room.timer.cancel()
            if room.reading is not None:
                room.reading.cancel()

    def refresh(self, owner: str) -> None:
        """Somebody may have come, gone or moved."""
        room = self._rooms.get(owner)
        if room is None:
            return
        room.stale = True
        if room.reading is None:
            room.reading = asyncio.create_task(self._read(owner, room))

    async def _read(self, owner: str, room: _Room) -> None:
        while room.stale:
            room.stale = False
            with suppress(StoreUnavailable):  # who is there is asked again with the next word
                self._show(owner, room, await self._presences.list_present(owner))
            await asyncio.sleep(self._pause_s)
        room.reading = None

    def _show(self, owner: str, room: _Room, present: tuple[PresentDevice, ...]) -> None:
        words = tuple(one.presence for one in present)
        frame = ShowPresence(f"inbox:{owner}", tuple(_describe(word) for word in words))
        for watcher, shown in tuple(room.watchers.items()):
            if shown != words:
                room.watchers[watcher] = words
                watcher.show_presence(frame)
        if room.timer is not None:
            room.timer.cancel()
        if present:
            ends_s = min(one.left_ms for one in present) / 1000 + _LATE_S
            loop = asyncio.get_running_loop()
            room.timer = loop.call_later(ends_s, self.refresh, owner)


class OwnPresence:
    """The word of one connection on its way to the store: one write at a time, and the last word wins."""

    def __init__(self, presences: Presences) -> None:
        self._presences = presences
        self._next: SayPresence | None = None
        self._is_writing = False
        self.has_spoken = False
        """Whether the store was told anything."""

    def put(self, said: SayPresence) -> bool:
        """Takes a word; True where ``write`` has to be run for it."""
        self._next = said
        return not self._is_writing

    async def write(self, known: Admission) -> None:
        """Writes the words that are taken meanwhile. A store that is away hears them with the next heartbeat."""
        self._is_writing = self.has_spoken = True
        try:
            while (said := self._next) is not None:
                self._next = None
                word = Presence(
                    known.channel, known.device_id, known.tab, said.state, tuple(sorted(said.focus))
                )
                await self._presences.announce(known.principal.key, known.generation, word)
        except StoreUnavailable:
            return
        finally:
            self._is_writing = False

    async def withdraw(self, known: Admission) -> None:
        """The connection has ended. Raises StoreUnavailable; its word goes by itself then."""
        await self._presences.withdraw(known.principal.key, known.channel, known.generation)


def _describe(word: Presence) -> JsonObject:
    focus: list[Json] = [*word.focus]
    tab: JsonObject = {} if word.tab is None else {"tab": word.tab}
    return {"device": word.device, **tab, "state": word.state, "focus": focus}
