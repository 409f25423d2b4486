"""Builds one decision: collects facts, folds every record that they change, and composes one batch.

Snapshots name the sequences of the batch's own events before the store has assigned them. So records are folded with
provisional numbers from a random base, the snapshot is split at these numbers, and the store inserts the real ones. No
text can imitate them, since the base is random for each try.
"""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from functools import cache
from operator import is_not
from types import NoneType
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast, get_args, get_type_hints

from passerelle.core.batch import (
    ABSENT,
    Batch,
    DueChange,
    EntityKind,
    EntityRef,
    EntityWrite,
    OpenChange,
    Stamp,
)
from passerelle.core.events import Event, encode_event
from passerelle.core.frozen import frozen
from passerelle.core.machine import Record, evolve, find_targets, write_snapshot
from passerelle.core.task.edges import list_changes
from passerelle.core.task.record import TaskRecord
from passerelle.core.wire.generated import make_function
from passerelle.core.wire.record import change
from passerelle.core.wire.times import format_ms
from passerelle.core.wire.trace import stamp

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from passerelle.core.batch import (
        DueClaim,
        Fence,
        IdempotencyRow,
        RunMove,
        SnapshotPieces,
        TargetChange,
    )
    from passerelle.core.events import EncodedEvent, Fact
    from passerelle.core.ids import Shard
    from passerelle.core.ports.chance import Ids
    from passerelle.core.ports.projections import IndexRow
    from passerelle.core.wire.trace import Trace

R = TypeVar("R")
MAX_EVENTS: Final = 64
_DIGITS: Final = 2
_BASE_BITS: Final = 43
_BASE_FLOOR: Final = 40_000_000_000_000
"""Fourteen digits before the two of the index: above any real sequence, below 2**53."""


@frozen
class Held:
    """An entity as it was read: its stamp, its record, and the other fields of its hash.

    ``archive`` is the ref of its session if that is archived.
    """

    stamp: Stamp
    record: Record | None
    fields: Mapping[str, bytes]
    archive: str | None = None


NOTHING: Final = Held(ABSENT, None, {})


