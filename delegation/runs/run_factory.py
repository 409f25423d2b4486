"""Builds runs from what was just stored, or from what is stored."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from passerelle.core.batch import EntityKind, EntityRef
from passerelle.core.errors import NotFound, StoreUnavailable
from passerelle.core.ids import TaskId, parse_facade
from passerelle.core.task.record import TaskRecord
from passerelle.delegation.runs.active_run import ActiveRun, DriverDeps
from passerelle.delegation.runs.callbacks import CallbackOffer
from passerelle.delegation.runs.draft import RunContext, find_action
from passerelle.delegation.runs.questions import open_questions
from passerelle.delegation.runs.run import Run
from passerelle.runtime.records.references import list_standing
from passerelle.runtime.records.writes import Unread

if TYPE_CHECKING:
    from collections.abc import Callable

    from passerelle.core.batch import Incarnation
    from passerelle.core.decision import Held
    from passerelle.core.facts import NamedArtifact
    from passerelle.core.ids import Shard
    from passerelle.core.peer import Peer
    from passerelle.core.ports.blobs import Blobs, Uploads
    from passerelle.core.ports.projections import IndexRow, Projections
    from passerelle.delegation.runs.callbacks import Callbacks
    from passerelle.delegation.runs.open_text import OpenTexts
    from passerelle.delegation.runs.peer_profile import PeerTerms
    from passerelle.permission_bridge.rules import Policy
    from passerelle.runtime.limits.costs import RunBill, Spending
    from passerelle.runtime.records.contents import Contents
    from passerelle.runtime.records.writes import Writes

_CHANCE_BITS: Final = 32
_CHANCES: Final = 1 << _CHANCE_BITS


@dataclass(slots=True, repr=False)
class RunFactory:
    """Builds runs; it drives nothing."""

    deps: DriverDeps
    writes: Writes
    blobs: Blobs
    copies: Blobs
    uploads: Uploads
    contents: Contents
    projections: Projections
    find_terms: Callable[[str], PeerTerms]
    find_rules: Callable[[], Policy]
    open_text: OpenTexts
    spending: Spending
    callbacks: Callbacks | None
    store_pause_s: float
    on_loss: Callable[[Run], None]
    """Called with a run of which the store has lost a part."""

    def make(
        self,
        peer: Peer,
        context: RunContext,
        held: dict[EntityRef, Held] | Unread,
        driver: Incarnation | None,
    ) -> ActiveRun:
        run, terms = self.make_run(context, held, driver), self.find_terms(peer.name)
        return ActiveRun(
            run,
            peer,
            self.deps,
            terms.timeouts,
            make_key(run.record) if terms.correlates else None,
            CallbackOffer(self.callbacks, peer) if self.callbacks else None,
        )

    def make_run(
        self,
        context: RunContext,
        held: dict[EntityRef, Held] | Unread,
        driver: Incarnation | None,
    ) -> Run:
        run = Run(
            self.writes,
            self.blobs,
            self.copies,
            self.uploads,
            self.contents,
            context,
            context.shard,
            held if isinstance(held, Unread) else _list_own(context, held),
            driver,
            open_questions,
            self.projections.post_index,
            self.list_row,
            self._settle,
            self.open_text.add_chunks,
            self.on_loss,
            self.store_pause_s,
            context.content,
            context.answer,
        )
        run.epoch = self.writes.log.shard_epoch(context.shard)
        return run

    def make_context(
        self, task: EntityRef, shard: Shard, thread: EntityRef, peer: str, context_id: str
    ) -> RunContext:
        terms = self.find_terms(peer)
        # Positional, here and below: this many keyword arguments cost as much as everything else.
        return RunContext(
            task,
            shard,
            thread,
            peer,
            context_id,
            lambda prefix: self.writes.ids.mint(prefix, shard),
            terms.tags,
            self.find_rules,
            {},
            terms.always_task,
            self.deps.outputs.fetcher is not None,
            self.deps.outputs.redaction,
            self.spending.find_price(peer),
            self._draw_chance,
            # Literals, since ``list[JsonObject]()`` costs seven times as much.
            [],
            {},
            limits=terms.limits,
        )

    async def restore_run(self, task_id: str) -> tuple[RunContext, dict[EntityRef, Held]]:
        """Restores what a driver knew of a stored run, with its entities.

        Raises:
            NotFound: there is no such task.
        """
        task = EntityRef(EntityKind.TASK, task_id)
        record = (await self.writes.load_one(task)).record
        if not isinstance(record, TaskRecord):
            raise NotFound("task", task_id)
        context, refs = await self.restore_context(task, record)
        return context, await self.writes.load(refs)

    async def restore_context(
        self, task: EntityRef, record: TaskRecord
    ) -> tuple[RunContext, list[EntityRef]]:
        """Restores what a driver knew of a run, and the references of what it held."""
        thread = EntityRef(EntityKind.THREAD, record.thread_id or "")
        agent, context_id = record.peer or "", record.scope.context_id
        context = self.make_context(task, task.shard, thread, agent, context_id)
        content = await self.contents.fold_task(record)
        context.content, context.accepted = content.task, list(content.accepted)
        context.moves = content.moves
        context.catalogue.update(content.catalogue)
        context.standing = await self._recall_standing(record)
        # Pending answers, and the other questions of their pause, are among the opened ones.
        actions = dict.fromkeys([*record.open_actions, *record.occurrences.values()])
        if record.coverage is not None and record.coverage.review is not None:
            actions[record.coverage.review] = None
        return context, [task, thread, *map(find_action, actions)]

    async def _recall_standing(self, record: TaskRecord) -> dict[str, NamedArtifact]:
        """The artifacts of the tasks that this one refers to; without references it costs no read."""
        named = [edge.target for edge in record.relationships if edge.kind == "source_task"]
        # A task that was rerun names an earlier exposure of itself.
        sources = {parsed[0] for one in named if (parsed := parse_facade(one)) is not None}
        sources.discard(TaskId(record.task_id))
        if not sources:
            return {}
        return list_standing((await self.writes.read_all(TaskRecord, sorted(sources))).values())

    def _draw_chance(self) -> float:
        return self.writes.ids.draw(_CHANCE_BITS) / _CHANCES

    def _settle(self, record: TaskRecord, bill: RunBill) -> None:
        self.spending.settle(record.scope.principal, record.owner, bill)

    async def list_row(self, row: IndexRow) -> None:
        """Writes a task into its owner's list at once; the relay writes it in any case."""
        try:
            await self.projections.index_now(row)
        except StoreUnavailable as error:
            self.deps.log.info("index.late", facade=row.facade, reason=error.reason)


def make_key(record: TaskRecord) -> str:
    """The key in messages of the live run for an agent with ``correlates``; it reveals nothing."""
    return hashlib.sha256(record.attempts[-1].run_id.encode()).hexdigest()[:32]


def _list_own(context: RunContext, held: dict[EntityRef, Held]) -> dict[EntityRef, Held]:
    """The entities that a run compares with each append, without the session, which others write."""
    wanted = {context.task, context.thread}
    return {ref: one for ref, one in held.items() if ref in wanted or ref.kind is EntityKind.ACTION}
