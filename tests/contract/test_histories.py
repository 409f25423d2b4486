"""Any history of appends, repeats and stale writers matches a small model of the stored state."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from itertools import cycle

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from passerelle.core.batch import (
    ABSENT,
    Again,
    Appended,
    AppendResult,
    Batch,
    Conflict,
    EntityKind,
    EntityRef,
    EntityWrite,
    Stamp,
)
from passerelle.store.retention import Archived, NotTrimmed, Trimmed
from passerelle.store.store import Store
from tests.support.batches import EPOCH, TaskPlace, event_of, make_place, mint, operation

pytestmark = pytest.mark.anyio

TASKS = 3
AT = "2026-01-02T03:04:05.006Z"


@dataclass(frozen=True, slots=True)
class Write:
    """Appends ``events`` events and writes some tasks; ``stale`` of them with an older stamp."""

    events: int
    tasks: frozenset[int]
    stale: frozenset[int]


@dataclass(frozen=True, slots=True)
class Repeat:
    """Repeats an append that was sent ``back`` appends ago."""

    back: int


@dataclass(frozen=True, slots=True)
class Trim:
    """Removes the archived appends up to ``keep`` events before the end."""

    keep: int


@dataclass(frozen=True, slots=True)
class Leave:
    """Archives the session; the next step finds it in the archive."""


picks = st.frozensets(st.integers(0, TASKS - 1), max_size=TASKS)
steps = st.one_of(
    st.builds(
        Write,
        st.integers(0, 4),
        st.frozensets(st.integers(0, TASKS - 1), min_size=1, max_size=TASKS),
        picks,
    ),
    st.builds(Repeat, st.integers(1, 3)),
    st.builds(Trim, st.integers(0, 5)),
    st.builds(Leave),
)


@dataclass(slots=True)
class Model:
    """The expected state: all event ids, ends of appends, the last trim line, each task's state."""

    at: TaskPlace
    tasks: list[EntityRef]
    events: list[str] = field(default_factory=list[str])
    ends: list[int] = field(default_factory=list[int])
    first: int = 1
    stamps: list[Stamp] = field(default_factory=lambda: [ABSENT] * TASKS)
    snapshots: list[bytes] = field(default_factory=lambda: [b""] * TASKS)
    older: list[Stamp] = field(default_factory=lambda: [Stamp(9, "op_none")] * TASKS)
    sent: list[Batch] = field(default_factory=list[Batch])

    def build(self, step: Write) -> Batch:
        """The batch of a step; every snapshot names the sequence of the batch's last event."""
        held = [
            self.older[task] if task in step.stale else self.stamps[task] for task in range(TASKS)
        ]
        hole = (step.events - 1,) if step.events else ()
        return Batch(
            self.at.session,
            operation(),
            0,
            EPOCH,
            entities=tuple(
                EntityWrite(self.tasks[task], held[task], (self.opening, *hole))
                for task in sorted(step.tasks)
            ),
            events=tuple(
                event_of(self.at.session, self.tasks[task].id)
                for _, task in zip(range(step.events), cycle(sorted(step.tasks)), strict=False)
            ),
            at=AT,
        )

    @property
    def opening(self) -> bytes:
        """A snapshot names the session that it belongs to."""
        return f"{self.at.session} at ".encode()

    def expect(self, batch: Batch) -> AppendResult | None:
        """The expected result of the append; None for stored."""
        places = [self.tasks.index(write.ref) for write in batch.entities]
        if any(self.stamps[task].op == batch.op for task in places):
            return Again(None)
        for task, write in zip(places, batch.entities, strict=True):
            if self.stamps[task] != write.expected:
                return Conflict(write.ref.id, self.stamps[task])
        if batch.events:
            self.events += [fact.event_id for fact in batch.events]
            self.ends.append(len(self.events))
        last = str(len(self.events)).encode() if batch.events else b""
        for task in places:
            self.older[task] = self.stamps[task]
            self.stamps[task] = Stamp(self.stamps[task].version + 1, batch.op)
            self.snapshots[task] = self.opening + last
        return None

    def chains(self) -> list[str]:
        """The chain before each event, and the one after the last."""
        chain = hashlib.sha1(EPOCH.encode(), usedforsecurity=False).hexdigest()[:8]
        found = [chain]
        for event_id in self.events:
            joined = f"{chain}{event_id}".encode()
            chain = hashlib.sha1(joined, usedforsecurity=False).hexdigest()[:8]
            found.append(chain)
        return found