class Decision:
    """Collects facts over the entities that were read; ``compose`` returns the batch, ``settle`` the result."""

    def __init__(
        self,
        session: str,
        held: Mapping[EntityRef, Held],
        *,
        ids: Ids,
        shard: Shard,
        now_ms: int,
        runtime_id: str,
        not_before: str = "",
    ) -> None:
        """``not_before``: the last time in the stream. Its events are not earlier; deadlines count from ``now_ms``."""
        self.session = session
        self.now_ms = now_ms
        self._held = dict(held)
        self._ids = ids
        self._shard = shard
        self._runtime_id = runtime_id
        self._timestamp = max(format_ms(now_ms), not_before)
        self._base = (_BASE_FLOOR + ids.draw(_BASE_BITS)) * 10**_DIGITS
        self._events: list[Event] = []
        self._touched: dict[EntityRef, None] = {}
        self._states: dict[EntityRef, Record | None] = {
            ref: entity.record for ref, entity in held.items()
        }
        self._fields: dict[EntityRef, dict[str, bytes | None]] = {}
        self._trace = _find_trace(held.values())

    def belong(self, trace: Trace | None) -> None:
        """Sets the trace of the following facts, unless a fact has its own (ENV-8)."""
        self._trace = trace

    @property
    def events(self) -> tuple[Event, ...]:
        """The events so far, with provisional sequences."""
        return tuple(self._events)

    @property
    def changes_nothing(self) -> bool:
        """Whether there is neither a fact nor a field to write."""
        return not self._events and not self._touched

    @property
    def touched(self) -> tuple[EntityRef, ...]:
        """The entities that are written, in batch order."""
        return tuple(self._touched)

    def introduce(self, ref: EntityRef) -> None:
        """Adds an entity that does not exist yet; the store checks that it still does not."""
        self._held[ref] = NOTHING
        self._states[ref] = None

    @property
    def states(self) -> Mapping[EntityRef, Record | None]:
        """The current state of every record of the decision."""
        return self._states

    def state(self, ref: EntityRef) -> Record | None:
        """The record after the facts so far."""
        return self._states.get(ref)

    def version(self, ref: EntityRef) -> int:
        """The version of an entity as it was read; 0 if it does not exist."""
        return self._held[ref].stamp.version

    def fields(self, ref: EntityRef) -> Mapping[str, bytes]:
        """The other fields of an entity's hash as they were read."""
        return self._held[ref].fields

    def add(self, facts: Iterable[Fact]) -> None:
        """Folds further facts into every record that they change.

        Raises:
            ValueError: a fact changes an entity that was not read, so its version could not be compared.
        """
        for fact in facts if self._trace is None else stamp(facts, self._trace):
            event = Event(
                event_id=self._ids.mint("ev", self._shard),
                timestamp=self._timestamp,
                runtime_id=self._runtime_id,
                fact=fact,
                sequence=self._base + len(self._events),
            )
            for ref in find_targets(event):
                if ref not in self._states:
                    message = f"{event.type} changes {ref.kind} {ref.id}, which was not read"
                    raise ValueError(message)
                self._states[ref] = evolve(ref.kind, self._states[ref], event)
                self._touched[ref] = None
            self._events.append(event if fact.facade is None else self._number(event))

    def _number(self, event: Event) -> Event:
        """The event with the generation of its task; a bare Message shows no task and has none."""
        task_id = event.fact.scope.task_id
        task = self._states.get(EntityRef(EntityKind.TASK, task_id)) if task_id else None
        generation = task.generation if isinstance(task, TaskRecord) else 0
        return change(event, generation=generation) if generation else event

    def set_field(self, ref: EntityRef, name: str, value: bytes | None) -> None:
        """Sets or removes a field of an entity's hash in the same write."""
        self._fields.setdefault(ref, {})[name] = value
        self._touched[ref] = None

    def compose(  # noqa: PLR0913  one batch has these parts
        self,
        op: str,
        shard_epoch: int,
        *,
        fence: Fence | None = None,
        claim: DueClaim | None = None,
        not_after_ms: int | None = None,
        runs: tuple[RunMove, ...] = (),
        due: tuple[DueChange, ...] = (),
        opened: tuple[OpenChange, ...] = (),
        task_times: tuple[tuple[str, int], ...] = (),
        targets: tuple[TargetChange, ...] = (),
        idem: IdempotencyRow | None = None,
        feed: bool = True,
        index: tuple[IndexRow, ...] = (),
    ) -> Batch:
        """The batch of this decision."""
        return Batch(
            session=self.session,
            op=op,
            shard_epoch=shard_epoch,
            stream_epoch=f"{self._ids.draw(32):08x}",
            at=self._timestamp,
            entities=tuple(self._write(ref) for ref in self._touched),
            events=tuple(self._encode()),
            fence=fence,
            runs=runs,
            claim=claim,
            not_after_ms=not_after_ms,
            due=due,
            open=opened,
            task_times=task_times,
            targets=targets,
            feed=feed,
            index=index,
            idem=idem,
        )

    def settle(self, op: str, first: int) -> dict[EntityRef, Held]:
        """The entities after the batch is stored with its first event at sequence ``first``."""
        return {ref: self._settle_one(ref, op, first) for ref in self._states}

    def _settle_one(self, ref: EntityRef, op: str, first: int) -> Held:
        before = self._held[ref]
        if ref not in self._touched:
            return before
        fields = {**before.fields}
        for name, value in self._list_fields(ref).items():
            if value is None:
                fields.pop(name, None)
            else:
                fields[name] = value
        state = renumber(self._states[ref], self._base, first)
        return Held(Stamp(before.stamp.version + 1, op), state, fields)

    def _write(self, ref: EntityRef) -> EntityWrite:
        state = self._states[ref]
        snapshot = write_snapshot(state) if state is not None else b""
        return EntityWrite(
            ref=ref,
            expected=self._held[ref].stamp,
            snapshot=split_snapshot(snapshot, self._base),
            fields=self._list_fields(ref),
        )

    def _list_fields(self, ref: EntityRef) -> dict[str, bytes | None]:
        """The changed fields besides the snapshot: set fields, and edges of a task beyond those in the snapshot."""
        fields, after = self._fields.get(ref, {}), self._states[ref]
        if not isinstance(after, TaskRecord):
            return fields
        before = self._held[ref]
        known = before.record if isinstance(before.record, TaskRecord) else None
        return fields | list_changes(known, before.fields, after)

    def _encode(self) -> Iterable[EncodedEvent]:
        return (encode_event(event) for event in self._events)


