"""Ports of the event log: append, read and hints."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Final, Protocol

from passerelle.core.frozen import frozen
from passerelle.core.ids import shard_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from passerelle.core.batch import AppendResult, Batch, EntityRef, Loaded, PackedBatch
    from passerelle.core.ids import Shard


class StreamKind(StrEnum):
    """The streams that can be followed: a session, or the inbox of a principal.

    Inputs and results are views of a session, and messages of its threads: they are read from its stream and shown as
    packets. Tasks and jobs are lists of a principal: one stream has notes of their changes, and each note is shown as
    the current row. A tenant has such a stream of the tasks of all its owners.
    """

    SESSION = "session"
    INBOX = "inbox"
    INPUTS = "inputs"
    RESULTS = "results"
    MESSAGES = "messages"
    TASKS = "tasks"
    JOBS = "jobs"
    TENANT_TASKS = "tasks:tenant"


LISTS: Final = frozenset({StreamKind.TASKS, StreamKind.JOBS, StreamKind.TENANT_TASKS})
"""Derived from the notes of the lists of a principal or of a tenant."""
DERIVED: Final = LISTS | {StreamKind.INPUTS, StreamKind.RESULTS, StreamKind.MESSAGES}
"""Shown in another form than stored."""


@frozen
class StreamRef:
    """Names one stored stream; ``id`` is a session id, or the key of a principal or of a tenant."""

    kind: StreamKind
    id: str

    @property
    def shard(self) -> Shard:
        """The shard of the stream."""
        return shard_of(self.id)


@frozen
class Head:
    """The head of a stream. ``first`` is the lowest sequence after the last trim, 1 without a trim."""

    epoch: str
    sequence: int
    chain: str
    first: int


@frozen
class Entry:
    """One event as read.

    ``data`` is the whole envelope; ``frame`` = offset, length cuts the A2A frame out of it.
    """

    sequence: int
    event_id: str
    type: str
    previous: str
    """The chain before this entry."""
    data: bytes
    frame: tuple[int, int] | None = None
    facade: str | None = None

    def cut_frame(self) -> bytes:
        """The A2A frame; empty if it has none."""
        if self.frame is None:
            return b""
        offset, length = self.frame
        return self.data[offset : offset + length]


class FactReader(Protocol):
    """Reads records and pages of facts. Raises StoreUnavailable if the store does not answer."""

    async def load(self, refs: Sequence[EntityRef]) -> list[Loaded]:
        """Entities in the given order, read in one round trip per node."""
        ...

    async def read_page(self, stream: StreamRef, after: int, limit: int = 256) -> list[Entry]:
        """At most ``limit`` events with a sequence above ``after``, in order; empty at the end."""
        ...

    async def read_frame(self, stream: StreamRef, sequence: int) -> bytes:
        """The A2A frame of one event; empty if it has none, or the event is no longer in the stream."""
        ...


class EventLog(FactReader, Protocol):
    """The only writer and the reader of facts. Raises StoreUnavailable if the store does not answer."""

    def shard_epoch(self, shard: Shard) -> int:
        """The last epoch of the shard that this process has seen."""
        ...

    async def append(self, batch: Batch | PackedBatch) -> AppendResult:
        """Writes the batch as a whole or not at all. An unknown outcome is retried with the same operation."""
        ...

    def pack(self, batch: Batch) -> PackedBatch:
        """The batch in the wire form of ``append``; sends nothing."""
        ...

    def unpack(self, packed: PackedBatch, first: int) -> list[Loaded]:
        """The entities as ``load`` would read them once the batch is stored with its first event at ``first``."""
        ...

    async def read_idempotency(self, shard: Shard, key: str) -> tuple[str, bytes] | None:
        """Digest and result of a key, while its row exists."""
        ...

    async def read_head(self, stream: StreamRef) -> Head | None:
        """The head, or None if there is no such stream."""
        ...

    async def read_resume(
        self, stream: StreamRef, after: int, limit: int = 256
    ) -> tuple[Head | None, list[Entry]]:
        """Head, then page, in one round trip and in this order, to verify a cursor (I8)."""
        ...

    async def read_session_tasks(self, session: str) -> list[tuple[str, int]]:
        """Facade ids of a session with their last status time in ms, newest first."""
        ...

    async def read_open(self, session: str) -> list[str]:
        """Ids of the open tasks and actions of a session."""
        ...


class Hints(Protocol):
    """Notifications about streams. A hint may be lost, doubled or late: it saves a read, and decides nothing."""

    async def subscribe(self, stream: StreamRef, on_hint: Callable[[bytes], None]) -> None:
        """Returns once the subscription is confirmed; ``on_hint`` gets the raw bytes of each hint."""
        ...

    async def unsubscribe(self, stream: StreamRef) -> None:
        """Ends the hints of a stream."""
        ...

    async def subscribe_shard(self, shard: Shard, on_hint: Callable[[bytes], None]) -> None:
        """The same for a shard: it has a new epoch."""
        ...

    def on_loss(self, callback: Callable[[], None]) -> None:
        """Calls back whenever hints may have been lost: the connection was opened again."""
        ...
