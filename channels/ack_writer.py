"""Writes the acks of one connection: which generation has a stream of a device, and how far the device has come."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from passerelle.channels.inputs import AckJudged
from passerelle.channels.views import JobRowView, MessageView, PacketView, TaskRowView, TaskView
from passerelle.core.errors import StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from passerelle.channels.holder import HolderRights
    from passerelle.channels.inputs import Input
    from passerelle.channels.services import ChannelServices, StreamGrant
    from passerelle.core.ports.channels import AckResult
    from passerelle.protocol.cursor import Cursor


class AckWriter:
    """What the store says of an ack is fed to the machine."""

    __slots__ = ("_feed", "_services", "_standing", "_under_way")

    def __init__(
        self, services: ChannelServices, standing: HolderRights, feed: Callable[[Input], None]
    ) -> None:
        self._services = services
        self._standing = standing
        self._feed = feed
        self._under_way: set[asyncio.Task[None]] = set()

    def name_device(self, stream: str, grant: StreamGrant) -> str:
        """The field of a stream's acks: a task's view never moves the ack of its session."""
        return name_ack(self._standing.known.device, stream, grant)

    async def claim(self, stream: str, grant: StreamGrant) -> bool:
        """Writes our generation beside the ack, so that an older connection can move it no more.

        False where a newer connection of the device has done so.
        """
        result = await self._write(stream, grant, "")
        if result == "stale_generation":
            self._feed(AckJudged(stream, result))
        return result != "stale_generation"

    def store(self, stream: str, grant: StreamGrant, cursor: Cursor) -> None:
        """Stores an ack. It outlives the connection: the socket may have ended, the ack was said before."""
        task = asyncio.create_task(self._store(stream, grant, cursor))
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)

    async def finish(self, within_s: float) -> None:
        """Returns when the acks so far are stored, or after ``within_s``."""
        if self._under_way:
            await asyncio.wait(self._under_way, timeout=within_s)

    async def _store(self, stream: str, grant: StreamGrant, cursor: Cursor) -> None:
        with suppress(StoreUnavailable):  # the client still has its cursor, and acks the next one
            result = await self._write(stream, grant, str(cursor))
            self._services.counts.acks[result] += 1
            self._feed(AckJudged(stream, result))

    def _write(self, stream: str, grant: StreamGrant, cursor: str) -> Awaitable[AckResult]:
        services, known = self._services, self._standing.known
        return services.acks.store_ack(
            grant.stream,
            name_ack(known.device, stream, grant),
            known.generation,
            cursor,
            services.store_clock.now_ms(),
        )


def name_ack(device: str, stream: str, grant: StreamGrant) -> str:
    """Under which name a device's ack is stored: one stream that is read off another never moves the ack of that."""
    return f"{device}@{stream}" if isinstance(grant.view, _READ_OFF) else device


_READ_OFF: Final = (TaskView, PacketView, MessageView, TaskRowView, JobRowView)
