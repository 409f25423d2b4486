"""One interface to all machines: the entities that an event changes, their folds and their snapshots.

Each kind has its own machine, in one file with one table. Batches, replay and verification treat all kinds alike
through this module; a further kind is a further row of ``KINDS``.
"""

from __future__ import annotations

from functools import cache, lru_cache
from typing import TYPE_CHECKING, Final, TypeAlias, cast

import orjson

from passerelle.core.approval import machine as approval
from passerelle.core.approval.machine import ActionRecord
from passerelle.core.batch import EntityKind, EntityRef
from passerelle.core.errors import InvalidInput, RecordDamaged
from passerelle.core.frozen import frozen
from passerelle.core.payloads.governance import PolicyChanged
from passerelle.core.policy import edited_rules, grant
from passerelle.core.policy.edited_rules import EditedRules
from passerelle.core.policy.grant import Grants
from passerelle.core.principal import Principal
from passerelle.core.session import device, thread
from passerelle.core.session import machine as session
from passerelle.core.session.device import DeviceList
from passerelle.core.session.machine import SessionRecord
from passerelle.core.session.thread import ThreadRecord
from passerelle.core.task import fold as task_fold
from passerelle.core.task.edges import cut, join
from passerelle.core.task.record import TaskRecord
from passerelle.core.wire.codec import from_bytes, to_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from passerelle.core.batch import Loaded
    from passerelle.core.events import Event

Record: TypeAlias = (
    SessionRecord | ThreadRecord | TaskRecord | ActionRecord | DeviceList | Grants | EditedRules
)
Fold: TypeAlias = "Callable[[Record | None, Event], Record | None]"

_KEPT_RECORDS: Final = 512
"""Cached decoded records, least recently used first out."""
_KEPT_BYTES: Final = 4_096
"""Larger snapshots are decoded each time."""


@frozen
class RecordKind:
    """The parts of a machine: its record, its fold, the payloads it folds, and the entity id of an event."""

    record: type[Record]
    fold: Fold
    folded: frozenset[type]
    target: Callable[[Event], str | None]


def _session_target(event: Event) -> str | None:
    return event.fact.scope.session_id if session.folds_session(event) else None


def _thread_target(event: Event) -> str | None:
    return thread.find_thread(event) if thread.folds_thread(event) else None


def _task_target(event: Event) -> str | None:
    return event.fact.scope.task_id if task_fold.folds_task(event) else None


def _action_target(event: Event) -> str | None:
    return event.fact.scope.action_id if approval.folds_action(event) else None


def _device_target(event: Event) -> str | None:
    payload = event.fact.payload
    if not isinstance(payload, PolicyChanged) or payload.device is None:
        return None
    return device.name_list(Principal(payload.device.principal, payload.device.tenant))


def _grants_target(event: Event) -> str | None:
    return event.fact.scope.session_id if grant.folds_grants(event) else None


def _rules_target(event: Event) -> str | None:
    return event.fact.scope.session_id if edited_rules.folds_rules(event) else None


KINDS: Final[dict[EntityKind, RecordKind]] = {
    EntityKind.SESSION: RecordKind(
        SessionRecord, cast("Fold", session.evolve), session.FOLDED, _session_target
    ),
    EntityKind.THREAD: RecordKind(
        ThreadRecord, cast("Fold", thread.evolve), thread.FOLDED, _thread_target
    ),
    EntityKind.TASK: RecordKind(
        TaskRecord, cast("Fold", task_fold.evolve), task_fold.FOLDED, _task_target
    ),
    EntityKind.ACTION: RecordKind(
        ActionRecord, cast("Fold", approval.evolve), approval.FOLDED, _action_target
    ),
    EntityKind.DEVICES: RecordKind(
        DeviceList, cast("Fold", device.evolve), device.FOLDED, _device_target
    ),
    EntityKind.GRANTS: RecordKind(Grants, cast("Fold", grant.evolve), grant.FOLDED, _grants_target),
    EntityKind.RULES: RecordKind(
        EditedRules, cast("Fold", edited_rules.evolve), edited_rules.FOLDED, _rules_target
    ),
}

KIND_OF: Final[dict[type[object], EntityKind]] = {row.record: kind for kind, row in KINDS.items()}
"""The kind of the entities that a class of records belongs to."""


def find_targets(event: Event) -> list[EntityRef]:
    """The entities whose records the event changes."""
    machines = _list_machines(type(event.fact.payload))  # type: ignore[arg-type]  # a class is hashable, whatever mypy says of type[object]
    return [
        EntityRef(kind, target)
        for kind, machine in machines
        if (target := machine.target(event)) is not None
    ]


@cache
def _list_machines(payload: type) -> list[tuple[EntityKind, RecordKind]]:
    return [(kind, machine) for kind, machine in KINDS.items() if payload in machine.folded]


def evolve(kind: EntityKind, state: Record | None, event: Event) -> Record | None:
    """The record of ``kind`` after an event. Total: it never raises."""
    return KINDS[kind].fold(state, event)


def write_snapshot(state: Record) -> bytes:
    """The stored bytes of a record; equal records give equal bytes (I4)."""
    return to_bytes(cut(state) if isinstance(state, TaskRecord) else state)


def read_loaded(loaded: Loaded) -> Record | None:
    """The whole record of a stored entity, fields outside its snapshot included; None if there is none.

    Raises:
        RecordDamaged: it is damaged, or has another schema than this version writes.
    """
    try:
        record = read_snapshot(loaded.ref.kind, loaded.snapshot)
        return join(record, loaded.fields) if isinstance(record, TaskRecord) else record
    except InvalidInput as error:
        reason = f"the record of {loaded.ref.id} cannot be read: {error}"
        raise RecordDamaged(reason) from None


def read_snapshot(kind: EntityKind, snapshot: bytes) -> Record | None:
    """The record of a snapshot, for a task with its first edges only; None if there is none.

    Raises:
        InvalidInput: the bytes have another schema than this version writes.
    """
    if not snapshot:
        return None
    return _decode_once(kind, snapshot) if len(snapshot) <= _KEPT_BYTES else _decode(kind, snapshot)


def _decode(kind: EntityKind, snapshot: bytes) -> Record:
    return from_bytes(KINDS[kind].record, snapshot)


_decode_once: Final = lru_cache(_KEPT_RECORDS)(_decode)
"""Cached: polls of a task and lists of a context read the same bytes again, and decoding dominates their cost."""


def read_schema(snapshot: bytes) -> int:
    """The schema number of a snapshot."""
    return int(orjson.loads(snapshot)["schema"])


def replay(events: Iterable[Event]) -> dict[EntityRef, Record]:
    """Every record of a stream, folded from its first event (VAL-1, I4)."""
    states: dict[EntityRef, Record] = {}
    for event in events:
        for ref in find_targets(event):
            state = evolve(ref.kind, states.get(ref), event)
            if state is not None:
                states[ref] = state
    return states
