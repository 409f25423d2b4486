"""Who drives what: new runs begin here, runs of dead instances are taken up again, signals reach their driver."""

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
from passerelle.delegation.runs.content_room import ContentRoom
from passerelle.delegation.runs.delivery import is_kept_back
from passerelle.delegation.runs.finish import confirm_stop
from passerelle.delegation.runs.follow_strategy import PollThrottle, Timeouts
from passerelle.delegation.runs.loop import drive
from passerelle.delegation.runs.outputs import OutputPolicy
from passerelle.delegation.runs.peer_calls import cancel_task
from passerelle.delegation.runs.read_scheduler import ReadScheduler, name_caller
from passerelle.delegation.runs.run import Run, RunMovedError
from passerelle.delegation.runs.run_factory import RunFactory
from passerelle.runtime.common.carried import TRACE, keep_wishes
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
    from passerelle.runtime.common.concurrency import FairLock
    from passerelle.runtime.limits.costs import Spending
    from passerelle.runtime.records.contents import Contents
    from passerelle.runtime.records.references import References, Referred
    from passerelle.runtime.records.writes import Writes, Written


_REVIVE_MAX_S: Final = 60.0
_LOOKS: Final = 4
"""How often a task is looked for whose append may be on its way."""


def _give(active: ActiveRun, place: SendSlot | None) -> None:
    """A place is for a send that follows at once, and not for one that a person may have to allow."""
    if place is not None and active.run.is_gated():
        place.give_back()
    else:
        active.place = place


