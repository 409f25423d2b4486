"""Sessions that are over, found by SCAN.

What tells them (nothing open, the time of the last event) stands in what they have anyway: no append pays for it, and
nothing can be forgotten. The first look at a shard asks each session. One that a later look meets for the first time
has an event since the look before: it is asked when this look is old enough. Of one that was asked, the time of its
last event can only have grown: it is asked again when that is old enough, at each look while something is open in it,
and no more once it was found over.
What is known here saves questions and decides nothing: whoever takes a session out of the engine compares all of it.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from passerelle.core.batch import EntityKind, EntityRef
from passerelle.core.ids import Shard
from passerelle.core.wire.times import parse_ms
from passerelle.store import keys
from passerelle.store.archive.frame import MOST_PLAIN_BYTES
from passerelle.store.archive.home_session import is_home
from passerelle.store.connection import pack_words
from passerelle.store.key_scan import scan_keys
from passerelle.store.replies import as_int, as_sparse_list

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from passerelle.store.nodes import Nodes

T = TypeVar("T")

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
    """The time of the last event of those that were not over, or of the look that met them first."""
    _looked: set[Shard] = field(default_factory=set["Shard"], init=False)
    """The shards of which everything was met in the last look."""
    _ended: dict[str, EndedSession] = field(default_factory=dict[str, EndedSession], init=False)

    async def find(
        self, shards: Collection[Shard], before_ms: int
    ) -> dict[Shard, list[EndedSession]]:
        """Sessions in which nothing is open and nothing has happened since, by shard, oldest first.

        One that is too long for a frame is left out, and each home session.

        Raises:
            StoreUnavailable: a node does not answer.
        """
        now_ms = {shard: self.nodes.node(shard).time.now_ms() for shard in shards}
        present = await self._scan(shards)
        self._drop_absent(present)
        for shard in self._looked.intersection(shards):
            self._meet(present.get(shard, ()), now_ms[shard])
        found = defaultdict[Shard, list[EndedSession]](list)
        asked = list[tuple[Shard, str]]()
        for shard, sessions in present.items():
            known = [self._ended[one] for one in sessions if one in self._ended]
            found[shard] += [one for one in known if one.at_ms < before_ms]
            asked += [(shard, one) for one in sessions if self._may_be_over(one, before_ms)]
        for first in range(0, len(asked), _ASKED_AT_ONCE):
            for shard, ended in await self._ask(asked[first : first + _ASKED_AT_ONCE], before_ms):
                found[shard].append(ended)
        self._looked = set(shards)
        return {
            shard: sorted(ended, key=lambda one: one.at_ms)
            for shard, ended in found.items()
            if ended
        }

    def forget(self, sessions: Iterable[str]) -> None:
        """Has these asked again: they were over, and yet they could not leave."""
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

    def _meet(self, sessions: Iterable[str], now_ms: int) -> None:
        for session in sessions:
            if (
                session not in self._ended
                and session not in self._recent
                and self.known < self.most_known
            ):
                self._recent[session] = now_ms

    def _may_be_over(self, session: str, before_ms: int) -> bool:
        """Whether it has to be asked."""
        if session in self._ended:
            return False
        at_ms = self._recent.get(session)
        return at_ms is None or at_ms < before_ms

    async def _ask(
        self, some: Sequence[tuple[Shard, str]], before_ms: int
    ) -> list[tuple[Shard, EndedSession]]:
        """Those of them that are over. What is asked at once travels together."""
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
            # A home session never ends, whatever its owner has beside it.
            may_send = not as_int(holds) and not is_home(session, record or b"")
            if one.at_ms >= before_ms:
                self._note(self._recent, session, one.at_ms)
            elif one.bytes <= _MOST_BYTES:
                if may_send:
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
        """Sessions of which something is known, at most ``most_known``."""
        return len(self._recent) + len(self._ended)


def _ask_one(shard: Shard, session: str) -> tuple[bytes, bytes]:
    """Its head and record, and how many keys there are of which each keeps it in the engine."""
    grants, rules = (keys.entity_in(shard, EntityRef(kind, session)) for kind in _BESIDE)
    still_open, head = keys.session_open(shard, session), keys.session_head(shard, session)
    return (
        pack_words(("HMGET", head, "at", "bytes", "s")),
        pack_words(("EXISTS", still_open, grants, rules)),
    )
