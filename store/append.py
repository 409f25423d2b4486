"""Encodes a batch as arguments of the ``append`` script, and decodes its reply."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias, cast

import orjson

from passerelle.core.batch import (
    Again,
    Appended,
    Conflict,
    Early,
    EntityKind,
    EntityRef,
    Fenced,
    Late,
    Loaded,
    PackedBatch,
    StaleEpoch,
    Stamp,
    Unclaimed,
)
from passerelle.core.errors import TooLarge
from passerelle.core.packed_events import MOST_EVENTS, pack_events
from passerelle.core.ports.log import StreamKind, StreamRef
from passerelle.store import keys
from passerelle.store.connection import unpack
from passerelle.store.scripts import read_script

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from passerelle.core.batch import AppendResult, Batch, EntityWrite
    from passerelle.store.connection import RespValue
    from passerelle.store.lua_script import ControlValue

MOST_BYTES: Final = 256 * 1024
IDEMPOTENCY: Final = "idempotency"
"""Value of ``Conflict.entity`` if the idempotency key was used with another digest."""

_KEY_COUNT: Final = 2
_BEFORE_KEYS: Final = 3
"""The command, the script digest, the number of keys."""

_Texts: TypeAlias = "list[bytes]"
_Written: TypeAlias = "tuple[int, str, str, list[int], list[str | int]]"
"""An entity in the control argument."""
_Stored: TypeAlias = "tuple[bytes, bytes, bytes, bytes, bytes, int]"
"""``ok``, first and last sequence, chain, server time, number of webhook targets made due."""


class SessionArchived(NamedTuple):
    """The session of the batch is archived; nothing was written."""


_BARE: Final[dict[bytes, Fenced | Unclaimed | SessionArchived]] = {
    b"fenced": Fenced(),
    b"unclaimed": Unclaimed(),
    b"archived": SessionArchived(),
}


class Arguments:
    """KEYS and byte strings of one call; the control argument refers to both by index."""

    def __init__(self, fixed: Iterable[str]) -> None:
        self.keys = list(fixed)
        self.values: _Texts = []
        self._places = {key: place for place, key in enumerate(self.keys, 1)}

    def key(self, key: str) -> int:
        """The index of a key in KEYS."""
        if key not in self._places:
            self.keys.append(key)
            self._places[key] = len(self.keys)
        return self._places[key]

    def value(self, value: bytes) -> int:
        """The index of a byte string in ARGV, after the control argument."""
        self.values.append(value)
        return len(self.values) + 1

    def extend(self, values: Iterable[bytes]) -> tuple[int, int]:
        """The indexes of the first and the last of some byte strings."""
        first = len(self.values) + 2
        self.values += values
        return first, len(self.values) + 1


def pack_append(batch: Batch) -> PackedBatch:
    """The batch as it is sent.

    Raises:
        TooLarge: more than 64 events or 256 KiB.
        ValueError: the batch names another shard, or nothing by which a repeat can be recognized; or an event cannot
            be packed.
    """
    check_batch(batch)
    shard = batch.shard
    stream = StreamRef(StreamKind.SESSION, batch.session)
    arguments = Arguments(
        (
            keys.head(stream),
            keys.entries(stream),
            keys.meta(shard),
            keys.due(shard),
            keys.session_open(shard, batch.session),
            keys.session_tasks(shard, batch.session),
            keys.stream_targets(stream),
            keys.feed(shard),
            keys.stream_hints(stream),
        )
    )
    if batch.events:
        # The script relies on this being the first value.
        arguments.value(pack_events(batch.events, batch.session))
    # Dropped and set rows go in one command each: of two changes of a row the later one is kept.
    due = {row.member: row.at_ms for row in batch.due}
    control: dict[str, ControlValue] = {
        "session": batch.session,
        "op": batch.op,
        "shard_epoch": str(batch.shard_epoch),
        "mint": batch.stream_epoch,
        "at": batch.at if batch.events else "",
        "events": [event.event_id for event in batch.events],
        "facades": [*dict.fromkeys(event.facade for event in batch.events if event.facade)],
        "entities": [_entity(write, arguments) for write in batch.entities],
        "fence": _fence(batch, arguments),
        "runs": [
            [
                arguments.key(keys.own(shard, move.driver.instance)),
                str(move.driver.number),
                move.run,
                move.task,
                move.enters,
            ]
            for move in batch.runs
        ],
        "claim": [batch.claim.member, batch.claim.token] if batch.claim else False,
        "not_after": False if batch.not_after_ms is None else str(batch.not_after_ms),
        "dropped": [member for member, at_ms in due.items() if at_ms is None],
        "due": _flatten((str(at_ms), member) for member, at_ms in due.items() if at_ms is not None),
        "open": _flatten(
            (change.entity, False if change.event is None else change.event + 1)
            for change in batch.open
        ),
        "times": _flatten((str(at_ms), facade) for facade, at_ms in batch.task_times),
        "feed": [batch.feed, _write_index(batch)] if batch.feed or batch.index else False,
        "targets": [
            [change.target, change.filter or False, change.whole] for change in batch.targets
        ],
        "stuck": arguments.key(keys.stuck(shard)) if batch.targets else 0,
        "idem": _idempotency(batch, arguments),
    }
    if sum(map(len, arguments.values)) > MOST_BYTES:
        raise TooLarge("a batch", MOST_BYTES)
    return PackedBatch(
        batch.session,
        shard,
        tuple(write.ref for write in batch.entities),
        batch.events[0].event_id if batch.events else "",
        read_script("append").pack_call(
            arguments.keys,
            {name: said for name, said in control.items() if said},
            arguments.values,
        ),
    )


def unpack_entities(packed: PackedBatch, first: int) -> list[Loaded]:
    """The entities as stored once the batch is written with its first event at sequence ``first``.

    Other fields of the entities are not known here, so use it only for entities that the batch creates or writes
    completely.
    """
    call = unpack(packed.call)
    values = call[_BEFORE_KEYS + int(call[_KEY_COUNT]) :]
    control = cast("dict[str, Any]", orjson.loads(values[0]))
    return [
        _unpack(ref, control["op"], written, values, first)
        for ref, written in zip(packed.entities, control.get("entities", ()), strict=True)
    ]


def _unpack(
    ref: EntityRef, op: str, written: _Written, values: tuple[bytes, ...], first: int
) -> Loaded:
    _, version, _, parts, fields = written
    snapshot = b"".join(
        values[part - 1] if part > 0 else str(first - part - 1).encode() for part in parts
    )
    names, places = cast("list[str]", fields[::2]), cast("list[int]", fields[1::2])
    kept = {name: values[place - 1] for name, place in zip(names, places, strict=True) if place}
    return Loaded(ref, Stamp(int(version) + 1, op), snapshot, kept)


def check_batch(batch: Batch) -> None:
    """Refuses a batch that the script could not treat as one decision.

    Raises:
        TooLarge: more than 64 events.
        ValueError: the batch names another shard, or nothing by which a repeat can be recognized.
    """
    if len(batch.events) > MOST_EVENTS:
        raise TooLarge("a batch", MOST_BYTES)
    if batch.idem is None and not any(write.snapshot or write.fields for write in batch.entities):
        message = "a batch must write an entity or carry an idempotency row; otherwise a retry would apply it twice"
        raise ValueError(message)
    for write in batch.entities:
        if write.ref.shard != batch.shard:
            message = f"{write.ref.id} is not in the shard of {batch.session}"
            raise ValueError(message)


def read_append(reply: RespValue, packed: PackedBatch) -> AppendResult | SessionArchived:
    """Decodes a reply of the script.

    Raises:
        ValueError: it is not a reply of the script.
    """
    if isinstance(reply, list) and reply and reply[0] == b"ok":
        # Handled first, because nearly every append ends so: a match statement takes four times as long.
        stored: _Stored = reply  # type: ignore[assignment]  # what the script says; a cast would be a call
        _, first, last, chain, now, woken = stored
        return Appended(int(first), int(last), chain.decode(), int(now), woken)
    match reply:
        case [b"again", 1, bytes(result)]:
            return Again(result)
        case [b"again", *_]:
            return Again(None)
        case [b"conflict", int(place), bytes(version), bytes(op)]:
            entity = packed.entities[place - 1].id if place else IDEMPOTENCY
            return Conflict(entity, Stamp(int(version), op.decode()))
        case [bytes(word)] if word in _BARE:
            return _BARE[word]
        case [b"late", bytes(now)]:
            return Late(int(now))
        case [b"early", bytes(at)]:
            return Early(at.decode())
        case [b"epoch", bytes(epoch)]:
            return StaleEpoch(int(epoch))
        case other:
            message = f"append answered {other!r}"
            raise ValueError(message)


def _entity(write: EntityWrite, arguments: Arguments) -> list[ControlValue]:
    parts = [
        -(piece + 1) if isinstance(piece, int) else arguments.value(piece)
        for piece in write.snapshot
    ]
    fields = _flatten(
        (name, 0 if value is None else arguments.value(value))
        for name, value in write.fields.items()
    )
    key = arguments.key(keys.entity(write.ref))
    return [key, str(write.expected.version), write.expected.op, parts, fields]


def _fence(batch: Batch, arguments: Arguments) -> ControlValue:
    if batch.fence is None:
        return False
    task = EntityRef(EntityKind.TASK, batch.fence.task)
    return [arguments.key(keys.entity(task)), str(batch.fence.driver)]


def _write_index(batch: Batch) -> str:
    return "\n".join(
        f"{row.owner} {row.agent} {row.facade} {row.at_ms} {row.part}" for row in batch.index
    )


def _idempotency(batch: Batch, arguments: Arguments) -> ControlValue:
    row = batch.idem
    if row is None:
        return False
    key = arguments.key(keys.idempotency(batch.shard, row.key))
    return [key, row.digest, arguments.value(row.result), str(row.ttl_ms)]


def _flatten(rows: Iterable[Sequence[ControlValue]]) -> list[ControlValue]:
    return [*chain.from_iterable(rows)]
