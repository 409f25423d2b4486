"""Who drives what: new runs begin here, runs of dead instances are taken up again, wishes reach their driver."""

from __future__ import annotations

import asyncio
import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

from passerelle.core.batch import EntityKind, EntityRef
from passerelle.core.errors import NotFound, PasserelleError, StoreUnavailable
from passerelle.core.ids import TaskId, parse_facade, read_shard
from passerelle.core.ports.nudges import Nudge
from passerelle.core.status import UNDRIVEN, Status
from passerelle.core.task_record import TaskRecord
from passerelle.delegation.runs.active_runs import Commands
from passerelle.delegation.runs.callbacks import CallingBack
from passerelle.delegation.runs.delivery import is_kept_back
from passerelle.delegation.runs.draft import Sight, find_action
from passerelle.delegation.runs.driver import ActiveRun
from passerelle.delegation.runs.finish import confirm_stop
from passerelle.delegation.runs.follow_strategy import PollThrottle, Timeouts
from passerelle.delegation.runs.means import DriverDeps
from passerelle.delegation.runs.outputs import OutputPolicy
from passerelle.delegation.runs.questions import open_questions
from passerelle.delegation.runs.returns import Returning, list_groups
from passerelle.delegation.runs.run import Run, RunMovedError
from passerelle.delegation.runs.volume import ReadScheduler
from passerelle.runtime.common.carried import TRACE, keep_wishes
from passerelle.runtime.records.references import NOTHING, list_standing
from passerelle.runtime.records.task_fields import read_driver
from passerelle.runtime.records.writes import Unread

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Mapping

    from structlog.typing import FilteringBoundLogger

    from passerelle.core.batch import Incarnation
    from passerelle.core.decision import Held
    from passerelle.core.ids import Shard
    from passerelle.core.json import JsonObject
    from passerelle.core.payloads.limit import CostRecorded
    from passerelle.core.peer import Peer
    from passerelle.core.ports.blobs import Blobs
    from passerelle.core.ports.chance import Clock
    from passerelle.core.ports.leases import Replicas
    from passerelle.core.ports.projections import IndexRow, Projections
    from passerelle.core.ports.uploads import Uploads
    from passerelle.core.thread import NamedArtifact
    from passerelle.delegation.runs.active_runs import ActiveRuns, Begun
    from passerelle.delegation.runs.callbacks import Callbacks
    from passerelle.delegation.runs.open_text import OpenTexts
    from passerelle.delegation.runs.peer_profile import PeerBehaviour, PeerTerms
    from passerelle.delegation.runs.remote_drivers import InstanceSignals
    from passerelle.delegation.runs.turns import OpenedTurn
    from passerelle.permission_bridge.hooks.consulting import Consulting
    from passerelle.permission_bridge.rules import Policy
    from passerelle.runtime.common.fair_lock import FairLock
    from passerelle.runtime.limits.spending import Spending
    from passerelle.runtime.records.contents import Contents
    from passerelle.runtime.records.references import References, Referred
    from passerelle.runtime.records.writes import Writes, Written


_REVIVE_MAX_S: Final = 60.0
_LOOKS: Final = 4
"""How often a task is looked for whose append may be on its way."""
_CHANCE_BITS: Final = 32
_CHANCES: Final = 1 << _CHANCE_BITS


class Elsewhere(Protocol):
    """The instances that agents which dial in are linked to."""

    async def offer(self, agent: str, task_id: str) -> None:
        """A run was let go, and is for whoever the agent is linked to."""
        ...

    async def send_elsewhere(self, agent: str, task_id: str, turn_id: str) -> bool:
        """Hands a stored message on a run to whoever the agent is linked to; False where that is nobody else."""
        ...

    async def claim(self, task_id: str) -> bool:
        """Makes a run that nobody drives ours."""
        ...


