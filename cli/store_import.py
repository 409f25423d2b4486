"""``passerelle store import``: writes the sessions of an export into this store, with the same ids and bytes."""

from __future__ import annotations

from collections import defaultdict
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, assert_never

from passerelle.core.errors import InvalidInput
from passerelle.core.ids import Shard, shard_of
from passerelle.core.wire.display import format_count
from passerelle.delegation.verification.repair import repair_session
from passerelle.gateway.settings.values import read_memory_terms
from passerelle.gateway.store_setup import find_archive_obstacle, reach_store
from passerelle.store.archive.archiver import MOST_AT_ONCE, join_parts, split_into_segments
from passerelle.store.archive.ended_sessions import EndedSession
from passerelle.store.archive.ended_tasks import list_tasks
from passerelle.store.exports.checked_export import (
    check_export,
    list_parts,
    read_session,
    read_whole,
)
from passerelle.store.exports.form import read_hold
from passerelle.store.exports.member_file import MemberFile
from passerelle.store.exports.session_source import read_field, read_time

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from passerelle.gateway.settings.model import Settings
    from passerelle.store.archive.frame import SessionFrame
    from passerelle.store.archive.terms import MemoryTerms
    from passerelle.store.exports.form import ExportPart
    from passerelle.store.exports.importer import ImportOutcome
    from passerelle.store.exports.member_file import ExportMember
    from passerelle.store.store import Store

_WHY: Final[dict[ImportOutcome, str]] = {
    "differs": "exists here with other bytes",
    "forgotten": "was deleted here, alone or with its owner",
}


@dataclass(slots=True)
class ImportReport:
    """The result for each session and hold."""

    counts: dict[ImportOutcome, int] = field(default_factory=lambda: defaultdict(int))
    content: int = 0
    archived: int = 0
    left_alone: list[str] = field(default_factory=list[str])

    @property
    def lines(self) -> Iterator[str]:
        """Returns the report as lines."""
        there = self.counts["there"]
        was = "was" if there == 1 else "were"
        yield (
            f"imported: {format_count(self.counts['imported'], 'session')}, {self.archived:,} of them straight into "
            f"the archive, and {format_count(self.content, 'content')}; "
            f"{format_count(there, 'session')} {was} already here"
        )
        yield from self.left_alone


async def run_import(settings: Settings, file: Path) -> ImportReport:
    """Imports a file, also while a gateway runs. Repeating an import is safe.

    The whole file is checked before anything is written.

    Raises:
        InvalidInput: the file is missing, truncated, damaged, or from a newer version; the member is named.
        EngineFailed, StoreUnavailable: the store cannot be opened or written; the next import resumes.
    """
    with ExitStack() as stack:
        try:
            members = MemberFile(stack.enter_context(file.open("rb")))
            check_export(members)
        except OSError as error:
            raise InvalidInput("file", f"{file}: {error.strerror or error}") from None
        async with reach_store(settings, may_be_new=True) as store:
            return await _Import(store, settings, members).run()


@dataclass(slots=True)
class _Import:
    """The import of one file."""

    store: Store
    settings: Settings
    members: MemberFile
    report: ImportReport = field(default_factory=ImportReport)
    terms: MemoryTerms = field(init=False)
    _owners: set[str] = field(default_factory=set[str])
    _shards: set[Shard] = field(default_factory=set["Shard"])
    _leaving: dict[Shard, list[EndedSession]] = field(default_factory=lambda: defaultdict(list))

    def __post_init__(self) -> None:
        self.terms = read_memory_terms(self.settings)

    async def run(self) -> ImportReport:
        began_ms = self.store.clock.now_ms()
        may_archive = (
            self.terms.shortest_ms is not None
            and await find_archive_obstacle(self.settings, self.store) is None
        )
        for part, member in list_parts(self.members):
            await self._put(part, member)
            if may_archive and sum(map(len, self._leaving.values())) >= MOST_AT_ONCE:
                await self._archive()
        if may_archive:
            await self._archive()
        # a deletion that ran during the import may have missed data written after its last scan: run it again
        shards = {shard_of(owner) for owner in self._owners}
        await self.store.forgetting.resume(shards, began_ms)
        await self.store.session_forgetting.resume(self._shards, began_ms)
        return self.report

    async def _put(self, part: ExportPart, member: ExportMember) -> None:
        match part.kind:
            case "holds":
                hold = read_hold(member.name, read_whole(self.members, member))
                if not await self.store.importer.tombstones.hold(part.id, hold):
                    self.report.left_alone.append(f"not held: {part.id} is being forgotten")
            case "content" | "copies":
                await self.store.importer.put_content(part, self.members.read_pieces(member))
                self.report.content += 1
            case "sessions":
                await self._put_session(read_session(self.members, part, member))
            case _:
                assert_never(part.kind)

    async def _put_session(self, frame: SessionFrame) -> None:
        owner = frame.find_owner() or ""
        self._shards.add(shard_of(frame.session))
        outcome = await self.store.importer.put_session(frame)
        self.report.counts[outcome] += 1
        match outcome:
            case "imported":
                # lists and inboxes are in other shards: rebuild them from the facts, as after a loss
                await repair_session(self.store, frame.session, has_lost=True)
                size = int(read_field(frame, "bytes") or 0)
                one = EndedSession(frame.session, read_time(frame), size)
                if self._is_over(frame, one):
                    self._leaving[shard_of(frame.session)].append(one)
                self._owners.add(owner)
            case "there":
                # an earlier import may have been killed before it wrote the lists
                await repair_session(self.store, frame.session)
                self._owners.add(owner)
            case "differs" | "forgotten":
                self.report.left_alone.append(
                    f"left alone: {frame.session} of {owner} {_WHY[outcome]}"
                )
            case _:
                assert_never(outcome)

    def _is_over(self, frame: SessionFrame, one: EndedSession) -> bool:
        agents = [agent for task in list_tasks(frame) for agent in task.agents or ("",)]
        keep_ms = self.terms.find_keep_ms(agents)
        return keep_ms is not None and one.at_ms < self.store.clock.now_ms() - keep_ms

    async def _archive(self) -> None:
        """Archives sessions older than the retention in memory at once, since they may exceed the memory."""
        leaving, self._leaving = self._leaving, defaultdict(list)
        parts = [
            (shard, part)
            for shard, sessions in leaving.items()
            for part in split_into_segments(sessions)
        ]
        for together in join_parts(parts):
            left = await self.store.archiver.archive_together(together)
            self.report.archived += len(left.sessions)
