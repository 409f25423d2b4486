"""Notifies systemd of the process state, with a datagram to the socket that it names (sd_notify(3)).

Does nothing without ``NOTIFY_SOCKET`` in the environment. A lost datagram does not stop the process: systemd decides.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import TYPE_CHECKING, Final, Literal

from passerelle.core.frozen import frozen

if TYPE_CHECKING:
    from collections.abc import Mapping

ServiceState = Literal["READY=1", "STOPPING=1", "WATCHDOG=1"]
SOCKET: Final = "NOTIFY_SOCKET"
WATCHDOG: Final = "WATCHDOG_USEC"


@frozen
class ServiceManager:
    """The service manager that started this process. ``address`` is None if it wants no notifications.

    ``watchdog_s`` is the longest time between two keep-alives, None if it wants none.
    """

    address: str | None
    watchdog_s: float | None

    def notify(self, state: ServiceState) -> None:
        """Sends one state; after ``STOPPING=1`` the process ends."""
        if self.address is None:
            return
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as out:
            out.setblocking(False)
            out.sendto(state.encode("ascii"), self.address)

    async def keep_alive(self) -> None:
        """Sends keep-alives from the serving loop until cancelled, so that systemd notices if the loop hangs."""
        if self.address is None or self.watchdog_s is None:
            return
        while True:
            self.notify("WATCHDOG=1")
            await asyncio.sleep(self.watchdog_s / 2)


def find_service_manager(environ: Mapping[str, str]) -> ServiceManager:
    """Reads the variables that systemd sets; an address that starts with ``@`` is an abstract one."""
    address = environ.get(SOCKET) or None
    if address is not None and address.startswith("@"):
        address = f"\0{address[1:]}"
    micros = environ.get(WATCHDOG, "")
    watchdog_s = int(micros) / 1e6 if micros.isdecimal() and int(micros) > 0 else None
    return ServiceManager(address, watchdog_s)
