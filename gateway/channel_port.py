"""Opens the port that serves channels only, if configured; its library is an extra and imported only then."""

from __future__ import annotations

from contextlib import asynccontextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

from passerelle.core.errors import ConfigInvalid
from passerelle.gateway.server import bind

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from passerelle.gateway.edges import Edges
    from passerelle.gateway.server_tls import ServerTls
    from passerelle.gateway.settings.model import Settings

CHANNEL_PATH: Final = "/v1/channel"
WITHOUT_EXTRA: Final = "a channel port needs another library: pip install 'passerelle[fast]'"


def require_extra(settings: Settings) -> None:
    """Reports early that the library is missing.

    Raises:
    ConfigInvalid: the port is configured, and the library is not installed.
    """
    if settings.channels.port is not None and find_spec("picows") is None:
        raise ConfigInvalid("channels.port", WITHOUT_EXTRA)


@asynccontextmanager
async def open_channel_port(
    settings: Settings, edges: Edges, tls: ServerTls | None
) -> AsyncGenerator[str | None]:
    """Serves the channels of ``edges`` until the block ends; yields the URL of the path, or None if it is off.

    Open channels were drained before the end: the drain of ``edges`` covers all of them.

    Raises:
    ConfigInvalid: the gateway cannot listen on the port, or the library is not installed.
    """
    if settings.channels.port is None:
        yield None
        return
    require_extra(settings)
    from passerelle.channels.fast import FastListener

    listener = bind(
        settings.host, settings.channels.port, "wss" if tls else "ws", field="channels.port"
    )
    try:
        async with FastListener(
            edges.channels,
            listener.socket,
            CHANNEL_PATH,
            tls=tls.context if tls else None,
            admits=edges.admits,
        ):
            yield f"{listener.url}{CHANNEL_PATH}"
    finally:
        listener.close()
