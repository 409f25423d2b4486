"""Ports for servers that stop and start again, or whose number others have to know before they start."""

from __future__ import annotations

import secrets
import socket
from contextlib import suppress
from typing import Final

_LOWEST: Final = 20_000
_HIGHEST: Final = 32_767


def find_free_port() -> int:
    """A port on loopback that nobody listens on now, and that no connection is given while its server is down.

    Systems give connections ports from 32768 on or higher ones; two that choose at the same time hardly ever meet.
    """
    while True:
        port = _LOWEST + secrets.randbelow(_HIGHEST - _LOWEST + 1)
        with suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            return port
