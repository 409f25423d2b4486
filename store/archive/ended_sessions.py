"""Sessions that are over, found by SCAN.

What tells them (nothing open, the time of the last event) stands in what they have anyway: no append pays for it, and
nothing can be forgotten. A look asks each session that it does not know. Of one that was asked before, the time of its
last event can only have grown: it is asked again when that is old enough, and no more once it was found over.
What is known here saves questions and decides nothing: whoever takes a session out of the engine compares all of it.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from passerelle.core.batch import EntityKind, EntityRef
from passerelle.core.ids import Shard
from passerelle.core.ports.log import StreamKind, StreamRef
from passerelle.core.wire.times import parse_ms
from passerelle.store import keys
from passerelle.store.archive.frame import MOST_PLAIN_BYTES
from passerelle.store.archive.home_session import is_home
from passerelle.store.connection import pack
from passerelle.store.key_scan import scan_keys
from passerelle.store.replies import as_bytes, as_int, as_sparse_list

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from passerelle.store.nodes import Nodes

MOST_KNOWN: Final = 20_000
"""Sessions between two looks, about 250 bytes each; the others are asked at each look."""
_ASKED_AT_ONCE: Final = 512
"""Sessions: the engine takes about a microsecond for each, and a caller waits behind all of them."""
_MOST_BYTES: Final = MOST_PLAIN_BYTES // 2
"""Of events of a session: what stands beside them has to fit into its frame as well."""
_TAGGED: Final = len("{00}:s:")
_BESIDE: Final = (EntityKind.GRANTS, EntityKind.RULES)
"""What stands beside a home session, under its id."""


class EndedSession(NamedTuple):
    """A session in which nothing is open: the time of its last event, and the length of its history."""

    session: str
    at_ms: int
    bytes: int


@dataclass(slots=True)
class EndedSessions:
    """Finds them in the engine; what it knows from earlier looks is bounded by ``most_known``."""

    nodes: Nodes
    most_known: int = MOST_KNOWN
    _recent: dict[str, int] = field(default_factory=dict[str, int], init=False)
    """The time of the last event of those that were not over."""
    _ended: dict[str, EndedSession] = field(default_factory=dict[str, EndedSession], init=False)

    async def find(
        self, shards: Collection[Shard], before_ms: int
    ) -> dict[Shard, list[EndedSession]]:
        """Sessions in which nothing is open and nothing has happened since, by shard, oldest first.

        One that is too long for a frame is left out, and each home session.

        Raises:
            StoreUnavailable: a node does not answer.
        """
        present = await self._scan(shards)
        self._drop_absent(present)
        found = defaultdict[Shard, list[EndedSession]](list)
        asked = list[tuple[Shard, list[str]]]()
        for shard, sessions in present.items():
            known = [self._ended[one] for one in sessions if one in self._ended]
            found[shard] += [one for one in known if one.at_ms < before_ms]
            asked.append((shard, [one for one in sessions if self._may_be_over(one, before_ms)]))
        for some in _split(asked):
            for shard, ended in await self._ask(some, before_ms):
                found[shard] += ended
        return {
            shard: sorted(ended, key=lambda one: one.at_ms)
            for shard, ended in found.items()
            if ended
        }

    def forget(self, sessions: Iterable[str]) -> None:
        """Has these asked again: they were over, and yet they could not leave."""
        for session in sessions:
            self._ended.pop(session, None)

    async def _scan(self, shards: Collection[Shard]) -> dict[Shard, set[str]]:
        wanted = {shard.number: shard for shard in shards}
        present = defaultdict[Shard, set[str]](set)
        for node in self.nodes.all:
            async for names in scan_keys(node, keys.EVERY_SESSION):
                for name in names:
                    if (shard := wanted.get(int(name[1:3], 16))) is not None:
                        present[shard].add(name[_TAGGED:].decode())
        return present

    def _drop_absent(self, present: dict[Shard, set[str]]) -> None:
        known = {*self._recent, *self._ended}
        for session in known.difference(*present.values()):
            self._recent.pop(session, None)
            self._ended.pop(session, None)

    def _may_be_over(self, session: str, before_ms: int) -> bool:
        """Whether it has to be asked."""
        if session in self._ended:
            return False
        at_ms = self._recent.get(session)
        return at_ms is None or at_ms < before_ms

    async def _ask(
        self, some: Sequence[tuple[Shard, list[str]]], before_ms: int
    ) -> list[tuple[Shard, list[EndedSession]]]:
        """Those of them that are over. What is asked at once travels together."""
        looks = await asyncio.gather(*(self._read_heads(shard, part) for shard, part in some))
        old = list[tuple[Shard, list[EndedSession]]]()
        for (shard, _), heads in zip(some, looks, strict=True):
            for one in heads:
                self._recent.pop(one.session, None)
                if one.at_ms >= before_ms and self.known < self.most_known:
                    self._recent[one.session] = one.at_ms
            fit = [one for one in heads if one.at_ms < before_ms and one.bytes <= _MOST_BYTES]
            if fit:
                old.append((shard, fit))
        free = await asyncio.gather(*(self._drop_busy(shard, part) for shard, part in old))
        for one in (one for part in free for one in part):
            if self.known < self.most_known:
                self._ended[one.session] = one
        return [(shard, part) for (shard, _), part in zip(old, free, strict=True)]

    @property
    def known(self) -> int:
        """Sessions of which something is known, at most ``most_known``."""
        return len(self._recent) + len(self._ended)

    async def _read_heads(self, shard: Shard, sessions: Sequence[str]) -> list[EndedSession]:
        heads = (keys.head(StreamRef(StreamKind.SESSION, one)) for one in sessions)
        asked = (pack("HMGET", head, "at", "bytes") for head in heads)
        replies = await self.nodes.query_in_background(shard, *asked)
        fields = zip(sessions, map(as_sparse_list, replies), strict=True)
        return [
            EndedSession(session, parse_ms(at.decode()), as_int(size))
            for session, (at, size) in fields
            if at is not None
        ]

    async def _drop_busy(self, shard: Shard, old: Sequence[EndedSession]) -> list[EndedSession]:
        """Those in which nothing is open. A home session never ends, whatever its owner has beside it."""
        asked = [command for one in old for command in _ask_holds(shard, one.session)]
        replies = await self.nodes.query_in_background(shard, *asked)
        return [
            one
            for one, count, record in zip(old, replies[::2], replies[1::2], strict=True)
            if not as_int(count) and not is_home(one.session, as_bytes(record) or b"")
        ]


def _ask_holds(shard: Shard, session: str) -> tuple[bytes, bytes]:
    """How many keys there are of which each keeps a session in the engine, and its record."""
    beside = [keys.entity(EntityRef(kind, session)) for kind in _BESIDE]
    head = keys.entity(EntityRef(EntityKind.SESSION, session))
    return pack("EXISTS", keys.session_open(shard, session), *beside), pack("HGET", head, "s")


def _split(
    asked: Iterable[tuple[Shard, list[str]]],
) -> Iterator[list[tuple[Shard, list[str]]]]:
    """Parts of which each has at most ``_ASKED_AT_ONCE`` sessions."""
    some, room = list[tuple[Shard, list[str]]](), _ASKED_AT_ONCE
    for shard, sessions in asked:
        for first in range(0, len(sessions), _ASKED_AT_ONCE):
            part = sessions[first : first + _ASKED_AT_ONCE]
            if len(part) > room:
                yield some
                some, room = [], _ASKED_AT_ONCE
            some.append((shard, part))
            room -= len(part)
    if some:
        yield some
