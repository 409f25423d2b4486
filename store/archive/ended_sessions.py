"""Finds ended sessions by SCAN.

The facts needed (nothing open, the time of the last event) are in the session anyway: no append pays for it, and
nothing can be forgotten. The first look at a shard reads each session. A session that a later look sees for the first
time has an event since the look before: it is read once this look is old enough. The last event of a session that was
read can only have become later: it is read again when that is old enough, at each look while something is open in it,
and never again once it was found ended.
This cache only saves reads: archiving compares the whole session before it removes it from the engine.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from passerelle.core.batch import EntityKind, EntityRef
from passerelle.core.chunks import in_chunks
from passerelle.core.ids import Shard
from passerelle.core.wire.times import parse_ms
from passerelle.store import keys
from passerelle.store.archive.frame import MOST_PLAIN_BYTES, is_home
from passerelle.store.connection import pack_words
from passerelle.store.key_scan import scan_keys
from passerelle.store.replies import as_int, as_sparse_list

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from passerelle.store.nodes import Nodes

T = TypeVar("T")

MOST_KNOWN: Final = 20_000
"""Sessions remembered between two looks, about 250 bytes each; the others are read at each look."""
_ASKED_AT_ONCE: Final = 512
"""Sessions read at once: each takes about a microsecond, and a caller waits behind all of them."""
_MOST_BYTES: Final = MOST_PLAIN_BYTES // 2
"""Bytes of a session's events: the rest of the session has to fit into its frame as well."""
_TAGGED: Final = len("{00}:s:")
_WITH_HOME: Final = (EntityKind.GRANTS, EntityKind.RULES)
"""Entities stored with a home session, under its id."""


class EndedSession(NamedTuple):
    """A session in which nothing is open: the time of its last event, and the size of its history."""

    session: str
    at_ms: int
    bytes: int


@dataclass(slots=True)
class EndedSessions:
    """Finds ended sessions in the engine; at most ``most_known`` are remembered between looks."""

    nodes: Nodes
    most_known: int = MOST_KNOWN
    _recent: dict[str, int] = field(default_factory=dict[str, int], init=False)
    """The time of the last event of sessions that had not ended, or of the look that first saw them."""
    _looked: set[Shard] = field(default_factory=set["Shard"], init=False)
    """The shards that the last look walked completely."""
    _ended: dict[str, EndedSession] = field(default_factory=dict[str, EndedSession], init=False)

    async def find(
        self, shards: Collection[Shard], before_ms: int
    ) -> dict[Shard, list[EndedSession]]:
        """Sessions in which nothing is open and nothing has happened since ``before_ms``, by shard, oldest first.

        Sessions too long for a frame are left out, and home sessions.

        Raises:
            StoreUnavailable: a node does not answer.
        """
        now_ms = {shard: self.nodes.node(shard).time.now_ms() for shard in shards}
        present = await self._scan(shards)
        self._drop_absent(present)
        for shard in self._looked.intersection(shards):
            self._note_new(present.get(shard, ()), now_ms[shard])
        found = defaultdict[Shard, list[EndedSession]](list)
        asked = list[tuple[Shard, str]]()
        for shard, sessions in present.items():
            known = [self._ended[one] for one in sessions if one in self._ended]
            found[shard] += [one for one in known if one.at_ms < before_ms]
            asked += [(shard, one) for one in sessions if self._must_ask(one, before_ms)]
        for part in in_chunks(asked, _ASKED_AT_ONCE):
            for shard, ended in await self._ask(part, before_ms):
                found[shard].append(ended)
        self._looked = set(shards)
        return {
            shard: sorted(ended, key=lambda one: one.at_ms)
            for shard, ended in found.items()
            if ended
        }

    def forget(self, sessions: Iterable[str]) -> None:
        """Makes the next look read these again: they had ended, but could not be archived."""
        for session in sessions:
            ended = self._ended.pop(session, None)
            if ended is not None:
                self._recent[session] = ended.at_ms

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

    def _note_new(self, sessions: Iterable[str], now_ms: int) -> None:
        for session in sessions:
            if (
                session not in self._ended
                and session not in self._recent
                and self.known < self.most_known
            ):
                self._recent[session] = now_ms

    def _must_ask(self, session: str, before_ms: int) -> bool:
        """Whether it has to be read."""
        if session in self._ended:
            return False
        at_ms = self._recent.get(session)
        return at_ms is None or at_ms < before_ms

    async def _ask(
        self, some: Sequence[tuple[Shard, str]], before_ms: int
    ) -> list[tuple[Shard, EndedSession]]:
        """The ended ones among them, read in one exchange."""
        asked = [
            (shard, command) for shard, session in some for command in _ask_one(shard, session)
        ]
        replies = await self.nodes.query_each_in_background(asked)
        over = list[tuple[Shard, EndedSession]]()
        for (shard, session), head, holds in zip(some, replies[::2], replies[1::2], strict=True):
            at, size, record = as_sparse_list(head)
            if at is None:
                continue
            one = EndedSession(session, parse_ms(at.decode()), as_int(size))
            self._recent.pop(session, None)
            # A home session never ends, whatever else its owner has.
            may_leave = not as_int(holds) and not is_home(session, record or b"")
            if one.at_ms >= before_ms:
                self._note(self._recent, session, one.at_ms)
            elif one.bytes <= _MOST_BYTES:
                if may_leave:
                    over.append((shard, one))
                    self._note(self._ended, session, one)
                else:
                    self._note(self._recent, session, one.at_ms)
        return over

    def _note(self, known: dict[str, T], session: str, what: T) -> None:
        if self.known < self.most_known:
            known[session] = what

    @property
    def known(self) -> int:
        """The number of remembered sessions, at most ``most_known``."""
        return len(self._recent) + len(self._ended)


def _ask_one(shard: Shard, session: str) -> tuple[bytes, bytes]:
    """Commands for its head and record, and the number of keys each of which keeps it in the engine."""
    grants, rules = (keys.entity_in(shard, EntityRef(kind, session)) for kind in _WITH_HOME)
    still_open, head = keys.session_open(shard, session), keys.session_head(shard, session)
    return (
        pack_words(("HMGET", head, "at", "bytes", "s")),
        pack_words(("EXISTS", still_open, grants, rules)),
    )
