"""The link of a screen to the gateway: how it is opened, how it ends, and how long the gateway may be away."""

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
    """How long the gateway has been away; ``patience_s`` is how long it may be."""

    patience_s: float
    _since_s: float | None = None

    def update(self, status: LinkStatus) -> str | None:
        """What a change of the link means to whoever looks; None where it means nothing, empty where all is well."""
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
        """Ends the looking where the gateway stays away.

        Raises:
            RemoteError: it has been away for too long.
        """
        if self._since_s is None:
            return
        away_s = asyncio.get_running_loop().time() - self._since_s
        if away_s > self.patience_s:
            raise RemoteError(f"the gateway has been away for {away_s:.0f} s")


@contextlib.asynccontextmanager
async def open_link(
    url: str,
    token: str | None,
    tls: SSLContext | None,
    name: str,
    on_status: Callable[[LinkStatus], None],
) -> AsyncGenerator[ChannelClient]:
    """A client for as long as the block lasts; what it has missed it shows from a snapshot. ``name`` names its device.

    Raises:
        NotFound, Forbidden, RemoteError: what the gateway would not let us look at, from a group of tasks too.
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
