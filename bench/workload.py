"""The appends of store measurements: tasks in the stored form, of the sizes that the bounds assume.

An event is 560 bytes as it is read, every second one with an A2A frame; a task's snapshot is 900 bytes. The state
machines of ``passerelle.core`` do not run here: they cost their caller time, not the store.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field, replace
from typing import Final

from passerelle.core.batch import (
    ABSENT,
    Batch,
    DueChange,
    EntityKind,
    EntityRef,
    EntityWrite,
    Incarnation,
    OpenChange,
    RunMove,
    Stamp,
)
from passerelle.core.events import EncodedEvent, SharedMembers
from passerelle.core.ids import SHARDS, Shard
from tests.support.spelt_ids import compose_id

EVENT_BYTES: Final = 560 - len('{"sequence":10,')
"""The caller's part of an event: the store writes its first members."""
_SNAPSHOT_BYTES: Final = 900
_SESSION_BYTES: Final = 250
_THREAD_BYTES: Final = 350
BEGAN_MS: Final = 1_800_000_000_000
_FRAME: Final = b'{"statusUpdate":{"text":"' + b"f" * 155 + b'"}}'
_EPOCH: Final = "0a1b2c3d"
_numbers: Final = itertools.count(1)


def mint(prefix: str, shard: Shard) -> str:
    """An id that is unique in this process."""
    return compose_id(prefix, shard, BEGAN_MS, next(_numbers))


def make_event(subject: BenchTask, facade: str | None) -> EncodedEvent:
    """One event, with a frame when it has a facade id; it shares ids with other events as real ones do."""
    ids = f'"threadId":"{subject.thread}","taskId":"{subject.task}",'.encode()
    made = EncodedEvent(
        mint("ev", subject.shard),
        "task.progress",
        b'"payload":{"text":"',
        _FRAME if facade else b"",
        facade,
        SharedMembers((b"2027-01-15T08:00:00.000Z", b"1", b"rt_bench"), subject.session, ids),
    )
    closing = b'","a2a":' if facade else b'"}}'
    fill = b"e" * (EVENT_BYTES - len(made.body) - len(closing))
    return replace(made, rest=made.rest + fill + closing)


def make_snapshot(session: str, size: int) -> bytes:
    """A record of a session, ``size`` bytes long."""
    opening = f'{{"session_id":"{session}","text":"'.encode()
    return opening + b"s" * (size - len(opening) - 2) + b'"}'


@dataclass(slots=True)
class BenchTask:
    """A task in a session that is written repeatedly; ``stamp`` is that of the stored state."""

    shard: Shard
    session: str
    task: str
    thread: str
    run: str
    stamp: Stamp = ABSENT
    last: int = 0
    """Sequence of its last event."""
    _next_op: str = field(default="", repr=False)

    def update(self, shard_epoch: int, events: int = 1, *, due: bool = False) -> Batch:
        """Some events and a new snapshot, as a running attempt writes them."""
        return self._compose(
            shard_epoch,
            events,
            entities=(self._write_task(),),
            due=(DueChange(f"timeout:{self.task}", BEGAN_MS),) if due else (),
        )

    def accept(self, shard_epoch: int, driver: Incarnation, *, first_of_session: bool) -> Batch:
        """The task begins, with eight events and all rows of an active task."""
        opening = (
            EntityWrite(
                EntityRef(EntityKind.SESSION, self.session), ABSENT, (self._make(_SESSION_BYTES),)
            ),
            EntityWrite(
                EntityRef(EntityKind.THREAD, self.thread), ABSENT, (self._make(_THREAD_BYTES),)
            ),
        )
        return self._compose(
            shard_epoch,
            8,
            entities=(
                self._write_task({"own": str(driver).encode()}),
                *(opening if first_of_session else ()),
            ),
            due=(DueChange(f"timeout:{self.task}", BEGAN_MS),),
            open_=(OpenChange(self.task, 0),),
            runs=(RunMove(self.run, self.task, driver, enters=True),),
        )

    def end(self, shard_epoch: int, driver: Incarnation) -> Batch:
        """The task ends: the last event, the last snapshot, and the removal of every row of an active task."""
        return self._compose(
            shard_epoch,
            1,
            entities=(self._write_task({"own": None}),),
            due=(DueChange(f"timeout:{self.task}", None),),
            open_=(OpenChange(self.task, None),),
            runs=(RunMove(self.run, self.task, driver, enters=False),),
        )

    def settle(self, last: int) -> None:
        """Records that the last batch is stored, with its last event at sequence ``last``."""
        self.stamp = Stamp(self.stamp.version + 1, self._next_op)
        self.last = last

    def _make(self, size: int) -> bytes:
        return make_snapshot(self.session, size)

    def _write_task(self, fields: dict[str, bytes | None] | None = None) -> EntityWrite:
        return EntityWrite(
            EntityRef(EntityKind.TASK, self.task),
            self.stamp,
            (self._make(_SNAPSHOT_BYTES),),
            fields or {},
        )

    def _compose(
        self,
        shard_epoch: int,
        events: int,
        *,
        entities: tuple[EntityWrite, ...],
        due: tuple[DueChange, ...] = (),
        open_: tuple[OpenChange, ...] = (),
        runs: tuple[RunMove, ...] = (),
    ) -> Batch:
        self._next_op = mint("op", self.shard)
        return Batch(
            session=self.session,
            op=self._next_op,
            shard_epoch=shard_epoch,
            stream_epoch=_EPOCH,
            entities=entities,
            events=tuple(
                make_event(self, self.task if place % 2 else None) for place in range(events)
            ),
            due=due,
            open=open_,
            runs=runs,
            task_times=((self.task, BEGAN_MS),),
            # Feed rows are removed once the relay has processed them, so they are not part of a task's size.
            feed=False,
        )


def make_subjects(count: int, tasks_per_session: int = 1) -> list[BenchTask]:
    """Tasks spread over all shards."""
    made: list[BenchTask] = []
    for number in range(0, count, tasks_per_session):
        shard = Shard(number // tasks_per_session % SHARDS)
        session, thread = mint("se", shard), mint("th", shard)
        made += [
            BenchTask(shard, session, mint("task", shard), thread, mint("run", shard))
            for _ in range(min(tasks_per_session, count - number))
        ]
    return made
