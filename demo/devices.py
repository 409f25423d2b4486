"""A device of the owner: the shipped channel client, and a record of the items that it received.

The client drops duplicates and raises at a gap, so the record equals what an application would have.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeVar, assert_never, cast

from passerelle.a2a_mapping.members import object_at, objects_at, text_at
from passerelle.client.channel import ChannelClient
from passerelle.client.items import Event, Gap, Live, Snapshot
from passerelle.demo.checks import wait_for
from passerelle.protocol.concurrency import cancel_all

if TYPE_CHECKING:
    from passerelle.core.wire.json import JsonObject
    from passerelle.protocol.frames import StartAt

T = TypeVar("T")

INBOX: Final = "inbox"


@dataclass(slots=True)
class DemoDevice:
    """One device. ``events`` and ``snapshots`` are grouped by stream, in the order of arrival."""

    name: str
    client: ChannelClient
    events: dict[str, list[JsonObject]] = field(
        default_factory=lambda: defaultdict[str, list["JsonObject"]](list)
    )
    snapshots: dict[str, list[JsonObject]] = field(
        default_factory=lambda: defaultdict[str, list["JsonObject"]](list)
    )
    gaps: list[str] = field(default_factory=list[str])
    _following: list[asyncio.Task[None]] = field(default_factory=list["asyncio.Task[None]"])

    def follow(self, stream: str) -> None:
        """Follows a stream until the device is closed: a session from its first event, the inbox from now."""
        self._following.append(
            asyncio.create_task(self._listen(stream), name=f"{self.name} {stream}")
        )

    def sequences(self, stream: str) -> list[int]:
        """Returns the sequence of each event."""
        return [cast("int", event["sequence"]) for event in self.events[stream]]

    def find_end(self, stream: str) -> int:
        """Returns the sequence of the last event, 0 before the first."""
        return self.sequences(stream)[-1] if self.events[stream] else 0

    def find(self, stream: str, kind: str) -> list[JsonObject]:
        """Returns the events of one type."""
        return [event for event in self.events[stream] if event["type"] == kind]

    def read_artifact(self, stream: str) -> str:
        """Returns the artifact's text, built from the A2A frames in the events: a chunk appends or replaces."""
        text = ""
        for event in self.events[stream]:
            update = object_at(object_at(object_at(event, "payload"), "a2a"), "artifactUpdate")
            parts = objects_at(object_at(update, "artifact"), "parts")
            chunk = "".join(text_at(part, "text") for part in parts)
            text = text + chunk if update.get("append") or not update else chunk
        return text

    async def await_lines(self, stream: str, count: int) -> None:
        """Waits until the artifact has this number of lines."""
        await self._await(
            f"sees {count} lines", lambda: self.read_artifact(stream).count("\n") >= count
        )

    async def await_event(self, stream: str, kind: str) -> JsonObject:
        """Waits for the first event of a type and returns it."""
        found = await self._await(f"sees {kind}", lambda: self.find(stream, kind))
        return found[0]

    async def await_snapshot(self, stream: str) -> JsonObject:
        """Waits for the first snapshot and returns it; later changes arrive as events."""
        found = await self._await("has a snapshot", lambda: self.snapshots[stream])
        return found[0]

    @property
    def connections(self) -> int:
        """Number of times that this gateway has welcomed the device."""
        welcome = self.client.welcome
        return 0 if welcome is None else welcome.generation

    async def await_welcome(self) -> None:
        """Waits until the device is connected."""
        await wait_for(f"{self.name} is welcomed", lambda: self.client.welcome is not None)

    @property
    def pending(self) -> tuple[JsonObject, ...]:
        """The open actions of the last welcome."""
        welcome = self.client.welcome
        return () if welcome is None else welcome.pending

    async def leave(self) -> None:
        """Stops following."""
        await cancel_all(self._following)

    async def _await(self, words: str, look: Callable[[], T]) -> T:
        """Waits for a condition. Raises the error of a listener that has ended, since no further item would arrive."""

        def look_well() -> T:
            for task in self._following:
                if task.done():
                    task.result()
            return look()

        return await wait_for(f"{self.name} {words}", look_well)

    async def _listen(self, stream: str) -> None:
        start: StartAt | None = None if stream == INBOX else "start"
        async for item in self.client.stream(stream, start=start):
            match item:
                case Event():
                    self.events[stream].append(item.data)
                case Snapshot():
                    self.snapshots[stream].append(item.data)
                case Gap():
                    self.gaps.append(item.why.value)
                    continue
                case Live():
                    pass
                case _:
                    assert_never(item)
            await item.ack()


@contextlib.asynccontextmanager
async def open_device(url: str, token: str, name: str) -> AsyncGenerator[DemoDevice]:
    """Opens a connected device; ``url`` is that of the gateway or of a network proxy in front of it."""
    address = f"{url.replace('http', 'ws', 1)}/v1/channel"
    async with ChannelClient(address, token=token, device=name) as client:
        device = DemoDevice(name, client)
        try:
            await device.await_welcome()
            yield device
        finally:
            await device.leave()
