"""How many connections are open at once: fewer than there are descriptors, so that agents, engine and files have some.

A connection is that of a stranger until somebody has authenticated on it. Where there is no place left, the oldest
stranger makes room, then a caller's connection on which nothing is under way; one with a request, a stream or a socket
stays, and the newcomer is sent away.
"""

from __future__ import annotations

import resource
import time
from collections import Counter
from contextvars import ContextVar
from ipaddress import ip_address
from typing import TYPE_CHECKING, Final, Protocol

import structlog

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from ipaddress import IPv4Network, IPv6Network

_KEPT_LEAST: Final = 64
_KEPT_MOST: Final = 4_096
_KEPT_PART: Final = 4
_ADDRESS_PART: Final = 2
_GRPC_PART: Final = 4
_CHANNELS_QUARTERS: Final = 3
_BACKLOG_LEAST: Final = 16
_SAID_AGAIN_S: Final = 60.0


class Connection(Protocol):
    """What the table asks of a connection."""

    @property
    def is_idle(self) -> bool:
        """Whether nothing is under way on it."""
        ...

    def evict(self) -> None:
        """Ends it at once."""
        ...


class Slot:
    """The place of one connection. It does not know the connection, which would wait for the cycle collector."""

    __slots__ = ("_table", "address", "is_authenticated")

    def __init__(self, table: ConnectionTable, address: str | None) -> None:
        self._table = table
        self.address: Final = address
        self.is_authenticated = False

    def authenticate(self) -> None:
        """Somebody whom we know has shown a credential on it."""
        self.is_authenticated = True
        self._table.authenticate(self)

    def release(self) -> None:
        """The connection has ended."""
        self._table.release(self)


SLOT: Final[ContextVar[Slot | None]] = ContextVar("slot", default=None)
"""That of the connection whose request is served."""


def note_authenticated() -> None:
    """Somebody has authenticated on the connection of this request."""
    slot = SLOT.get()
    if slot is not None and not slot.is_authenticated:
        slot.authenticate()


class ConnectionTable:
    """The open connections of a process. Both limits may be absent; ``counts`` is what became of those over them."""

    def __init__(
        self,
        most: int | None = None,
        most_of_address: int | None = None,
        is_exempt: Callable[[str], bool] = lambda _address: False,
    ) -> None:
        """``is_exempt(address)``: no number of connections from there is too many, as from a proxy."""
        self._most = most
        self._most_of_address = most_of_address
        self._is_exempt = is_exempt
        self._strangers: dict[Slot, Connection] = {}
        self._callers: dict[Slot, Connection] = {}
        self._of_address: Counter[str] = Counter()
        self._said_s = -_SAID_AGAIN_S
        self.counts: Final = Counter[str]()

    def __len__(self) -> int:
        return len(self._strangers) + len(self._callers)

    def admit(self, connection: Connection, address: str | None) -> Slot | None:
        """A place for a connection that was accepted just now, if need be that of another one; None: send it away."""
        if (
            address is not None
            and self._most_of_address is not None
            and self._of_address[address] >= self._most_of_address
            and not self._is_exempt(address)
            and not self._make_room(address, self._most_of_address, address)
        ):
            return None
        if (
            self._most is not None
            and len(self) >= self._most
            and not self._make_room(None, self._most, address)
        ):
            return None
        slot = Slot(self, address)
        self._strangers[slot] = connection
        if address is not None:
            self._of_address[address] += 1
        return slot

    def hand_over(self, slot: Slot, connection: Connection) -> None:
        """Another protocol is spoken on it from now on."""
        for slots in (self._strangers, self._callers):
            if slot in slots:
                slots[slot] = connection

    def authenticate(self, slot: Slot) -> None:
        """``Slot.authenticate``."""
        connection = self._strangers.pop(slot, None)
        if connection is not None:
            self._callers[slot] = connection

    def release(self, slot: Slot) -> None:
        """``Slot.release``; the second time nothing."""
        gone = self._strangers.pop(slot, None) or self._callers.pop(slot, None)
        address = slot.address
        if gone is None or address is None:
            return
        self._of_address[address] -= 1
        if not self._of_address[address]:
            del self._of_address[address]

    def _make_room(self, of: str | None, most: int, newcomer: str | None) -> bool:
        found = next(self._find(self._strangers.items(), of), None) or next(
            (one for one in self._find(self._callers.items(), of) if one[1].is_idle), None
        )
        self._say(most, of, newcomer, "refused" if found is None else "evicted")
        if found is None:
            return False
        slot, connection = found
        self.release(slot)
        connection.evict()
        return True

    @staticmethod
    def _find(
        slots: Iterable[tuple[Slot, Connection]], of: str | None
    ) -> Iterator[tuple[Slot, Connection]]:
        return (one for one in slots if of is None or one[0].address == of)

    def _say(self, most: int, of: str | None, newcomer: str | None, what: str) -> None:
        self.counts[what] += 1
        now_s = time.monotonic()
        if now_s - self._said_s < _SAID_AGAIN_S:
            return
        self._said_s = now_s
        structlog.get_logger().warning(
            "server.connections_full",
            most=most,
            of_address=of,
            newcomer=newcomer,
            strangers=len(self._strangers),
        )


class Exempt:
    """Addresses of which no number of connections is too many: this machine, and a proxy before us."""

    def __init__(self, networks: Iterable[IPv4Network | IPv6Network] = ()) -> None:
        self._networks = tuple(networks)

    def __call__(self, address: str) -> bool:
        """Whether an address is one of them; a text that is none is not."""
        try:
            found = ip_address(address)
        except ValueError:
            return False
        return found.is_loopback or any(found in network for network in self._networks)


def find_most(limit: int) -> int:
    """Connections of callers where a process may have ``limit`` descriptors; the rest is for what it opens itself."""
    return max(limit - min(max(limit // _KEPT_PART, _KEPT_LEAST), _KEPT_MOST), 1)


def find_most_of_address(most: int) -> int:
    """Of one address, so that not one alone fills all places."""
    return max(most // _ADDRESS_PART, 1)


def find_most_of_grpc(most: int) -> int:
    """Of these, the part of gRPC, whose library accepts by itself: one connection carries many calls."""
    return max(most // _GRPC_PART, 1)


def find_most_of_channels(most: int) -> int:
    """Of these, the part of a port that has channels alone."""
    return max(most * _CHANNELS_QUARTERS // 4, 1)


def find_backlog(limit: int, most: int) -> int:
    """How many may be accepted in one go, before anybody has looked whether there is a place for them."""
    return max((limit - most) // 2, _BACKLOG_LEAST)


def read_descriptor_limit() -> int | None:
    """What this process may have open; None where there is no limit."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if soft == resource.RLIM_INFINITY else soft