@dataclass(slots=True)
class Dispatch:
    """Makes drivers and finds them."""

    writes: Writes
    blobs: Blobs
    copies: Blobs
    """Files that agents named by address."""
    uploads: Uploads
    """What they have uploaded before they named it."""
    contents: Contents
    projections: Projections
    runs: ActiveRuns
    clock: Clock
    log: FilteringBoundLogger
    find_peer: Callable[[str], Peer]
    drives: Callable[[Shard], Incarnation]
    find_sender: Callable[[Shard], Incarnation | None]
    """Who we are in a shard, where enough of our lease is left to begin something that cannot be undone."""
    find_terms: Callable[[str], PeerTerms]
    """What the configuration says of an agent."""
    find_rules: Callable[[], Policy]
    habits: PeerBehaviour
    references: References
    replicas: Replicas
    open_text: OpenTexts
    """Text on its way, of the runs that are driven here."""
    consulting: Consulting
    """Who has a say in what peers ask."""
    patience: Timeouts = field(default_factory=Timeouts)
    crowd: PollThrottle = field(default_factory=PollThrottle)
    turns: ReadScheduler = field(default_factory=ReadScheduler)
    outputs: OutputPolicy = field(default_factory=OutputPolicy)
    spending: Spending | None = None
    callbacks: Callbacks | None = None
    elsewhere: Elsewhere | None = None
    """Who may drive what this instance cannot: set where agents dial in."""
    nudging: InstanceSignals | None = None
    """Reaches the drivers of other instances, once this one has a name."""
    on_loss: Callable[[Shard, int, str], None] = lambda _shard, _epoch, _by: None
    """Told of a shard that has lost what was acknowledged under an epoch, and who noticed."""
    _mending: set[str] = field(default_factory=set[str])
    _side: set[asyncio.Task[None]] = field(default_factory=set["asyncio.Task[None]"])
    commands: Commands = field(init=False)
    _means: DriverDeps = field(init=False)

    def __post_init__(self) -> None:
        self.commands = Commands(self.runs)
        self._means = DriverDeps(
            self.clock,
            self.log,
            self._may_send,
            self.replicas,
            self._return,
            self._offer,
            self.habits,
            self.references,
            self.consulting,
            self.outputs,
            self.crowd,
            self.turns,
        )
        self.runs.on_broken = self._mend
        self.runs.on_left = self.open_text.close
        self.writes.find_line = self._find_line
        self.writes.make_way = self._make_way

    def begin(
        self,
        opened: OpenedTurn,
        peer: Peer,
        message: JsonObject,
        params: JsonObject,
        referred: Referred = NOTHING,
    ) -> Begun:
        """The driver of a run that was just opened here; it does nothing yet."""
        place = opened.place
        sight = self._look(opened.task, place.shard, place.thread, peer.name, place.context_id)
        sight.accepted.append(message)
        sight.content = opened.shown
        sight.standing = referred.standing
        driver = self._make(peer, sight, opened.held, opened.driver)
        driver.run.plain = opened.plain
        return driver, driver.drive(params, referred)

    def start(
        self,
        run: Run,
        peer: Peer,
        driver: Incarnation,
        params: JsonObject,
        referred: Referred = NOTHING,
    ) -> None:
        """Starts the driver of a further attempt that was just stored."""
        last = run.record.attempts[-1]
        TRACE.set(last.trace)
        keep_wishes(last.extensions)
        following = self._make(peer, run.sight, run.held, driver)
        self.log.info("run.retried", task=run.record.task_id, peer=peer.name)
        self.runs.start(following, following.drive(params, referred))

    def _look(
        self, task: EntityRef, shard: Shard, thread: EntityRef, peer: str, context_id: str
    ) -> Sight:
        terms = self.find_terms(peer)
        # By their places, here and below: the names of so many members cost as much as all the rest of them.
        return Sight(
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
            self.outputs.fetcher is not None,
            self.outputs.redaction,
            self.spending.find_price(peer) if self.spending and self.spending.is_on else None,
            self._draw_chance,
            # Written out, since ``list[JsonObject]()`` costs seven times as much.
            [],
            {},
            limits=terms.limits,
        )

    def _draw_chance(self) -> float:
        return self.writes.ids.draw(_CHANCE_BITS) / _CHANCES

    def _make(
        self,
        peer: Peer,
        sight: Sight,
        held: dict[EntityRef, Held] | Unread,
        driver: Incarnation | None,
    ) -> ActiveRun:
        run, terms = self._make_run(sight, held, driver), self.find_terms(peer.name)
        return ActiveRun(
            run,
            peer,
            self._means,
            terms.patience,
            make_key(run.record) if terms.correlates else None,
            CallingBack(self.callbacks, peer) if self.callbacks else None,
        )

    async def _offer(self, agent: str, task_id: str) -> None:
        """Where no agents dial in, nothing is let go."""
        if self.elsewhere is not None:
            await self.elsewhere.offer(agent, task_id)

    def _may_send(self, run: Run) -> bool:
        """Whether a send of a run may start.

        The time that is left may be that of a newer lease: a process that stood still, and learns of the loss while the
        append that begins a run is answered, has a lease again before it has let go of that run.

        Raises:
            RunMovedError: the incarnation of ours that drives it is over.
        """
        driver, present = run.driver, self.find_sender(run.shard)
        if present is None:
            return False
        if driver is not present and driver is not None and driver.instance == present.instance:
            run.moved = run.moved or driver != present
        if run.moved:
            raise RunMovedError
        return True

    def _make_run(
        self,
        sight: Sight,
        held: dict[EntityRef, Held] | Unread,
        driver: Incarnation | None,
    ) -> Run:
        run = Run(
            self.writes,
            self.blobs,
            self.copies,
            self.uploads,
            self.contents,
            sight,
            sight.shard,
            held if isinstance(held, Unread) else _list_own(sight, held),
            driver,
            open_questions,
            self.projections.post_index,
            self.list_row,
            self._settle,
            self.open_text.tell,
            self._find_loss,
            self.patience.store_s,
            sight.content,
            sight.answer,
        )
        run.epoch = self.writes.log.shard_epoch(sight.shard)
        return run

    def _find_line(self, ref: EntityRef) -> FairLock | None:
        driver = self.runs.find(ref.id)
        return None if driver is None else driver.run.line

    async def _make_way(self, held: Mapping[EntityRef, Held]) -> None:
        for ref in held:
            if self.nudging is not None and ref.kind is EntityKind.TASK and not self.find(ref.id):
                await self.nudging.tell(Nudge(ref.id, gives_way=True), held)

    def _find_loss(self, run: Run) -> None:
        self.on_loss(run.shard, run.epoch, "driver")

    def _settle(self, record: TaskRecord, cost: CostRecorded) -> None:
        if self.spending is not None:
            self.spending.settle(record.scope.principal, record.owner, cost)

    async def list_row(self, row: IndexRow) -> None:
        """Puts a task into its owner's list, at once; the relay does it in any case."""
        try:
            await self.projections.index_now(row)
        except StoreUnavailable as error:
            self.log.info("index.late", facade=row.facade, reason=error.reason)

    async def _return(self, driver: ActiveRun) -> bool:
        """Carries back every answer that is owed on this run."""
        done = False
        owed = [find_action(action) for action in driver.debts.owed]
        missing = [ref for ref in owed if ref not in driver.run.held]
        if missing:
            driver.run.held |= await self.writes.load(missing)
        groups = list_groups(driver)
        for settled in driver.debts.put_off.keys() - {group[0] for group in groups}:
            del driver.debts.put_off[settled]
        for group in groups:
            if driver.debts.put_off.get(group[0], 0) <= self.clock.now_ms():
                driver.debts.put_off.pop(group[0], None)
                done = await Returning(driver, group).go() or done
        return done

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
        peer = self.find_peer(record.peer or "")
        sight, refs = await self._look_back(task, record)
        driver = self._make(peer, sight, await self.writes.load(refs), self.drives(task.shard))
        driver.tries, driver.has_lost = tries, has_lost
        if self.find(task.id) is not None:
            return  # somebody else has just taken it up here
        self.log.info("run.adopted", task=task.id, peer=peer.name)
        # Whoever lets it go on, it stays in the trace that it began in, and asks for what its caller asked for.
        last = record.attempts[-1] if record.attempts else None
        TRACE.set(last.trace if last else None)
        keep_wishes(last.extensions if last else ())
        self.runs.start(driver, driver.drive())

    async def _look_back(
        self, task: EntityRef, record: TaskRecord
    ) -> tuple[Sight, list[EntityRef]]:
        """What a driver knew of a run, from what is stored, and what it held."""
        thread = EntityRef(EntityKind.THREAD, record.thread_id or "")
        agent, context_id = record.peer or "", record.scope.context_id
        sight = self._look(task, task.shard, thread, agent, context_id)
        content = await self.contents.fold_task(record)
        sight.content, sight.accepted = content.task, list(content.accepted)
        sight.moves = content.moves
        sight.catalogue.update(content.catalogue)
        sight.standing = await self._recall_standing(record)
        # Answers that are owed, and the other questions of their pause, are among those that were opened.
        actions = dict.fromkeys([*record.open_actions, *record.occurrences.values()])
        if record.coverage is not None and record.coverage.review is not None:
            actions[record.coverage.review] = None
        return sight, [task, thread, *map(find_action, actions)]

    async def _recall_standing(self, record: TaskRecord) -> dict[str, NamedArtifact]:
        """What the tasks have produced that this one refers to; one that refers to none costs no read."""
        named = [edge.target for edge in record.relationships if edge.kind == "source_task"]
        # A task that was tried again names an earlier exposure of itself.
        sources = {parsed[0] for one in named if (parsed := parse_facade(one)) is not None}
        sources.discard(TaskId(record.task_id))
        if not sources:
            return {}
        refs = [EntityRef(EntityKind.TASK, one) for one in sorted(sources)]
        held = (await self.writes.load(refs)).values()
        return list_standing(one.record for one in held if isinstance(one.record, TaskRecord))

    async def hold(self, task_id: str) -> Run:
        """A run that is not driven here, for one append in place of its driver and under its fence.

        Raises:
            NotFound: there is no such task.
        """
        sight, held = await self._read_back(task_id)
        return self._make_run(sight, held, read_driver(held[sight.task].fields))

    async def stand_in(self, task_id: str) -> ActiveRun:
        """The same with its agent: for one exchange in place of the driver. It drives nothing.

        Raises:
            NotFound: there is no such task, or its agent is not configured any more.
        """
        sight, held = await self._read_back(task_id)
        driver = read_driver(held[sight.task].fields)
        return self._make(self.find_peer(sight.peer), sight, held, driver)

    async def _read_back(self, task_id: str) -> tuple[Sight, dict[EntityRef, Held]]:
        task = EntityRef(EntityKind.TASK, task_id)
        record = (await self.writes.load([task]))[task].record
        if not isinstance(record, TaskRecord):
            raise NotFound("task", task_id)
        sight, refs = await self._look_back(task, record)
        return sight, await self.writes.load(refs)

    def mend(self, task: EntityRef) -> None:
        """Has a task taken up that may stand in the store as ours, while nobody drives it."""
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
        """Takes up anew what does not fit the store after a loss in a shard.

        These are the runs whose records are older than what was stored here, and those that are ours by the store
        (``named``) and not driven, since they had ended in what was lost.

        Raises:
            StoreUnavailable: the rest is left to another try.
        """
        again = {task_id for task_id in named if self.find(task_id) is None}
        for task_id in self.runs.list_tasks():
            driver = self.runs.find(task_id)
            if driver is None or read_shard(task_id) != shard:
                continue
            if driver.run.moved or not await driver.run.stands():
                await self.runs.end(task_id)
                again.add(task_id)
        for task_id in sorted(again):
            self.log.warning("run.reattached", task=task_id)
            task = EntityRef(EntityKind.TASK, task_id)
            self.detach(self._take_up_again(task, 0, has_lost=True))

    def _mend(self, driver: ActiveRun) -> None:
        self.detach(self._take_up_again(driver.run.sight.task, driver.tries))

    async def _take_up_again(self, task: EntityRef, tries: int, *, has_lost: bool = False) -> None:
        """Our lease lives, so nobody else does it: as long as the run is ours, and until it is driven again."""
        while True:
            if tries or not has_lost:
                await asyncio.sleep(min(self.patience.revive_s * 2 ** min(tries, 8), _REVIVE_MAX_S))
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

    def find_doubt_ms(self, agent: str) -> int:
        """For how long a message to an agent may still be on its way once it was to be sent."""
        return round(self.find_terms(agent).patience.doubt_s * 1000)

    def find(self, task_id: str) -> ActiveRun | None:
        """The driver of a task, if it is driven here."""
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
        driver = self.runs.find(nudge.task)
        if driver is None:
            return False
        if nudge.gives_way:
            self.detach(driver.run.give_way())
            return True
        if nudge.called_back and driver.is_streaming:
            return True  # whoever reads the stream hears of it there
        if nudge.action:
            driver.debts.owed.add(nudge.action)
            driver.debts.put_off.pop(nudge.action, None)
        driver.wake(news)
        return True

    def _tell_others(self, nudge: Nudge, news: Written | None = None) -> bool:
        if self.nudging is not None:
            self.detach(self.nudging.tell(nudge, news.held if news is not None else None))
        return False

    async def refresh(self, task_id: str) -> None:
        """Lets the driver of a task read what somebody else has just written."""
        driver = self.runs.find(task_id)
        if driver is not None:
            await driver.run.refresh()

    async def cancel(self, task_id: str) -> bool:
        """Tells the peer to stop; whether the task is driven here."""
        driver = self.runs.find(task_id)
        if driver is not None:
            await driver.run.refresh()
            await driver.cancel()
            return True
        task = EntityRef(EntityKind.TASK, task_id)
        held = (await self.writes.load([task]))[task]
        record = held.record
        if not isinstance(record, TaskRecord):
            return False
        if self.elsewhere is not None and is_kept_back(record) and read_driver(held.fields) is None:
            # Let go before it was sent: whoever takes it up sees that it is to stop.
            return await self.elsewhere.claim(task_id)
        if record.run and record.run.remote_task_id:
            await self.stop_peer(record.peer or "", record.run.remote_task_id)
        if record.run is None and record.status is Status.CANCELLING:
            await confirm_stop(await self.hold(task_id))
        # Whoever drives it hears of the stop from the peer, once it looks.
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
        await self.habits.drain()
        await self.open_text.drain()


def make_key(record: TaskRecord) -> str:
    """What a message of the live run is marked with at an agent that is configured so; nothing can be read from it."""
    return hashlib.sha256(record.attempts[-1].run_id.encode()).hexdigest()[:32]


def _list_own(sight: Sight, held: dict[EntityRef, Held]) -> dict[EntityRef, Held]:
    """What a run compares with each append: not the session, which others write."""
    wanted = {sight.task, sight.thread}
    return {ref: one for ref, one in held.items() if ref in wanted or ref.kind is EntityKind.ACTION}
