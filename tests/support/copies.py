"""Recorded tasks appended repeatedly under other ids, to fill a store with very many."""

from __future__ import annotations

import asyncio
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self, cast

import orjson

from passerelle.core.batch import Appended, Batch, EntityKind, EntityRef, PackedBatch
from passerelle.core.chunks import in_chunks
from passerelle.core.ids import Shard, encode_base32, shard_of
from passerelle.core.ports.projections import IndexRow
from passerelle.core.principal import Principal
from passerelle.runtime.records.places import name_home
from passerelle.store.append import pack_append
from passerelle.store.archive.archiver import MOST_AT_ONCE
from passerelle.store.connection import pack, unpack
from passerelle.store.log import RedisEventLog
from passerelle.store.store import Store
from tests.integration.callers.rig import Instance

_ID: Final = re.compile(rb"[a-z]{2,5}_[0-3][0-9a-f][0-9abcdefghjkmnpqrstvwxyz]{26}")
_KEY_COUNT: Final = 2
_BEFORE_KEYS: Final = 3
"""Command name, digest of the script, number of keys."""
_ROWS: Final = ("feed", "runs")
_NUMBER: Final = 8
"""Letters of an id that hold the number of a copy."""
_AT_ONCE: Final = 64
_ROWS_AT_ONCE: Final = 256
_BEHIND: Final = 2
"""Following letters of the id: they distinguish ids that were minted together."""


@dataclass(frozen=True, slots=True)
class TaskCopies:
    """An ended task, alone in its session, and everything that a gateway appended for it.

    The copies are in the shard of the original, with its owner, agent and texts. They have no driver and no feed
    rows: ``make_row`` is the row for the owner's list.
    """

    shard: Shard
    task: str
    session: str
    row: IndexRow
    calls: tuple[tuple[PackedBatch, tuple[bytes, ...]], ...]
    """Each call with its text, split at the number of the copy."""

    @classmethod
    def of(
        cls, row: IndexRow, session: str, appended: Sequence[PackedBatch], kept: frozenset[str]
    ) -> Self:
        """Selects from all that was appended to a session; ``kept`` are ids that copies share, such as a person's."""
        own = [one for one in appended if one.session == session]
        cut = tuple((one, _cut(_detach(one.call), kept)) for one in own)
        return cls(own[0].shard, row.facade, session, row, cut)

    def make_batches(self, number: int) -> Iterator[PackedBatch]:
        """The appends of a copy, in order. Of the answer, only the part that belongs to an append."""
        letters, session = encode_base32(number, _NUMBER).encode(), self.name_session(number)
        for one, pieces in self.calls:
            yield PackedBatch(session, one.shard, one.entities, "", letters.join(pieces))

    def make_row(self, number: int, at_ms: int) -> IndexRow:
        """The row of a copy in its owner's list, with its time."""
        row = self.row
        return IndexRow(row.owner, row.agent, self.name_task(number), at_ms, row.part)

    def name_task(self, number: int) -> str:
        """The id of a copy."""
        return _rename(self.task, number)

    def name_session(self, number: int) -> str:
        """The id of its session."""
        return _rename(self.session, number)

    async def write(self, log: RedisEventLog, number: int) -> None:
        """Appends a copy.

        Raises:
            AssertionError: it exists already, or the store refuses it.
        """
        for batch in self.make_batches(number):
            result = await log.append(batch)
            assert isinstance(result, Appended), result