@pytest.mark.requirement("I2", "I3", "ENV-2", "ENV-4")
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(history=st.lists(steps, max_size=25))
async def test_any_history_is_stored_as_in_the_model(store: Store, history: list[Write]) -> None:
    at = make_place()
    model = Model(at, [EntityRef(EntityKind.TASK, mint("task", at.shard)) for _ in range(TASKS)])
    await begin(store, model)
    for step in history:
        await play(store, model, step)
        await compare(store, model)


async def begin(store: Store, model: Model) -> None:
    """A session can only be archived if its record names its owner."""
    session = EntityRef(EntityKind.SESSION, model.at.session)
    record = b'{"owner":"%b"}' % mint("pr", model.at.shard).encode()
    first = event_of(model.at.session)
    batch = Batch(
        model.at.session,
        operation(),
        0,
        EPOCH,
        entities=(EntityWrite(session, ABSENT, (record,)),),
        events=(first,),
        at=AT,
    )
    assert isinstance(await store.log.append(batch), Appended)
    model.events.append(first.event_id)
    model.ends.append(1)


async def play(store: Store, model: Model, step: Write | Repeat | Trim | Leave) -> None:
    match step:
        case Write():
            model.sent.append(model.build(step))
            await send(store, model, model.sent[-1])
        case Repeat(back):
            if len(model.sent) >= back:
                await send(store, model, model.sent[-back])
        case Trim(keep):
            upto = len(model.events) - keep
            if upto >= model.first:
                archived = Archived("blob:1", "ab", 0)
                trimmed = await store.retention.trim(model.at.session, upto, archived)
                whole = max((end for end in model.ends if end <= upto), default=0)
                if whole < model.first or await is_away(store, model):
                    assert trimmed == NotTrimmed("nothing")
                else:
                    assert trimmed == Trimmed(whole + 1)
                    model.first = whole + 1
        case Leave():
            await leave(store, model)


async def is_away(store: Store, model: Model) -> bool:
    """Whether the session is in the archive."""
    return await store.archive.find(model.at.shard, model.at.session) is not None


async def leave(store: Store, model: Model) -> None:
    """Archives a session that has events left, with the tasks that its events name."""
    is_there = bool(await store.log.read_page(model.at.stream, 0))
    in_engine = is_there and not await is_away(store, model)
    left = await store.archiver.archive(model.at.shard, [model.at.session])
    assert left.sessions == ([model.at.session] if in_engine else [])


async def send(store: Store, model: Model, batch: Batch) -> None:
    expected = model.expect(batch)
    result = await store.log.append(batch)
    if expected is None:
        assert isinstance(result, Appended)
        assert result.last == len(model.events)
    else:
        assert result == expected


async def compare(store: Store, model: Model) -> None:
    chains = model.chains()
    head, page = await store.log.read_resume(model.at.stream, 0)
    if head is None:
        assert not model.events
    else:
        assert (head.sequence, head.chain, head.first) == (
            len(model.events),
            chains[-1],
            model.first,
        )
    assert [(entry.sequence, entry.event_id, entry.previous) for entry in page] == [
        (number, model.events[number - 1], chains[number - 1])
        for number in range(model.first, len(model.events) + 1)
    ]
    loaded = await store.log.load(model.tasks)
    assert [one.stamp for one in loaded] == model.stamps
    assert [one.snapshot for one in loaded] == model.snapshots
