"""Limits open connections below the descriptor limit, so that agent calls, engine and files have descriptors left.

A connection is anonymous until a caller authenticates on it. When the table is full, the oldest anonymous connection
is closed, else an idle one of a caller. One with a request, a stream or a socket stays, and the new connection is
rejected.

A proxy's connection carries requests of many clients, one after the other. If the proxy names the client of each, the
connection counts for that client's address from the head of the request to the end of the answer, and for no address
in between; a socket counts as long as it is open.
"""

from __future__ import annotations

import resource
import time
from collections import Counter
from contextvars import ContextVar
from typing import TYPE_CHECKING, Final, Protocol

import structlog

from passerelle.gateway.proxies import Proxies

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_RESERVED_MIN: Final = 64
_RESERVED_MAX: Final = 4_096
_RESERVED_PART: Final = 4
_ADDRESS_PART: Final = 2
_GRPC_PART: Final = 4
_CHANNELS_QUARTERS: Final = 3
_BACKLOG_LEAST: Final = 16
_LOG_EVERY_S: Final = 60.0


class CountedConnection(Protocol):
    """A connection as the table sees it."""

    @property
    def is_idle(self) -> bool:
        """Whether nothing is in progress on it."""
        ...

    def evict(self) -> None:
        """Closes it at once."""
        ...


class ConnectionSlot:
    """The slot of one connection. It does not refer to the connection, which would wait for the garbage collector."""

    __slots__ = ("_table", "address", "is_authenticated")

    def __init__(self, table: ConnectionTable, address: str | None) -> None:
        self._table = table
        self.address = address
        """The address that it counts for."""
        self.is_authenticated = False

    def authenticate(self) -> None:
        """A caller has authenticated on the connection."""
        self.is_authenticated = True
        self._table.authenticate(self)

    def begin(self, address: str | None) -> bool:
        """Starts a request from an address, anonymous again. Returns as ``count_for``."""
        self.is_authenticated = False
        self._table.forget(self)
        return self.count_for(address)

    def count_for(self, address: str | None) -> bool:
        """Counts the connection for an address from now on, None for none; False if the address is at its limit."""
        return self._table.move(self, address)

    def release(self) -> None:
        """The connection has ended."""
        self._table.release(self)


SLOT: Final[ContextVar[ConnectionSlot | None]] = ContextVar("slot", default=None)
"""The slot of the current request's connection."""


def note_authenticated() -> None:
    """Marks the connection of the current request as authenticated."""
    slot = SLOT.get()
    if slot is not None and not slot.is_authenticated:
        slot.authenticate()


