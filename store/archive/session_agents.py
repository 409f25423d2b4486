"""The agents of the tasks of sessions, read from the records in the engine.

The whole session is read, because its task list has only tasks that callers saw. That is done once after each end of a
session, and only if its time to be archived depends on it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from passerelle.core.batch import EntityKind
from passerelle.core.ports.log import StreamKind, StreamRef
from passerelle.store import keys
from passerelle.store.archive.archiver import split_into_segments
from passerelle.store.archive.ended_tasks import read_task
from passerelle.store.archive.frame import list_entities
from passerelle.store.connection import pack
from passerelle.store.replies import as_bytes
from passerelle.store.stream_entries import as_entry_rows

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from passerelle.core.batch import EntityRef
    from passerelle.core.ids import Shard
    from passerelle.store.archive.ended_sessions import EndedSession
    from passerelle.store.connection import RespValue
    from passerelle.store.nodes import Nodes

MOST_REMEMBERED: Final = 20_000
"""Sessions, about 250 bytes each; the others are read at each look."""


@dataclass(slots=True)
class SessionAgents:
    """Finds agents; at most ``most`` sessions are remembered between looks."""

    nodes: Nodes
    most: int = MOST_REMEMBERED
    _known: dict[str, tuple[int, frozenset[str]]] = field(
        default_factory=dict[str, tuple[int, frozenset[str]]], init=False
    )
    """With the time of the last event: any later change of a record has an event of its own."""

    async def find(
        self, sessions: Mapping[Shard, Sequence[EndedSession]]
    ) -> dict[str, frozenset[str]]:
        """The agents of each session. Sessions that were only requested in earlier looks are dropped from the cache.

        A task whose record names no agent counts as one of the agent "", and so does a damaged one.

        Raises:
            StoreUnavailable: a node does not answer.
        """
        found = dict[str, frozenset[str]]()
        remembered = dict[str, tuple[int, frozenset[str]]]()
        for shard, asked in sessions.items():
            new = list["EndedSession"]()
            for one in asked:
                at_ms, agents = self._known.get(one.session, (None, frozenset[str]()))
                if at_ms == one.at_ms:
                    found[one.session] = agents
                else:
                    new.append(one)
            for part in split_into_segments(new):
                found |= await self._read(shard, [one.session for one in part])
            for one in asked:
                if len(remembered) < self.most:
                    remembered[one.session] = one.at_ms, found[one.session]
        self._known = remembered
        return found

    @property
    def known(self) -> int:
        """The number of remembered sessions."""
        return len(self._known)

    async def _read(self, shard: Shard, sessions: Sequence[str]) -> dict[str, frozenset[str]]:
        streams = [keys.entries(StreamRef(StreamKind.SESSION, one)) for one in sessions]
        read = (pack("XRANGE", stream, "-", "+") for stream in streams)
        replies = await self.nodes.query_in_background(shard, *read)
        named = [
            (session, ref)
            for session, entries in zip(sessions, replies, strict=True)
            for ref in _list_tasks(session, entries)
            if ref.shard == shard
        ]
        found = {session: set[str]() for session in sessions}
        if named:
            asked = (pack("HGET", keys.entity(ref), "s") for _, ref in named)
            records = await self.nodes.query_in_background(shard, *asked)
            for (session, _), record in zip(named, records, strict=True):
                snapshot = as_bytes(record) or b""
                # Events of a session may name a task of another one: the snapshot has its session.
                if session.encode() in snapshot:
                    found[session] |= read_task(snapshot).agents or {""}
        return {session: frozenset(agents) for session, agents in found.items()}


def _list_tasks(session: str, entries: RespValue) -> list[EntityRef]:
    try:
        refs = list_entities(session, as_entry_rows(entries))
    except (LookupError, ValueError):
        return []
    return [ref for ref in refs if ref.kind is EntityKind.TASK]
