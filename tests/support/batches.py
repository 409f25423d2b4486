"""Batches for tests of the store: small, valid, and with defaults that a test overrides where it needs to."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field

from passerelle.core.batch import (
    ABSENT,
    EntityKind,
    EntityRef,
    EntityWrite,
    Incarnation,
    SnapshotPieces,
    Stamp,
)
from passerelle.core.events import EncodedEvent, Event, Fact, VendorPayload, encode_event
from passerelle.core.facts import Scope
from passerelle.core.ids import Shard
from passerelle.core.ports.log import StreamKind, StreamRef
from tests.support.spelt_ids import compose_id

EPOCH = "0a1b2c3d"
_numbers = itertools.count(1)


def mint(prefix: str, shard: Shard) -> str:
    """An id that is unique in this process."""
    return compose_id(prefix, shard, 1_700_000_000_000, next(_numbers))


def event(name: str = "", *, facade: str | None = None) -> EncodedEvent:
    """An encoded event, with an A2A frame when it has a facade id."""
    identifier = name or f"ev_{next(_numbers)}"
    said = f'"eventId":"{identifier}","payload":{{"a2a":'.encode()
    frame = b'{"statusUpdate":{}}'
    if facade:
        return EncodedEvent(identifier, "task.progress", said, frame, facade)
    return EncodedEvent(identifier, "task.progress", said + frame + b"}}")


def event_of(
    session: str,
    task: str | None = None,
    thread: str | None = None,
    words: str = "",
    action: str | None = None,
) -> EncodedEvent:
    """An event as the product encodes it, which names the entities that it belongs to."""
    scope = Scope(session_id=session, thread_id=thread, task_id=task, action_id=action)
    fact = Fact(scope, VendorPayload("x.said", {"words": words}), facade=task)
    return encode_event(Event(f"ev_{next(_numbers)}", "2026-01-02T03:04:05.006Z", "rt_1", fact))


@dataclass(frozen=True, slots=True)
class TaskPlace:
    """One session with one task and one driver, in one shard."""

    shard: Shard = field(default_factory=lambda: Shard(next(_numbers) % 64))
    session: str = ""
    task: str = ""
    driver: Incarnation = field(default_factory=lambda: Incarnation(f"in_{next(_numbers)}", 1))

    @property
    def stream(self) -> StreamRef:
        return StreamRef(StreamKind.SESSION, self.session)

    @property
    def task_ref(self) -> EntityRef:
        return EntityRef(EntityKind.TASK, self.task)

    def write(
        self,
        expected: Stamp = ABSENT,
        snapshot: SnapshotPieces = (b"{}",),
        fields: Mapping[str, bytes | None] | None = None,
    ) -> EntityWrite:
        """A new state of the task."""
        return EntityWrite(self.task_ref, expected, snapshot, fields or {})


def make_place(shard: Shard | None = None) -> TaskPlace:
    """A new session with a task and a driver, for one test."""
    home = shard or Shard(next(_numbers) % 64)
    return TaskPlace(home, mint("se", home), mint("task", home))


def operation() -> str:
    """A fresh operation id."""
    return f"op_{next(_numbers)}"
