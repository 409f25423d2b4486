"""Ports for servers that restart, or whose number must be known before they start."""

from __future__ import annotations

import secrets
import socket
from contextlib import suppress
from typing import Final

_LOWEST: Final = 20_000
_HIGHEST: Final = 32_767


def find_free_port() -> int:
    """A loopback port without a listener, outside the range of ephemeral ports.

    Systems give connections ports from 32768 or higher. Two processes that choose at the same time rarely collide.
    """
    while True:
        port = _LOWEST + secrets.randbelow(_HIGHEST - _LOWEST + 1)
        with suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            return port
