"""The channel of a watch screen: opening, errors, and how long the gateway may be unavailable."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, assert_never

from passerelle.client.channel import ChannelClient
from passerelle.client.items import (
    ChannelStopped,
    Connected,
    Connecting,
    Offline,
    Stopped,
    StreamClosed,
)
from passerelle.core.errors import Forbidden, NotFound, RemoteError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable
    from ssl import SSLContext

    from passerelle.client.items import Gap, GapChoice, LinkStatus


@dataclass(slots=True)
class OutageTimer:
    """Measures how long the gateway is unavailable, up to ``patience_s`` seconds."""

    patience_s: float
    _since_s: float | None = None

    def update(self, status: LinkStatus) -> str | None:
        """Updates the outage; returns a note for the user, empty if connected, None if the change is not worth one."""
        match status:
            case Connected():
                was_away, self._since_s = self._since_s is not None, None
                return "connected again" if was_away else ""
            case Offline(next_try_s=next_try_s):
                if self._since_s is None:
                    self._since_s = asyncio.get_running_loop().time()
                return f"no gateway, next try in {next_try_s:.1f} s"
            case Connecting() | Stopped():
                return None
            case _:
                assert_never(status)

    def check(self) -> None:
        """Ends the watch if the gateway is unavailable for too long.

        Raises:
            RemoteError: it has been unavailable for too long.
        """
        if self._since_s is None:
            return
        away_s = asyncio.get_running_loop().time() - self._since_s
        if away_s > self.patience_s:
            raise RemoteError(f"the gateway has been unavailable for {away_s:.0f} s")


@contextlib.asynccontextmanager
async def open_link(
    url: str,
    token: str | None,
    tls: SSLContext | None,
    name: str,
    on_status: Callable[[LinkStatus], None],
) -> AsyncGenerator[ChannelClient]:
    """Opens a client for the block; after a gap it takes a snapshot. ``name`` is the prefix of its device name.

    Raises:
        NotFound, Forbidden, RemoteError: the gateway refused the stream; also raised out of a task group.
    """
    client = ChannelClient(
        f"{url.replace('http', 'ws', 1)}/v1/channel",
        device=f"{name}_{secrets.token_hex(6)}",
        token=token,
        role="ui",
        on_gap=_take_snapshot,
        on_status=on_status,
        tls=tls,
    )
    try:
        async with client:
            yield client
    except BaseExceptionGroup as group:
        raise _explain(group.exceptions[0]) from None


async def _take_snapshot(_gap: Gap) -> GapChoice:
    return "snapshot"


def _explain(error: BaseException) -> BaseException:
    match error:
        case StreamClosed(code="forbidden", stream=stream):
            return Forbidden(f"this token may not read {stream}")
        case StreamClosed(stream=stream, code="not_found"):
            kind, _, name = stream.partition(":")
            return NotFound(kind, name)
        case StreamClosed() | ChannelStopped():
            return RemoteError(f"the gateway ended the channel: {error}")
        case _:
            return error
