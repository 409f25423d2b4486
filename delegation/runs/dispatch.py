"""Drives runs: new runs begin here, runs of dead instances are adopted, and nudges reach their driver."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from passerelle.core.back_off import find_pause
from passerelle.core.batch import EntityKind, EntityRef
from passerelle.core.errors import NotFound, PasserelleError
from passerelle.core.ids import read_shard
from passerelle.core.ports.signals import Nudge
from passerelle.core.task.record import TaskRecord
from passerelle.core.task.status import UNDRIVEN, Status
from passerelle.delegation.runs.active_run import ActiveRun, DriverDeps
from passerelle.delegation.runs.active_runs import ActiveRuns, Commands
from passerelle.delegation.runs.content_budget import ContentBudget
from passerelle.delegation.runs.delivery import is_kept_back
from passerelle.delegation.runs.finish import confirm_stop
from passerelle.delegation.runs.follow_strategy import PollThrottle, Timeouts
from passerelle.delegation.runs.loop import drive
from passerelle.delegation.runs.outputs import OutputPolicy
from passerelle.delegation.runs.peer_calls import cancel_task
from passerelle.delegation.runs.read_scheduler import ReadScheduler, name_caller
from passerelle.delegation.runs.run import Run, RunMovedError
from passerelle.delegation.runs.run_factory import RunFactory
from passerelle.protocol.concurrency import cancel_all, keep_until_done
from passerelle.runtime.common.carried import TRACE, restore_extensions
from passerelle.runtime.records.references import NOTHING
from passerelle.runtime.records.task_fields import read_driver

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Mapping

    from structlog.typing import FilteringBoundLogger

    from passerelle.core.batch import Incarnation
    from passerelle.core.decision import Held
    from passerelle.core.ids import Shard
    from passerelle.core.peer import Peer, SendSlot
    from passerelle.core.ports.blobs import Blobs, Uploads
    from passerelle.core.ports.chance import Clock
    from passerelle.core.ports.leases import Replicas
    from passerelle.core.ports.projections import IndexRow, Projections
    from passerelle.core.principal import Principal
    from passerelle.core.wire.json import JsonObject
    from passerelle.delegation.runs.active_runs import Begun
    from passerelle.delegation.runs.callbacks import Callbacks
    from passerelle.delegation.runs.open_text import OpenTexts
    from passerelle.delegation.runs.peer_profile import PeerBehaviour, PeerTerms
    from passerelle.delegation.runs.remote_drivers import InstanceSignals, RemoteDrivers
    from passerelle.delegation.runs.turn_request import OpenedTurn
    from passerelle.permission_bridge.hooks.consultation import PolicyConsultation
    from passerelle.permission_bridge.rules import Policy
    from passerelle.protocol.concurrency import FairLock
    from passerelle.runtime.limits.costs import Spending
    from passerelle.runtime.records.contents import Contents
    from passerelle.runtime.records.references import References, ResolvedReferences
    from passerelle.runtime.records.writes import Writes, Written


_REVIVE_MAX_S: Final = 60.0
_LOOKS: Final = 4
"""How often a task is read whose append may be on its way."""


def _assign_slot(active: ActiveRun, place: SendSlot | None) -> None:
    """Passes a reserved slot to a send that follows at once; a gated run may wait for a person and gives it back."""
    if place is not None and active.run.is_gated():
        place.give_back()
    else:
        active.place = place


@dataclass(slots=True, repr=False)
class Dispatch:
    """Starts runs, finds them, and wakes their drivers."""

    writes: Writes
    blobs: Blobs
    copies: Blobs
    """Files that agents named by address."""
    uploads: Uploads
    """Files that agents uploaded before they named them."""
    contents: Contents
    projections: Projections
    clock: Clock
    log: FilteringBoundLogger
    find_peer: Callable[[str], Peer]
    drives: Callable[[Shard], Incarnation]
    find_sender: Callable[[Shard], Incarnation | None]
    """Our incarnation in a shard; None without enough time on the lease to start something irreversible."""
    find_terms: Callable[[str], PeerTerms]
    """The configuration of an agent."""
    find_rules: Callable[[], Policy]
    behaviour: PeerBehaviour
    references: References
    replicas: Replicas
    open_text: OpenTexts
    """Text of the runs that are driven here, before it is stored."""
    consulting: PolicyConsultation
    """Judges what peers ask: rules, hooks and grants."""
    timeouts: Timeouts
    content_budget: ContentBudget
    outputs: OutputPolicy
    spending: Spending
    callbacks: Callbacks | None
    throttle: PollThrottle = field(default_factory=PollThrottle)
    scheduler: ReadScheduler = field(default_factory=ReadScheduler)
    remote: RemoteDrivers | None = None
    """The instances that agents are linked to; None where no agent dials in."""
    signals: InstanceSignals | None = None
    """Reaches the drivers of other instances."""
    on_loss: Callable[[Shard, int, str], None] = lambda _shard, _epoch, _by: None
    """Called with a shard that has lost acknowledged writes, their epoch, and the reporter."""
    _adopting: set[str] = field(default_factory=set[str])
    _side: set[asyncio.Task[None]] = field(default_factory=set["asyncio.Task[None]"])
    commands: Commands = field(init=False)
    runs: ActiveRuns = field(init=False)
    _factory: RunFactory = field(init=False)

    def __post_init__(self) -> None:
        self.runs = ActiveRuns(self.log)
        self.commands = Commands(self.runs)
        deps = DriverDeps(
            clock=self.clock,
            log=self.log,
            may_send=self._may_send,
            replicas=self.replicas,
            offer=self._offer,
            on_broken=self._revive,
            on_left=self.open_text.close,
            behaviour=self.behaviour,
            references=self.references,
            consulting=self.consulting,
            outputs=self.outputs,
            throttle=self.throttle,
            scheduler=self.scheduler,
            contents=self.content_budget,
        )
        self._factory = RunFactory(
            deps=deps,
            writes=self.writes,
            blobs=self.blobs,
            copies=self.copies,
            uploads=self.uploads,
            contents=self.contents,
            projections=self.projections,
            find_terms=self.find_terms,
            find_rules=self.find_rules,
            open_text=self.open_text,
            spending=self.spending,
            callbacks=self.callbacks,
            store_pause_s=self.timeouts.store_s,
            on_loss=self._find_loss,
        )
        # Runs are made of appends, and appends let runs on other instances go first.
        self.writes.find_writer_lock = self._find_writer_lock
        self.writes.ask_to_yield = self._ask_to_yield

    def connect(
        self,
        remote: RemoteDrivers | None,
        signals: InstanceSignals,
        on_loss: Callable[[Shard, int, str], None],
    ) -> None:
        """Connects this instance, which has its name now, with the others. Called once, before anything is driven."""
        self.remote, self.signals, self.on_loss = remote, signals, on_loss

    def begin(
        self,
        opened: OpenedTurn,
        peer: Peer,
        message: JsonObject,
        params: JsonObject,
        referred: ResolvedReferences = NOTHING,
        sent_at: SendSlot | None = None,
    ) -> Begun:
        """A new run and the coroutine that drives it, not started; ``sent_at`` was reserved for its send."""
        place = opened.place
        context = self._factory.make_context(
            opened.task, place.shard, place.thread, peer.name, place.context_id
        )
        context.accepted.append(message)
        context.content = opened.shown
        context.standing = referred.standing
        active = self._factory.make(peer, context, opened.held, opened.driver)
        active.run.templated = opened.templated
        if sent_at is not None:
            _assign_slot(active, sent_at)
        return active, drive(active, params, referred)

    def start(
        self,
        run: Run,
        peer: Peer,
        driver: Incarnation,
        params: JsonObject,
        referred: ResolvedReferences = NOTHING,
        place: SendSlot | None = None,
    ) -> None:
        """Starts the driver of a further attempt that was just stored; ``place`` was reserved for its send."""
        last = run.record.attempts[-1]
        TRACE.set(last.trace)
        restore_extensions(last.extensions)
        following = self._factory.make(peer, run.context, run.held, driver)
        _assign_slot(following, place)
        begun = "run.retried" if last.ordinal > 1 else "run.begun"
        self.log.info(begun, task=run.record.task_id, peer=peer.name)
        self.runs.start(following, drive(following, params, referred))

    async def _offer(self, agent: str, task_id: str) -> None:
        """Offers a run to the instances linked to its agent; without agents that dial in it does nothing."""
        if self.remote is not None:
            await self.remote.offer(agent, task_id)

    def _may_send(self, run: Run) -> bool:
        """Whether a send of a run may start.

        The time left may belong to a newer lease: when a process stood still, and learns of the loss while the append
        that begins a run is answered, it has a new lease before it has released that run.

        Raises:
            RunMovedError: the incarnation that drives it is over.
        """
        driver, present = run.driver, self.find_sender(run.shard)
        if present is None:
            return False
        if driver is not present and driver is not None and driver.instance == present.instance:
            run.moved = run.moved or driver != present
        if run.moved:
            raise RunMovedError
        return True

    def _find_writer_lock(self, ref: EntityRef) -> FairLock | None:
        active = self.runs.find(ref.id)
        return None if active is None else active.run.line

    async def _ask_to_yield(self, held: Mapping[EntityRef, Held]) -> None:
        for ref in held:
            if self.signals is not None and ref.kind is EntityKind.TASK and not self.find(ref.id):
                await self.signals.send(Nudge(ref.id, gives_way=True), held)

    def _find_loss(self, run: Run) -> None:
        self.on_loss(run.shard, run.epoch, "driver")

    async def adopt(self, task: EntityRef, tries: int = 0, *, has_lost: bool = False) -> None:
        """Adopts a run that was moved to this instance: polls the peer first, then follows it.

        ``has_lost``: events of the peer may be lost, so the whole task is read from it before anything is taken.

        Raises:
            NotFound: the peer is not configured any more; the task stays as it is.
        """
        held = await self.writes.load_one(task)
        record = held.record
        if not isinstance(record, TaskRecord) or record.status in UNDRIVEN or self.find(task.id):
            return
        if record.queued is not None:
            return  # without a run until its turn
        peer = self.find_peer(record.peer or "")
        context, refs = await self._factory.restore_context(task, record)
        own = await self.writes.load(refs)
        active = self._factory.make(peer, context, own, self.drives(task.shard))
        active.tries, active.has_lost = tries, has_lost
        if self.find(task.id) is not None:
            return  # it has just been adopted here
        self.log.info("run.adopted", task=task.id, peer=peer.name)
        # It stays in the trace that it began in, and keeps the extensions that its caller requested.
        last = record.attempts[-1] if record.attempts else None
        TRACE.set(last.trace if last else None)
        restore_extensions(last.extensions if last else ())
        self.runs.start(active, drive(active))

    async def hold(self, task_id: str) -> Run:
        """A run that is not driven here, for one append in place of its driver and under its fence.

        Raises:
            NotFound: there is no such task.
        """
        context, held = await self._factory.restore_run(task_id)
        return self._factory.make_run(context, held, read_driver(held[context.task].fields))

    async def stand_in(self, task_id: str) -> ActiveRun:
        """A run with its agent, for one exchange in place of its driver. It drives nothing.

        Raises:
            NotFound: there is no such task, or its agent is not configured any more.
        """
        context, held = await self._factory.restore_run(task_id)
        driver = read_driver(held[context.task].fields)
        return self._factory.make(self.find_peer(context.peer), context, held, driver)

    def adopt_if_undriven(self, task: EntityRef) -> None:
        """Adopts a task that may be stored as ours and has no driver."""
        self.detach(self._take_up_again(task, 0))

    def adopt_undriven(self, named: Iterable[str]) -> None:
        """Adopts all tasks in our set of a shard that are not driven; repeated each time they are found so."""
        for task_id in named:
            if self.find(task_id) is None and task_id not in self._adopting:
                self._adopting.add(task_id)
                self.detach(self._adopt_undriven(EntityRef(EntityKind.TASK, task_id)))

    async def _adopt_undriven(self, task: EntityRef) -> None:
        try:
            await self._take_up_again(task, 0)
        finally:
            self._adopting.discard(task.id)

    async def reattach(self, shard: Shard, named: Iterable[str]) -> None:
        """Adopts again what does not fit the store after a loss in a shard.

        These are the runs whose records are older than what was stored here, and those in ``named``, which the store
        assigns to this instance and which are not driven, since their end was lost.

        Raises:
            StoreUnavailable: the rest is left to a retry.
        """
        again = {task_id for task_id in named if self.find(task_id) is None}
        for task_id in self.runs.list_tasks():
            active = self.runs.find(task_id)
            if active is None or read_shard(task_id) != shard:
                continue
            if active.run.moved or not await active.run.is_stored():
                await self.runs.end(task_id)
                again.add(task_id)
        for task_id in sorted(again):
            self.log.warning("run.reattached", task=task_id)
            task = EntityRef(EntityKind.TASK, task_id)
            self.detach(self._take_up_again(task, 0, has_lost=True))

    def _revive(self, active: ActiveRun) -> None:
        self.detach(self._take_up_again(active.run.context.task, active.tries))

    async def _take_up_again(self, task: EntityRef, tries: int, *, has_lost: bool = False) -> None:
        """Retries until the run is driven or not ours: while our lease lives, no other instance adopts it."""
        while True:
            if tries or not has_lost:
                await asyncio.sleep(find_pause(self.timeouts.revive_s, _REVIVE_MAX_S, tries + 1))
            tries += 1
            try:
                held = await self.writes.load_one(task)
                if held.record is None and tries < _LOOKS:
                    continue  # a write of unknown outcome may arrive late
                if read_driver(held.fields) != self.drives(task.shard):
                    return
                await self.adopt(task, tries, has_lost=has_lost)
            except PasserelleError as error:
                self.log.warning("run.not_revived", task=task.id, reason=str(error))
            else:
                return

    async def list_row(self, row: IndexRow) -> None:
        """Writes a task into its owner's list at once; the relay writes it in any case."""
        await self._factory.list_row(row)

    async def read_task(self, task_id: str) -> TaskRecord | None:
        """A stored task; None if no task has that id."""
        return await self.writes.read(TaskRecord, task_id)

    def note_caller(self, principal: Principal) -> None:
        """Notes a request of a caller: runs with a high volume yield to callers with a low one."""
        caller = name_caller(principal.tenant, principal.id)
        self.scheduler.sums.note(caller, asyncio.get_running_loop().time())

    def find_doubt_ms(self, agent: str) -> int:
        """How long, in ms, a message to an agent may still be on its way after its intended send."""
        return round(self.find_terms(agent).timeouts.doubt_s * 1000)

    def find(self, task_id: str) -> ActiveRun | None:
        """The run of a task, if it is driven here."""
        return self.runs.find(task_id)

    def hint(self, task_id: str) -> bool:
        """Wakes the driver after a callback of the peer, wherever it is; returns whether it is here."""
        nudge = Nudge(task_id, called_back=True)
        return self.nudge_local(nudge) or self._nudge_remote(nudge)

    def wake(self, task_id: str, action_id: str | None = None, news: Written | None = None) -> bool:
        """Wakes the driver of a task, wherever it is; returns whether it is here.

        ``news`` is what was just stored: a local driver need not read it.
        """
        nudge = Nudge(task_id, action_id or "")
        return self.nudge_local(nudge, news) or self._nudge_remote(nudge, news)

    def nudge_local(self, nudge: Nudge, news: Written | None = None) -> bool:
        """Wakes the driver if it is here; returns whether it is."""
        active = self.runs.find(nudge.task)
        if active is None:
            return False
        if nudge.gives_way:
            self.detach(active.run.yield_line())
            return True
        if nudge.called_back and active.is_streaming:
            return True  # the reader of the stream gets it there
        if nudge.action:
            active.pending.owed.add(nudge.action)
            active.pending.put_off.pop(nudge.action, None)
        active.wake(news)
        return True

    def _nudge_remote(self, nudge: Nudge, news: Written | None = None) -> bool:
        if self.signals is not None:
            self.detach(self.signals.send(nudge, news.held if news is not None else None))
        return False

    async def refresh(self, task_id: str, news: Written | None = None) -> None:
        """Applies another writer's append to the driver of a task; ``news`` is all of it, if known."""
        active = self.runs.find(task_id)
        if active is not None and not (news is not None and await active.run.learn([news])):
            await active.run.refresh()

    async def cancel(self, task_id: str) -> bool:
        """Cancels the task at the peer; returns whether the task is driven here."""
        active = self.runs.find(task_id)
        if active is not None:
            await active.run.refresh()
            await cancel_task(active)
            return True
        task = EntityRef(EntityKind.TASK, task_id)
        held = await self.writes.load_one(task)
        record = held.record
        if not isinstance(record, TaskRecord):
            return False
        if self.remote is not None and is_kept_back(record) and read_driver(held.fields) is None:
            # Released before it was sent: the driver that adopts it sees the cancel.
            return await self.remote.claim(task_id)
        if record.run and record.run.remote_task_id:
            await self.stop_peer(record.peer or "", record.run.remote_task_id)
        if record.run is None and record.status is Status.CANCELLING:
            await confirm_stop(await self.hold(task_id))
        # Its driver learns of the stop from the peer, at its next poll.
        self.wake(task_id)
        return False

    async def stop_peer(self, peer: str, remote: str) -> None:
        """Cancels a task at a peer; the answer is for the driver of the run to see."""
        try:
            await self.find_peer(peer).cancel(remote)
        except NotFound:
            self.log.warning("peer.unknown", peer=peer)

    def detach(self, work: Coroutine[None, None, None]) -> None:
        """Runs a coroutine apart from the drivers, owned here until it ends."""
        keep_until_done(asyncio.create_task(work), self._side)

    def drop(self, shard: Shard) -> None:
        """Drops the runs of a shard that another instance owns now."""
        for task_id in self.runs.list_tasks():
            if read_shard(task_id) == shard:
                self.runs.drop(task_id)

    async def drain(self) -> None:
        """Stops everything that this instance drives; other instances continue it."""
        await self.commands.drain()
        await cancel_all(self._side)
        await self.runs.drain()
        await self.behaviour.drain()
        await self.open_text.drain()