class ConnectionTable:
    """The open connections of a process. Both limits are optional; ``counts`` are the evicted and the rejected."""

    def __init__(
        self,
        most: int | None = None,
        most_of_address: int | None = None,
        proxies: Proxies | None = None,
    ) -> None:
        """Connections from ``proxies`` and from this machine have no limit per address."""
        self._most = most
        self._most_of_address = most_of_address
        self.proxies: Final = proxies or Proxies()
        self._anonymous: dict[ConnectionSlot, CountedConnection] = {}
        self._callers: dict[ConnectionSlot, CountedConnection] = {}
        self._per_address: Counter[str] = Counter()
        self._logged_s = -_LOG_EVERY_S
        self.counts: Final = Counter[str]()

    def __len__(self) -> int:
        return len(self._anonymous) + len(self._callers)

    def admit(self, connection: CountedConnection, address: str | None) -> ConnectionSlot | None:
        """A slot for a newly accepted connection, if need be that of another one; None: close it."""
        if address is not None and not self._has_room(address):
            return None
        if (
            self._most is not None
            and len(self) >= self._most
            and not self._make_room(None, self._most, address)
        ):
            return None
        slot = ConnectionSlot(self, address)
        self._anonymous[slot] = connection
        self._count(address)
        return slot

    def replace_connection(self, slot: ConnectionSlot, connection: CountedConnection) -> None:
        """The connection switches to another protocol object."""
        for slots in (self._anonymous, self._callers):
            if slot in slots:
                slots[slot] = connection

    def authenticate(self, slot: ConnectionSlot) -> None:
        """``ConnectionSlot.authenticate``."""
        connection = self._anonymous.pop(slot, None)
        if connection is not None:
            self._callers[slot] = connection

    def forget(self, slot: ConnectionSlot) -> None:
        """Makes it anonymous again, and the newest of the anonymous ones."""
        connection = self._callers.pop(slot, None) or self._anonymous.pop(slot, None)
        if connection is not None:
            self._anonymous[slot] = connection

    def move(self, slot: ConnectionSlot, address: str | None) -> bool:
        """``ConnectionSlot.count_for``; does nothing for a connection that has ended."""
        if slot.address == address or not (slot in self._anonymous or slot in self._callers):
            return True
        if address is not None and not self._has_room(address):
            return False
        self._uncount(slot.address)
        slot.address = address
        self._count(address)
        return True

    def release(self, slot: ConnectionSlot) -> None:
        """``ConnectionSlot.release``; does nothing the second time."""
        gone = self._anonymous.pop(slot, None) or self._callers.pop(slot, None)
        if gone is not None:
            self._uncount(slot.address)

    def enter(self, address: str) -> bool:
        """Counts work of an address without a connection of its own; False if the address is at its limit."""
        if not self._has_room(address):
            return False
        self._count(address)
        return True

    def leave(self, address: str) -> None:
        """The work of ``enter`` has ended."""
        self._uncount(address)

    def _count(self, address: str | None) -> None:
        if address is not None:
            self._per_address[address] += 1

    def _uncount(self, address: str | None) -> None:
        if address is None:
            return
        self._per_address[address] -= 1
        if not self._per_address[address]:
            del self._per_address[address]

    def _has_room(self, address: str) -> bool:
        most = self._most_of_address
        return (
            most is None
            or self._per_address[address] < most
            or self.proxies.is_exempt(address)
            or self._make_room(address, most, address)
        )

    def _make_room(self, of: str | None, most: int, newcomer: str | None) -> bool:
        found = next(self._find(self._anonymous.items(), of), None) or next(
            (one for one in self._find(self._callers.items(), of) if one[1].is_idle), None
        )
        self._log_full(most, of, newcomer, "refused" if found is None else "evicted")
        if found is None:
            return False
        slot, connection = found
        self.release(slot)
        connection.evict()
        return True

    @staticmethod
    def _find(
        slots: Iterable[tuple[ConnectionSlot, CountedConnection]], of: str | None
    ) -> Iterator[tuple[ConnectionSlot, CountedConnection]]:
        return (one for one in slots if of is None or one[0].address == of)

    def _log_full(self, most: int, of: str | None, newcomer: str | None, what: str) -> None:
        self.counts[what] += 1
        now_s = time.monotonic()
        if now_s - self._logged_s < _LOG_EVERY_S:
            return
        self._logged_s = now_s
        structlog.get_logger().warning(
            "server.connections_full",
            most=most,
            of_address=of,
            newcomer=newcomer,
            strangers=len(self._anonymous),
        )


def find_most(limit: int) -> int:
    """Caller connections for a process with ``limit`` descriptors; it keeps the rest for its own files and calls."""
    return max(limit - min(max(limit // _RESERVED_PART, _RESERVED_MIN), _RESERVED_MAX), 1)


def find_most_of_address(most: int) -> int:
    """The limit of one address, so that a single one cannot fill all slots."""
    return max(most // _ADDRESS_PART, 1)


def find_most_of_grpc(most: int) -> int:
    """The part of these for gRPC, whose library accepts connections itself: one connection carries many calls."""
    return max(most // _GRPC_PART, 1)


def find_most_of_channels(most: int) -> int:
    """The part of these for a channel port."""
    return max(most * _CHANNELS_QUARTERS // 4, 1)


def find_backlog(limit: int, most: int) -> int:
    """How many connections may be accepted in one loop iteration, before the table has checked them."""
    return max((limit - most) // 2, _BACKLOG_LEAST)


def read_descriptor_limit() -> int | None:
    """The process's descriptor limit; None if there is none."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if soft == resource.RLIM_INFINITY else soft
