"""One command under one idempotency key: executed once, and a repeat gets its result (CMD-30).

A key is stored with the entity that the command changes, in the same append, for a day. So keys are scoped to that
entity: the same key with another command to the same task is a conflict, with another task it is another key, whichever
shards they are in. Under the key of a message a repeat of the same request finds a ``TurnReceipt``.
"""

from __future__ import annotations

import hashlib
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from passerelle.core.batch import IdempotencyRow
from passerelle.core.errors import IdempotencyConflict
from passerelle.core.frozen import frozen
from passerelle.core.session.requests import CompactThread, DescribeSession, RollBackThread
from passerelle.core.wire.codec import to_bytes
from passerelle.core.wire.record import record
from passerelle.runtime.records.places import hash_key

if TYPE_CHECKING:
    from collections.abc import Generator

    from _typeshed import DataclassInstance

    from passerelle.core.ids import Shard
    from passerelle.core.ports.log import EventLog
    from passerelle.core.principal import Principal

KEPT_MS: Final = 24 * 3600 * 1000


@dataclass(slots=True)
class KeyLookup:
    """The last key that a command looked up and did not find, with the log and shard of the lookup."""

    missed: tuple[str, EventLog, Shard] | None = field(default=None)

    async def is_stored(self) -> bool:
        """Whether the key is stored now, because another call has executed a command under it in the meantime."""
        if self.missed is None:
            return False
        key, log, shard = self.missed
        return await log.read_idempotency(shard, key) is not None


_LOOK: Final = ContextVar[KeyLookup | None]("key_look", default=None)


@contextmanager
def watch_keys() -> Generator[KeyLookup]:
    """Records the key lookups of the command inside, including those of tasks that it starts."""
    look = KeyLookup()
    token = _LOOK.set(look)
    try:
        yield look
    finally:
        _LOOK.reset(token)


@frozen
class Once:
    """A command with its key, if it has one; ``digest`` distinguishes requests."""

    key: str | None
    digest: str

    async def find(self, log: EventLog, shard: Shard) -> bytes | None:
        """The stored result of the first command under this key; None if there is none.

        Raises:
            IdempotencyConflict: the key was used for another request.
        """
        if self.key is None:
            return None
        stored = await log.read_idempotency(shard, self.key)
        if stored is None:
            look = _LOOK.get()
            if look is not None:
                look.missed = (self.key, log, shard)
            return None
        if stored[0] != self.digest:
            raise IdempotencyConflict("the idempotency key was used for another request")
        return stored[1]

    def remember(self, result: str) -> IdempotencyRow | None:
        """The idempotency row for the append of the command; None without a key."""
        if self.key is None:
            return None
        return IdempotencyRow(self.key, self.digest, result.encode(), KEPT_MS)


def make_once(principal: Principal, command: DataclassInstance, idem: str | None) -> Once:
    """A caller's command with a digest over its name and members."""
    digest = hashlib.sha256(type(command).__name__.encode() + b"\0" + to_bytes(command))
    if idem is None:
        return Once(None, digest.hexdigest())
    changed = getattr(command, "task_id", "")
    if isinstance(command, DescribeSession):
        changed = command.session_id
    if isinstance(command, RollBackThread | CompactThread):
        changed = command.thread_id
    return Once(hash_key(principal, f"{idem}\0{changed}" if changed else idem), digest.hexdigest())


@record
class TurnReceipt:
    """What a repeat of the same request finds under its idempotency key."""

    session_id: str
    thread_id: str
    turn_id: str
    task_id: str
    context_id: str


def remember(principal: Principal, idem: str, digest: str, receipt: TurnReceipt) -> IdempotencyRow:
    """The idempotency row of a request; ``digest`` distinguishes it from others under the same key."""
    return IdempotencyRow(
        key=hash_key(principal, idem),
        digest=digest,
        result=to_bytes(receipt),
        ttl_ms=KEPT_MS,
    )