def renumber(value: R, base: int, first: int) -> R:
    """The value with every provisional number replaced by the real one; a value without any is the same object.

    Equal to folding the same events again with their real sequences, at a fraction of the cost.
    """
    return cast("R", _renumber(value, base, first))


def _renumber(value: object, base: int, first: int) -> object:
    kind: type[Any] = type(value)
    if kind is int:
        number = cast("int", value)
        return number - base + first if base <= number < base + 10**_DIGITS else number
    if kind is tuple:
        items = cast("tuple[object, ...]", value)
        changed = tuple([_renumber(item, base, first) for item in items])
        return changed if any(map(is_not, changed, items)) else value
    if kind is dict:
        members = cast("dict[str, object]", value)
        renumbered = {name: _renumber(member, base, first) for name, member in members.items()}
        return renumbered if any(map(is_not, renumbered.values(), members.values())) else value
    visit = _make_visit(kind)  # type: ignore[arg-type]  # a class is hashable, whatever mypy says of type[object]
    return value if visit is None else visit(value, base, base + 10**_DIGITS, first)


@cache
def _make_visit(kind: type[Any]) -> Callable[[Any, int, int, int], Any] | None:
    """``_renumber`` of a record, generated per class: only few of some fifty members can hold a sequence."""
    if not is_dataclass(kind):
        return None
    hints, lines = get_type_hints(kind), ["changes = {}"]
    for member in fields(kind):
        hint, name = hints[member.name], member.name
        if {hint, *get_args(hint)} <= {int, int | None, NoneType}:
            lines += [
                f"member = value.{name}",
                "if member is not None and base <= member < top:",
                f"    changes[{name!r}] = member - base + first",
            ]
        elif _has_number(hint):
            lines += [
                f"member = value.{name}",
                "if member and (changed := renumber(member, base, first)) is not member:",
                f"    changes[{name!r}] = changed",
            ]
    if len(lines) == 1:
        return None
    lines.append("return change(value, **changes) if changes else value")
    known = {"renumber": _renumber, "change": change}
    return make_function("visit(value, base, top, first)", lines, known)


def _has_number(hint: object) -> bool:
    """Whether a type can hold a sequence."""
    inner = get_args(hint)
    if inner:
        return any(map(_has_number, inner))
    return hint is int or (isinstance(hint, type) and _make_visit(hint) is not None)


def split_snapshot(snapshot: bytes, base: int) -> SnapshotPieces:
    """The snapshot with every provisional number replaced by the index of its event."""
    prefix = str(base // 10**_DIGITS).encode()
    pieces: list[bytes | int] = []
    start, at = 0, snapshot.find(prefix)
    while at >= 0:
        end = at + len(prefix) + _DIGITS
        index = snapshot[at + len(prefix) : end]
        alone = not snapshot[at - 1 : at].isdigit() and not snapshot[end : end + 1].isdigit()
        if alone and len(index) == _DIGITS and index.isdigit():
            if at > start:
                pieces.append(snapshot[start:at])
            pieces.append(int(index))
            start = end
        at = snapshot.find(prefix, at + 1)
    if start < len(snapshot):
        pieces.append(snapshot[start:])
    return tuple(pieces)


def _find_trace(held: Iterable[Held]) -> Trace | None:
    """The trace of the run that a decision is about."""
    for one in held:
        if isinstance(one.record, TaskRecord) and one.record.attempts:
            run = one.record.attempts[-1]
            return run.trace if run.traceparent else None
    return None
