"""Says to systemd how far the process is: a datagram to the socket that it names (sd_notify(3)).

Without ``NOTIFY_SOCKET`` in the environment nobody is told. A lost word is no reason to end: systemd decides.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping

ServiceState = Literal["READY=1", "STOPPING=1", "WATCHDOG=1"]
SOCKET: Final = "NOTIFY_SOCKET"
WATCHDOG: Final = "WATCHDOG_USEC"


@dataclass(frozen=True, slots=True)
class ServiceManager:
    """Who started this process. ``address`` is None where nobody wants to know.

    ``watchdog_s`` is the longest time between two signs of life, None where none is wanted.
    """

    address: str | None
    watchdog_s: float | None

    def notify(self, state: ServiceState) -> None:
        """Says one word; from ``STOPPING=1`` on the process ends."""
        if self.address is None:
            return
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as out:
            out.setblocking(False)
            out.sendto(state.encode("ascii"), self.address)

    async def keep_alive(self) -> None:
        """Gives signs of life from the loop that serves, so that one that hangs is noticed; to be cancelled."""
        if self.address is None or self.watchdog_s is None:
            return
        while True:
            self.notify("WATCHDOG=1")
            await asyncio.sleep(self.watchdog_s / 2)


def find_service_manager(environ: Mapping[str, str]) -> ServiceManager:
    """By the variables that systemd sets; an address that begins with ``@`` is an abstract one."""
    address = environ.get(SOCKET) or None
    if address is not None and address.startswith("@"):
        address = f"\0{address[1:]}"
    micros = environ.get(WATCHDOG, "")
    watchdog_s = int(micros) / 1e6 if micros.isdecimal() and int(micros) > 0 else None
    return ServiceManager(address, watchdog_s)
