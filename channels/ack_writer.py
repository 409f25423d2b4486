"""Writes the acks of one connection: the generation that owns a device's stream, and the acknowledged cursor."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from passerelle.channels.inputs import AckJudged
from passerelle.channels.views import JobRowView, MessageView, PacketView, TaskRowView, TaskView
from passerelle.core.errors import StoreUnavailable
from passerelle.protocol.concurrency import keep_until_done

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from passerelle.channels.holder import HolderRights
    from passerelle.channels.inputs import Input
    from passerelle.channels.services import ChannelServices, StreamGrant
    from passerelle.core.ports.channels import AckResult
    from passerelle.protocol.cursor import Cursor


class AckWriter:
    """Feeds the store's result for each ack back into the connection's state machine."""

    __slots__ = ("_feed", "_pending", "_rights", "_services")

    def __init__(
        self, services: ChannelServices, rights: HolderRights, feed: Callable[[Input], None]
    ) -> None:
        self._services = services
        self._rights = rights
        self._feed = feed
        self._pending: set[asyncio.Task[None]] = set()

    def name_device(self, stream: str, grant: StreamGrant) -> str:
        """The field of a stream's acks: acks of a task's view never move the ack of its session."""
        return name_ack(self._rights.known.device, stream, grant)

    async def claim(self, stream: str, grant: StreamGrant) -> bool:
        """Writes this connection's generation to the ack row, so that older connections can no longer move it.

        Returns False if a newer connection of the device has done so.
        """
        result = await self._write(stream, grant, "")
        if result == "stale_generation":
            self._feed(AckJudged(stream, result))
        return result != "stale_generation"

    def store(self, stream: str, grant: StreamGrant, cursor: Cursor) -> None:
        """Stores an ack in a task that outlives the connection: the client sent it before the socket ended."""
        keep_until_done(asyncio.create_task(self._store(stream, grant, cursor)), self._pending)

    async def finish(self, within_s: float) -> None:
        """Returns when pending acks are stored, or after ``within_s``."""
        if self._pending:
            await asyncio.wait(self._pending, timeout=within_s)

    async def _store(self, stream: str, grant: StreamGrant, cursor: Cursor) -> None:
        with suppress(StoreUnavailable):  # the client still has its cursor, and acks the next one
            result = await self._write(stream, grant, str(cursor))
            self._services.counts.acks[result] += 1
            self._feed(AckJudged(stream, result))

    def _write(self, stream: str, grant: StreamGrant, cursor: str) -> Awaitable[AckResult]:
        services, known = self._services, self._rights.known
        return services.acks.store_ack(
            grant.stream,
            name_ack(known.device, stream, grant),
            known.generation,
            cursor,
            services.store_clock.now_ms(),
        )


def name_ack(device: str, stream: str, grant: StreamGrant) -> str:
    """The name of a device's ack: a view derived from a stream never moves the ack of the stream itself.

    Each caller names its devices, so those of a reader that does not own the stream have its key after their name.
    """
    derived = stream if isinstance(grant.view, _READ_OFF) else ""
    if grant.reader is not None:
        return f"{device}@{derived}@{grant.reader}"
    return f"{device}@{derived}" if derived else device


_READ_OFF: Final = (TaskView, PacketView, MessageView, TaskRowView, JobRowView)