@dataclass(frozen=True, slots=True)
class TaskPopulation:
    """Copies of several originals in one store: the number of a copy selects its original."""

    store: Store
    originals: Sequence[TaskCopies]

    def find(self, number: int) -> TaskCopies:
        """The original of copy ``number``."""
        return self.originals[number % len(self.originals)]

    def name_task(self, number: int) -> str:
        """The id of a copy."""
        return self.find(number).name_task(number)

    async def write(self, number: int) -> None:
        """Appends one copy, which no list contains. Raises as ``TaskCopies.write`` does."""
        await self.find(number).write(self.store.log, number)

    async def write_all(self, numbers: Sequence[int]) -> None:
        """Appends copies and adds them to their owners' lists. Raises as ``TaskCopies.write`` does."""
        waiting = iter(numbers)

        async def write_some() -> None:
            for number in waiting:
                await self.write(number)

        async with asyncio.TaskGroup() as group:
            for _ in range(_AT_ONCE):
                group.create_task(write_some())
        # In the order of their numbers, a millisecond apart.
        last_ms = max(one.row.at_ms for one in self.originals)
        rows = [self.find(number).make_row(number, last_ms + number) for number in numbers]
        for part in in_chunks(rows, _ROWS_AT_ONCE):
            home = shard_of(part[0].owner)
            await self.store.projections.put_anew(home, home, part)

    async def archive(self, numbers: Iterable[int]) -> None:
        """Archives copies, so that they leave the engine.

        Raises:
            AssertionError: a copy stays.
        """
        sessions = defaultdict[Shard, list[str]](list)
        for number in numbers:
            one = self.find(number)
            sessions[one.shard].append(one.name_session(number))
        for shard, names in sessions.items():
            for part in in_chunks(names, MOST_AT_ONCE):
                archived = await self.store.archiver.archive(shard, part)
                assert not archived.stay, f"sessions of shard {shard.tag} do not leave"


async def record_task(at: Instance, client: str, text: str) -> TaskCopies:
    """Makes a gateway create a task that ends, alone in its session, and records its appends."""
    log, seen = at.gateway.store.log, list[PackedBatch]()
    append = log.append

    async def see(batch: Batch | PackedBatch) -> object:
        result = await append(batch)
        if isinstance(result, Appended):
            seen.append(batch if isinstance(batch, PackedBatch) else pack_append(batch))
        return result

    setattr(log, "append", see)  # noqa: B010  a method takes no assignment
    try:
        shown = (await at.send(f"{client}-key", text)).json()["result"]["task"]
    finally:
        del log.append
    rows = [row for one in seen for row in _read_rows(one.call) if row.facade == shown["id"]]
    task = EntityRef(EntityKind.TASK, shown["id"])
    session = next(one.session for one in seen if task in one.entities)
    kept = frozenset({name_home(Principal(client)), rows[-1].owner})
    return TaskCopies.of(rows[-1], session, seen, kept)


def _read_rows(call: bytes) -> list[IndexRow]:
    """Rows for owners' lists that an append contains."""
    _, lines = _read_control(call).get("feed") or (False, "")
    rows = (line.split(" ") for line in lines.splitlines())
    return [
        IndexRow(owner, agent, facade, int(at_ms), cast("Any", part))
        for owner, agent, facade, at_ms, part in rows
    ]


def _detach(call: bytes) -> bytes:
    """The same call without rows for the relay and for the driver's run set."""
    words = list(unpack(call))
    control = {name: said for name, said in _read_control(call).items() if name not in _ROWS}
    words[_BEFORE_KEYS + int(words[_KEY_COUNT])] = orjson.dumps(control)
    return pack(*words)


def _read_control(call: bytes) -> dict[str, Any]:
    words = unpack(call)
    return cast("dict[str, Any]", orjson.loads(words[_BEFORE_KEYS + int(words[_KEY_COUNT])]))


def _cut(call: bytes, kept: frozenset[str]) -> tuple[bytes, ...]:
    pieces, end = list[bytes](), 0
    for found in _ID.finditer(call):
        if found[0].decode() in kept:
            continue
        start = found.end() - _BEHIND - _NUMBER
        pieces.append(call[end:start])
        end = start + _NUMBER
    return (*pieces, call[end:])


def _rename(name: str, number: int) -> str:
    return f"{name[: -_BEHIND - _NUMBER]}{encode_base32(number, _NUMBER)}{name[-_BEHIND:]}"