@dataclass(slots=True, repr=False)
class Dispatch:
    """Starts runs, finds them, and reaches their drivers."""

    writes: Writes
    blobs: Blobs
    copies: Blobs
    """Files that agents named by address."""
    uploads: Uploads
    """What they have uploaded before they named it."""
    contents: Contents
    projections: Projections
    clock: Clock
    log: FilteringBoundLogger
    find_peer: Callable[[str], Peer]
    drives: Callable[[Shard], Incarnation]
    find_sender: Callable[[Shard], Incarnation | None]
    """Our incarnation in a shard; None without enough time on the lease to begin what cannot be undone."""
    find_terms: Callable[[str], PeerTerms]
    """What the configuration says of an agent."""
    find_rules: Callable[[], Policy]
    behaviour: PeerBehaviour
    references: References
    replicas: Replicas
    open_text: OpenTexts
    """Text of the runs that are driven here, before it is stored."""
    consulting: PolicyConsultation
    """Judges what peers ask: rules, hooks and grants."""
    timeouts: Timeouts = field(default_factory=Timeouts)
    throttle: PollThrottle = field(default_factory=PollThrottle)
    scheduler: ReadScheduler = field(default_factory=ReadScheduler)
    content_room: ContentRoom = field(default_factory=ContentRoom)
    outputs: OutputPolicy = field(default_factory=OutputPolicy)
    spending: Spending | None = None
    callbacks: Callbacks | None = None
    remote: RemoteDrivers | None = None
    """The instances that agents are linked to; None where no agent dials in."""
    signals: InstanceSignals | None = None
    """Reaches the drivers of other instances."""
    on_loss: Callable[[Shard, int, str], None] = lambda _shard, _epoch, _by: None
    """Called with a shard that has lost what was acknowledged under an epoch, and who noticed."""
    _mending: set[str] = field(default_factory=set[str])
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
            contents=self.content_room,
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
        # Runs are made of appends, and appends give way to runs.
        self.writes.find_line = self._find_line
        self.writes.make_way = self._make_way

    def connect(
        self,
        remote: RemoteDrivers | None,
        signals: InstanceSignals,
        on_loss: Callable[[Shard, int, str], None],
    ) -> None:
        """Connects this instance, which has a name by now, with the others. Called once, before anything is driven."""
        self.remote, self.signals, self.on_loss = remote, signals, on_loss

    def begin(
        self,
        opened: OpenedTurn,
        peer: Peer,
        message: JsonObject,
        params: JsonObject,
        referred: Referred = NOTHING,
        sent_at: SendSlot | None = None,
    ) -> Begun:
        """The run that was just opened, and its driving, which has not begun; ``sent_at`` was reserved for its send."""
        place = opened.place
        context = self._factory.look(
            opened.task, place.shard, place.thread, peer.name, place.context_id
        )
        context.accepted.append(message)
        context.content = opened.shown
        context.standing = referred.standing
        active = self._factory.make(peer, context, opened.held, opened.driver)
        active.run.templated = opened.templated
        if sent_at is not None:
            _give(active, sent_at)
        return active, drive(active, params, referred)

    def start(
        self,
        run: Run,
        peer: Peer,
        driver: Incarnation,
        params: JsonObject,
        referred: Referred = NOTHING,
        place: SendSlot | None = None,
    ) -> None:
        """Starts the driver of a further attempt that was just stored; ``place`` was reserved for its send."""
        last = run.record.attempts[-1]
        TRACE.set(last.trace)
        keep_wishes(last.extensions)
        following = self._factory.make(peer, run.context, run.held, driver)
        _give(following, place)
        begun = "run.retried" if last.ordinal > 1 else "run.begun"
        self.log.info(begun, task=run.record.task_id, peer=peer.name)
        self.runs.start(following, drive(following, params, referred))

    async def _offer(self, agent: str, task_id: str) -> None:
        """Where no agents dial in, nothing is let go."""
        if self.remote is not None:
            await self.remote.offer(agent, task_id)

    def _may_send(self, run: Run) -> bool:
        """Whether a send of a run may start.

        The time that is left may be that of a newer lease: a process that stood still, and learns of the loss while the
        append that begins a run is answered, has a lease again before it has let go of that run.

        Raises:
            RunMovedError: our incarnation that drives it is over.
        """
        driver, present = run.driver, self.find_sender(run.shard)
        if present is None:
            return False
        if driver is not present and driver is not None and driver.instance == present.instance:
            run.moved = run.moved or driver != present
        if run.moved:
            raise RunMovedError
        return True

    def _find_line(self, ref: EntityRef) -> FairLock | None:
        active = self.runs.find(ref.id)
        return None if active is None else active.run.line

    async def _make_way(self, held: Mapping[EntityRef, Held]) -> None:
        for ref in held:
            if self.signals is not None and ref.kind is EntityKind.TASK and not self.find(ref.id):
                await self.signals.tell(Nudge(ref.id, gives_way=True), held)

    def _find_loss(self, run: Run) -> None:
        self.on_loss(run.shard, run.epoch, "driver")

    async def adopt(self, task: EntityRef, tries: int = 0, *, has_lost: bool = False) -> None:
        """Takes up a run that was moved to this instance: ask the peer first, then follow it.

        ``has_lost``: some of what the peer has said may be lost, so nothing is taken before it has told all of it.

        Raises:
            NotFound: the peer is not configured any more; the task stays as it is.
        """
        held = (await self.writes.load([task]))[task]
        record = held.record
        if not isinstance(record, TaskRecord) or record.status in UNDRIVEN or self.find(task.id):
            return
        if record.queued is not None:
            return  # nobody drives it before its turn
        peer = self.find_peer(record.peer or "")
        context, refs = await self._factory.look_back(task, record)
        own = await self.writes.load(refs)
        active = self._factory.make(peer, context, own, self.drives(task.shard))
        active.tries, active.has_lost = tries, has_lost
        if self.find(task.id) is not None:
            return  # somebody else has just taken it up here
        self.log.info("run.adopted", task=task.id, peer=peer.name)
        # It stays in the trace that it began in, and asks for what its caller asked for.
        last = record.attempts[-1] if record.attempts else None
        TRACE.set(last.trace if last else None)
        keep_wishes(last.extensions if last else ())
        self.runs.start(active, drive(active))

    async def hold(self, task_id: str) -> Run:
        """A run that is not driven here, for one append in place of its driver and under its fence.

        Raises:
            NotFound: there is no such task.
        """
        context, held = await self._factory.read_back(task_id)
        return self._factory.make_run(context, held, read_driver(held[context.task].fields))

    async def stand_in(self, task_id: str) -> ActiveRun:
        """The same with its agent: for one exchange in place of the driver. It drives nothing.

        Raises:
            NotFound: there is no such task, or its agent is not configured any more.
        """
        context, held = await self._factory.read_back(task_id)
        driver = read_driver(held[context.task].fields)
        return self._factory.make(self.find_peer(context.peer), context, held, driver)

    def mend(self, task: EntityRef) -> None:
        """Has a task taken up that may be stored as ours while nobody drives it."""
        self.detach(self._take_up_again(task, 0))

    def mend_named(self, named: Iterable[str]) -> None:
        """The same of all that our set in a shard names and that is not driven; again each time that it is found so."""
        for task_id in named:
            if self.find(task_id) is None and task_id not in self._mending:
                self._mending.add(task_id)
                self.detach(self._mend_named(EntityRef(EntityKind.TASK, task_id)))

    async def _mend_named(self, task: EntityRef) -> None:
        try:
            await self._take_up_again(task, 0)
        finally:
            self._mending.discard(task.id)

    async def reattach(self, shard: Shard, named: Iterable[str]) -> None:
        """Takes up again what does not fit the store after a loss in a shard.

        These are the runs whose records are older than what was stored here, and those that are ours by the store
        (``named``) and not driven, since they had ended in what was lost.

        Raises:
            StoreUnavailable: the rest is left to a retry.
        """
        again = {task_id for task_id in named if self.find(task_id) is None}
        for task_id in self.runs.list_tasks():
            active = self.runs.find(task_id)
            if active is None or read_shard(task_id) != shard:
                continue
            if active.run.moved or not await active.run.stands():
                await self.runs.end(task_id)
                again.add(task_id)
        for task_id in sorted(again):
            self.log.warning("run.reattached", task=task_id)
            task = EntityRef(EntityKind.TASK, task_id)
            self.detach(self._take_up_again(task, 0, has_lost=True))

    def _revive(self, active: ActiveRun) -> None:
        self.detach(self._take_up_again(active.run.context.task, active.tries))

    async def _take_up_again(self, task: EntityRef, tries: int, *, has_lost: bool = False) -> None:
        """Our lease lives, so nobody else does it: as long as the run is ours, and until it is driven again."""
        while True:
            if tries or not has_lost:
                await asyncio.sleep(find_pause(self.timeouts.revive_s, _REVIVE_MAX_S, tries + 1))
            tries += 1
            try:
                held = (await self.writes.load([task]))[task]
                if held.record is None and tries < _LOOKS:
                    continue  # a write of unknown outcome may come late
                if read_driver(held.fields) != self.drives(task.shard):
                    return
                await self.adopt(task, tries, has_lost=has_lost)
            except PasserelleError as error:
                self.log.warning("run.not_revived", task=task.id, reason=str(error))
            else:
                return

    async def list_row(self, row: IndexRow) -> None:
        """Puts a task into its owner's list, at once; the relay does it in any case."""
        await self._factory.list_row(row)

    async def read_task(self, task_id: str) -> TaskRecord | None:
        """A task as it is stored; None where there is none of that id."""
        if read_shard(task_id) is None:
            return None
        ref = EntityRef(EntityKind.TASK, task_id)
        record = (await self.writes.load([ref]))[ref].record
        return record if isinstance(record, TaskRecord) else None

    def note_caller(self, principal: Principal) -> None:
        """A caller is there with a request: runs that bring much give way to one that brings little."""
        caller = name_caller(principal.tenant, principal.id)
        self.scheduler.sums.note(caller, asyncio.get_running_loop().time())

    def find_doubt_ms(self, agent: str) -> int:
        """For how long a message to an agent may still be on its way once it was to be sent."""
        return round(self.find_terms(agent).timeouts.doubt_s * 1000)

    def find(self, task_id: str) -> ActiveRun | None:
        """The run of a task, if it is driven here."""
        return self.runs.find(task_id)

    def hint(self, task_id: str) -> bool:
        """The peer has called back: the driver is told, wherever it is; whether it is here."""
        nudge = Nudge(task_id, called_back=True)
        return self.hear(nudge) or self._tell_others(nudge)

    def wake(self, task_id: str, action_id: str | None = None, news: Written | None = None) -> bool:
        """Tells the driver to look, wherever it is; whether it is here.

        ``news`` is what was just stored: a driver that is here need not read it.
        """
        nudge = Nudge(task_id, action_id or "")
        return self.hear(nudge, news) or self._tell_others(nudge, news)

    def hear(self, nudge: Nudge, news: Written | None = None) -> bool:
        """Tells the driver, if it is here; whether it is."""
        active = self.runs.find(nudge.task)
        if active is None:
            return False
        if nudge.gives_way:
            self.detach(active.run.give_way())
            return True
        if nudge.called_back and active.is_streaming:
            return True  # the reader of the stream hears of it there
        if nudge.action:
            active.pending.owed.add(nudge.action)
            active.pending.put_off.pop(nudge.action, None)
        active.wake(news)
        return True

    def _tell_others(self, nudge: Nudge, news: Written | None = None) -> bool:
        if self.signals is not None:
            self.detach(self.signals.tell(nudge, news.held if news is not None else None))
        return False

    async def refresh(self, task_id: str, news: Written | None = None) -> None:
        """Lets the driver of a task have what somebody else has just written; ``news`` are all of it, if known."""
        active = self.runs.find(task_id)
        if active is not None and not (news is not None and await active.run.learn([news])):
            await active.run.refresh()

    async def cancel(self, task_id: str) -> bool:
        """Tells the peer to stop; whether the task is driven here."""
        active = self.runs.find(task_id)
        if active is not None:
            await active.run.refresh()
            await cancel_task(active)
            return True
        task = EntityRef(EntityKind.TASK, task_id)
        held = (await self.writes.load([task]))[task]
        record = held.record
        if not isinstance(record, TaskRecord):
            return False
        if self.remote is not None and is_kept_back(record) and read_driver(held.fields) is None:
            # Released before it was sent: the driver that takes it up sees that it is to stop.
            return await self.remote.claim(task_id)
        if record.run and record.run.remote_task_id:
            await self.stop_peer(record.peer or "", record.run.remote_task_id)
        if record.run is None and record.status is Status.CANCELLING:
            await confirm_stop(await self.hold(task_id))
        # Its driver hears of the stop from the peer, at its next look.
        self.wake(task_id)
        return False

    async def stop_peer(self, peer: str, remote: str) -> None:
        """Tells a peer to stop; what it answers is for the driver of the run to see."""
        try:
            await self.find_peer(peer).cancel(remote)
        except NotFound:
            self.log.warning("peer.unknown", peer=peer)

    def detach(self, work: Coroutine[None, None, None]) -> None:
        """Runs something beside the drivers, owned here until it ends."""
        task = asyncio.create_task(work)
        self._side.add(task)
        task.add_done_callback(self._side.discard)

    def drop(self, shard: Shard) -> None:
        """What was driven in a shard belongs to somebody else now."""
        for task_id in self.runs.list_tasks():
            if read_shard(task_id) == shard:
                self.runs.drop(task_id)

    async def drain(self) -> None:
        """Stops everything that this instance drives; others go on with it."""
        await self.commands.drain()
        side = [*self._side]
        for task in side:
            task.cancel()
        await asyncio.gather(*side, return_exceptions=True)
        await self.runs.drain()
        await self.behaviour.drain()
        await self.open_text.drain()
