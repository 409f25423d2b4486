"""The state of one run in its driver: the entities it holds, and the appends it makes under its fence.

A driver holds what it wrote, so it reads nothing between two frames. A conflict means that a command came in
between (an answer, a cancel): the entities are read again and the same frames decided again.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from passerelle.a2a_mapping.content import fold, settle_status
from passerelle.a2a_mapping.history import complete_history
from passerelle.core.batch import (
    Again,
    Appended,
    EntityKind,
    EntityRef,
    Fenced,
    Incarnation,
    Unclaimed,
)
from passerelle.core.errors import StoreUnavailable, WriteConflict
from passerelle.core.index_changes import make_row
from passerelle.core.task.record import KEPT_ARTIFACTS, TaskRecord
from passerelle.core.task.status import HELD, UNDRIVEN, WAITING, Status
from passerelle.delegation.runs.conclusion import complete_terms, is_waited_for, keep_content
from passerelle.delegation.runs.draft import DecisionDraft, OpenedQuestions, RunContext, find_action
from passerelle.delegation.runs.lost_tail import has_lost_tail, may_go_on
from passerelle.protocol.concurrency import FairLock
from passerelle.runtime.records.blob_overflow import BlobOverflow
from passerelle.runtime.records.task_fields import (
    ContentReads,
)
from passerelle.runtime.records.writes import MAX_TRIES, AppendOptions, Unread, Written

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from passerelle.core.batch import PackedBatch
    from passerelle.core.decision import Held
    from passerelle.core.ids import Shard
    from passerelle.core.payloads.run import RunStatus
    from passerelle.core.ports.blobs import Blobs, Uploads
    from passerelle.core.ports.projections import IndexRow
    from passerelle.core.wire.json import JsonObject
    from passerelle.delegation.runs.peer_profile import SeenBehaviour
    from passerelle.delegation.runs.templates import AnswerTemplate, TemplatedAnswer, TemplatedTurn
    from passerelle.runtime.limits.costs import RunBill
    from passerelle.runtime.records.task_fields import TurnInput
    from passerelle.runtime.records.writes import Outdated, WriteRefusal, Writes

T = TypeVar("T")
WAY_S: Final = 0.25
"""Enough for a read and an append of another instance, and a retry."""


class RunMovedError(Exception):
    """Another instance owns the run now: nothing in progress here takes effect any more."""


@dataclass(eq=False)
class Run:
    """One run as its driver holds it. It has no slots: defaults that few runs change are in the class.

    Each append wakes those who wait for a change, and so does the end of its driver. Before each wait they check
    whether the run has ended or moved, with no await in between.
    """

    writes: Writes
    blobs: Blobs
    copies: Blobs
    """Files that the peer named by address."""
    uploads: Uploads
    """Files that it uploaded before it named them."""
    contents: ContentReads
    context: RunContext
    shard: Shard
    """The shard of the task."""
    kept: dict[EntityRef, Held] | Unread
    driver: Incarnation | None
    """The incarnation in the field ``own`` of the task: the fence of every append. None: without a driver now."""
    asks: Callable[[DecisionDraft, JsonObject, RunStatus], OpenedQuestions]
    post_row: Callable[[IndexRow, float], Awaitable[bool]]
    """Sends an owner-index row concurrently with an append; the row may wait this many seconds for a shared exchange.

    The result is whether it was written.
    """
    list_row: Callable[[IndexRow], Awaitable[None]]
    """Writes a row that was not sent; the relay writes the same row, so a failure loses nothing."""
    on_bill: Callable[[TaskRecord, RunBill], None] = lambda _record, _bill: None
    """Called with the cost of a run once it is stored."""
    on_text: Callable[[DecisionDraft], None] = lambda _draft: None
    """Called with text once, before it is stored."""
    on_loss: Callable[[Run], None] = lambda _run: None
    """Called when data that was acknowledged to this run is not stored any more."""
    store_pause_s: float = 0.5
    """Pause before a retry of an append of unknown outcome."""
    content: JsonObject | None = None
    """The Task as callers may see it: no further than what is stored (I1)."""
    answer: JsonObject | None = None
    """The Message that is the answer, once it is stored (I1)."""
    templated: TemplatedTurn | None = field(default=None, init=False)
    """How its turn was rendered, as long as nothing was stored since."""
    rendered: TemplatedAnswer | None = field(default=None, init=False)
    """The stored end of a templated turn, as shown to callers."""
    seen: SeenBehaviour | None = field(default=None, init=False)
    """The behaviour of the peer that it shows."""
    moved: bool = field(default=False, init=False)
    epoch: int = field(default=0, init=False)
    """Of the shard, at the last write or read here."""
    has_all: bool = field(default=False, init=False)
    """Whether the peer's answer comes, or came, in one piece, which repeats anything lost from the record."""
    last: tuple[int, str] | None = field(default=None, init=False)
    """Sequence and chain of the last event that was stored here."""
    line: FairLock = field(default_factory=FairLock, init=False)
    """Held during each append and read, also by commands that lost to the driver."""
    is_yielding: bool = field(default=False, init=False)
    """Whether the line is held for another instance, or waited for."""
    _turn: tuple[str, TurnInput] | None = field(default=None, init=False)
    """The last turn that was stored here, with its message to the task."""
    _listeners: dict[Callable[[], None], None] | None = field(default=None, init=False)
    """Callbacks for the next change; most runs have one, or none."""

    @property
    def held(self) -> dict[EntityRef, Held]:
        """The entities as last stored."""
        if isinstance(self.kept, Unread):
            self.kept = self.kept.read()
        return self.kept

    @held.setter
    def held(self, held: dict[EntityRef, Held]) -> None:
        self.kept, self.templated = held, None

    @property
    def record(self) -> TaskRecord:
        """The task as last stored."""
        record = self.held[self.context.task].record
        if not isinstance(record, TaskRecord):
            message = f"no task {self.context.task.id}"
            raise TypeError(message)
        return record

    def recall_waiting(self) -> dict[EntityRef, Held]:
        """The task, its thread and its open questions as last stored, if it waits; else nothing."""
        if self.moved or self.templated is not None or self.rendered is not None:
            return {}
        own = (self.context.task, self.context.thread)
        refs = (*own, *map(find_action, self.record.open_actions))
        waits = self.is_parked() and all(ref in self.held for ref in refs)
        return {ref: self.held[ref] for ref in refs} if waits else {}

    async def read_turn(self, turn_id: str) -> TurnInput | None:
        """A further turn of the task."""
        if self._turn is not None and self._turn[0] == turn_id:
            return self._turn[1]
        return await self.contents.read_turn(self.record, turn_id)

    def has_ended(self) -> bool:
        """Whether nothing is left to drive: the task has ended, or another attempt at it is pending."""
        if self.templated is not None or self.rendered is not None:
            return self.templated is None
        return self.record.status in UNDRIVEN

    def is_gated(self) -> bool:
        """Whether policy has to allow its message first."""
        if self.templated is not None:
            return self.templated.is_gated()
        run = self.record.run
        return run is not None and run.gated

    def is_streamed(self) -> bool:
        """Whether the run is sent as a stream."""
        if self.templated is not None:
            return self.templated.template.mechanism == "streaming"
        run = self.record.run
        return run is not None and run.delivery_mechanism == "streaming"

    def is_parked(self) -> bool:
        """Whether the task waits for someone else to act."""
        return self.record.status in WAITING

    def is_held(self) -> bool:
        """Whether nothing may be sent for the task: it is paused or blocked."""
        return self.record.status in HELD

    async def append(
        self,
        body: Callable[[DecisionDraft], None],
        terms: Callable[[DecisionDraft], AppendOptions] | None = None,
    ) -> Written:
        """Decides with ``body`` and appends under the fence, one at a time; again after a conflict.

        Raises:
            RunMovedError: the fence does not hold any more; nothing was written.
            StoreUnavailable: nothing is known to be written.
        """
        await self.line.acquire()
        try:
            if self.moved:
                raise RunMovedError
            return await self._append(body, terms)
        finally:
            # What was not stored was not seen: the same frames are decided again, from the stored state.
            self.context.content, self.context.answer = self.content, self.answer
            self.line.release()

    async def _append(
        self,
        body: Callable[[DecisionDraft], None],
        terms: Callable[[DecisionDraft], AppendOptions] | None,
    ) -> Written:
        for tries in range(MAX_TRIES):
            drafted = self.draft(body, terms)
            if drafted is None:
                return Written(self.held, 0, 0, self.writes.clock.now_ms())
            draft, agreed = drafted
            if draft.chunks and tries == 0:
                self.on_text(draft)
            for blob in draft.spill.blobs:
                await self.blobs.put(self.shard, blob)
            for long in draft.spill.long:
                await self.blobs.put_pieces(self.shard, long.sha256, long.write())
            outcome = await self._commit(draft, agreed)
            if isinstance(outcome, Written):
                self._settle(outcome)
                self._keep_place(draft)
                if draft.bill is not None:
                    self.on_bill(self.record, draft.bill)
                if draft.decision.events and outcome.first == 0:
                    # The append was stored at an earlier try; a later write may have followed.
                    await self._refold()
                return outcome
            await self.writes.ask_to_yield(self.held)
            await self.writes.pause_before_retry(tries)
            await self._recover(outcome)
        raise WriteConflict("the task was changed by others again and again")

    def draft(
        self,
        body: Callable[[DecisionDraft], None],
        terms: Callable[[DecisionDraft], AppendOptions] | None = None,
    ) -> tuple[DecisionDraft, AppendOptions] | None:
        """Decides, and stores nothing yet. None if there is nothing to store."""
        self.context.content, self.context.answer = self.content, self.answer
        draft = DecisionDraft(
            self.writes.begin(self.record.session_id, self.held),
            self.context,
            BlobOverflow(),
            self.asks,
        )
        body(draft)
        if not draft.decision.events and terms is None:
            return None
        keep_content(draft, self.record)
        asked = terms(draft) if terms else AppendOptions()
        return draft, complete_terms(draft, asked, self.record, self.held, self.driver)

    async def append_rendered(
        self,
        turn: TemplatedTurn,
        template: AnswerTemplate,
        packed: PackedBatch,
        answer: TemplatedAnswer,
        row: IndexRow | None,
    ) -> bool:
        """Appends the end of a templated turn; False where it is not stored, and its answer has to be observed.

        ``row`` is the row of its owner's list.

        Raises:
            RunMovedError: another instance owns the run; nothing was written.
        """
        await self.line.acquire()
        try:
            if self.moved:
                raise RunMovedError
            if self.templated is not turn:
                return False
            writing = self.writes.append(packed, feed=template.feed, pause_s=self.store_pause_s)
            if row is None:
                outcome = await writing
            else:
                outcome = await self._append_and_list(row, writing, packed.within_s)
            if isinstance(outcome, Appended):
                refs = (self.context.task, self.context.thread)
                self.kept, self.templated = (
                    Unread(self.writes.log, packed, outcome.first, refs),
                    None,
                )
                if isinstance(task := answer.frame.get("task"), dict):
                    self.content = self.context.content = task
                elif isinstance(message := answer.frame.get("message"), dict):
                    self.answer = self.context.answer = message
                # Its driver is done with it, and notifies the listeners.
                self.rendered, self.seen = answer, template.seen
                return True
            if isinstance(outcome, Again):
                await self._reload()
            else:
                await self._recover(outcome)
            return self.has_ended()
        except StoreUnavailable:
            # The caller observes the answer, and waits for the store there.
            return False
        finally:
            self.line.release()

    async def wait_for_change(self) -> None:
        """Waits until the next append, or until the driver is done with the run."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        wake = partial(_wake, waiter)
        self.listen(wake)
        try:
            await waiter
        finally:
            # Waiters may come and go for as long as a task lasts.
            self.forget(wake)

    def listen(self, changed: Callable[[], None]) -> None:
        """Calls ``changed`` once, after the next append or when the driver is done with the run. It must not raise."""
        if self._listeners is None:
            self._listeners = {}
        self._listeners[changed] = None

    def forget(self, changed: Callable[[], None]) -> None:
        """Stops calling it."""
        if self._listeners is not None:
            self._listeners.pop(changed, None)

    def notify_changed(self) -> None:
        """Calls the listeners for a change."""
        listeners, self._listeners = self._listeners, None
        for changed in listeners or ():
            changed()

    async def _commit(
        self, draft: DecisionDraft, terms: AppendOptions
    ) -> Written | Outdated | WriteRefusal:
        """Appends. A task that callers see from now on is in their list before they have their answer (LT-7)."""
        record = draft.record
        writing = self.writes.commit_until_known(
            draft.decision, self.held, terms, self.store_pause_s
        )
        is_listed = self.record.shown and self.record.exposure == record.exposure
        if is_listed or not record.shown:
            return await writing
        return await self._append_and_list(make_row(record), writing)

    async def _append_and_list(
        self, row: IndexRow, writing: Awaitable[T], within_s: float = 0.0
    ) -> T:
        posted = self.post_row(row, within_s)
        try:
            return await writing
        finally:
            if not await posted:
                await self.list_row(row)

    def _settle(self, written: Written) -> None:
        self.held = written.held
        self.epoch = self.writes.log.shard_epoch(self.shard)
        if written.chain:
            self.last = (written.last, written.chain)
        self.content, self.answer = self.context.content, self.context.answer
        if self.record.status is Status.RETRYING or is_waited_for(self.record):
            self.writes.wake_duties(self.shard)
        self.notify_changed()

    def _keep_place(self, draft: DecisionDraft) -> None:
        if self.context.volume is not None:
            draft.growth.settle()
        self.context.place = draft.place if draft.more else None
        self.context.names_foreign |= draft.names_foreign
        if draft.catalogued and self.record.artifact_count > KEPT_ARTIFACTS:
            self.context.catalogue.update(draft.catalogued)

    async def _recover(self, outcome: Outdated | WriteRefusal) -> None:
        if isinstance(outcome, Fenced):
            self.moved = True
            self.notify_changed()
            raise RunMovedError
        await self._reload()
        if self.moved:
            raise RunMovedError
        if isinstance(outcome, Unclaimed):
            raise WriteConflict("the due row was settled, or claimed by another process")

    async def learn(self, news: Sequence[Written]) -> bool:
        """Applies what others have stored for this run, in order; False where it does not follow what is held."""
        await self.line.acquire()
        try:
            return all(map(self._follow, news))
        finally:
            self.line.release()

    def _follow(self, news: Written) -> bool:
        held = self.held
        own = (self.context.task, self.context.thread)
        wanted = {ref for ref in news.held if ref in own or ref.kind is EntityKind.ACTION}
        fresh = {ref: news.held[ref] for ref in wanted if _moves(held.get(ref), news.held[ref])}
        if not fresh:
            return True
        before, after = self.record, news.held.get(self.context.task)
        record = after.record if after else None
        if not all(ref in held and _is_next(held[ref], one) for ref, one in fresh.items()):
            return False
        if isinstance(record, TaskRecord) and self.context.task in fresh:
            messages = () if news.turn is None else (news.turn[1].message,)
            if self.content is None or record.inputs[: len(before.inputs)] != before.inputs:
                return False
            if len(record.inputs) != len(before.inputs) + len(messages):
                return False  # another message has its place in what callers see
            if (record.shown_to != before.shown_to) != bool(news.frames):
                return False
            known = self.content
            if messages:
                self.context.accepted = [*self.context.accepted, *messages]
                known = complete_history(settle_status(known), self.context.accepted)
            content: JsonObject | None = known
            for frame in news.frames:
                shown = fold(content, frame)
                content = complete_history(shown, self.context.accepted) if shown else shown
            self.content, self._turn = content, news.turn
            self.context.content = content
        self.held = {**held, **fresh}
        self.notify_changed()
        return True

    async def yield_line(self) -> None:
        """Appends nothing for a moment, so that another instance, which reads before it decides, gets its turn."""
        if self.is_yielding:
            return
        self.is_yielding = True
        await self.line.acquire()
        try:
            await asyncio.sleep(WAY_S)
        finally:
            self.is_yielding = False
            self.line.release()

    async def refresh(self) -> None:
        """Reads the entities again after another writer's append."""
        await self.line.acquire()
        try:
            await self._reload()
        finally:
            self.line.release()

    async def is_stored(self) -> bool:
        """Whether the store has everything that was acknowledged here; otherwise the run is reported as lost.

        Raises:
            StoreUnavailable: it cannot be read.
        """
        await self.line.acquire()
        try:
            if not self.moved:
                await self._reload()
            return not self.moved
        finally:
            self.line.release()

    async def _reload(self) -> None:
        before, epoch = self.record, self.writes.log.shard_epoch(self.shard)
        stored = await self.writes.load(self.held)
        if await has_lost_tail(
            self.writes.log, self.held, stored, self.record.session_id, self.last
        ):
            self.on_loss(self)
            if not (self.has_all and may_go_on(stored[self.context.task].record)):
                # The driver that adopts the run reads the whole task from its agent.
                self.moved = True
                self.notify_changed()
                return
            self.last = None
        self.held, self.epoch = stored, epoch
        seen = (before.shown_to, before.inputs)
        if (self.record.shown_to, self.record.inputs) != seen:
            await self._refold()
        wanted = [find_action(action) for action in self.record.open_actions]
        missing = [ref for ref in wanted if ref not in self.held]
        if missing:
            self.held |= await self.writes.load(missing)
        self.notify_changed()

    async def _refold(self) -> None:
        """Folds the content from what is stored, after another writer has added to it."""
        if self.context.content is None:
            return
        content = await self.contents.fold_task(self.record)
        self.context.volume = None
        self.context.content, self.context.accepted = content.task, list(content.accepted)
        self.context.catalogue.update(content.catalogue)
        self.content = self.context.content


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


def _moves(held: Held | None, news: Held) -> bool:
    """Whether ``news`` is newer than what is held."""
    return held is None or news.stamp.version > held.stamp.version


def _is_next(held: Held, news: Held) -> bool:
    """Whether nothing was stored between what is held and ``news``."""
    return news.stamp.version == held.stamp.version + 1
