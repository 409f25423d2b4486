"""The driver of a run: sends once, follows the peer whatever its connection does, and stops when the task has ended.

The ladder down: the answer or stream of the send; SubscribeToTask; GetTask, again and again. A closed stream says
nothing about the task (I6): the peer is asked. A send whose outcome is unknown is looked for at the peer before
anything is sent again. A peer that cannot be reached past the liveness limit makes the run *lost*, never completed.

The driver is detached from every caller: who asked may go, and who comes back reads what is stored.
"""

from __future__ import annotations

import asyncio
import math
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, cast

import orjson

from passerelle.a2a_mapping.outbound import RemoteAddress, address_send, ask_for_news, correlate
from passerelle.core import task as tasks
from passerelle.core.errors import (
    PasserelleError,
    StoreUnavailable,
    TooLarge,
)
from passerelle.core.events import Fact
from passerelle.core.payloads.runtime import WarningRaised
from passerelle.core.peer import Answered, Malformed, Refused, Unknown, Unreached
from passerelle.delegation.runs.attending import follow_run, poll_task
from passerelle.delegation.runs.debts import PendingReturns
from passerelle.delegation.runs.delivery import (
    deliver,
    read_options,
)
from passerelle.delegation.runs.draft import Step, find_first
from passerelle.delegation.runs.finish import give_up
from passerelle.delegation.runs.follow_strategy import FollowStrategy
from passerelle.delegation.runs.gate import pass_gate
from passerelle.delegation.runs.liveness import note_break
from passerelle.delegation.runs.peer_profile import read_behaviour
from passerelle.delegation.runs.results import apply_results
from passerelle.delegation.runs.run import Run, RunMovedError
from passerelle.delegation.runs.search import find_send
from passerelle.delegation.runs.volume import ReadRate
from passerelle.runtime.records.references import NOTHING

if TYPE_CHECKING:
    from collections.abc import Callable

    from passerelle.core.json import JsonObject
    from passerelle.core.peer import Peer, PeerOutcome
    from passerelle.delegation.runs.callbacks import CallingBack
    from passerelle.delegation.runs.follow_strategy import Timeouts
    from passerelle.delegation.runs.means import DriverDeps
    from passerelle.runtime.records.references import Referred
    from passerelle.runtime.records.writes import Terms, Written


@dataclass(eq=False)
class ActiveRun:
    """Drives one run to its end. ``failure`` says why a turn has no answer.

    It has no slots: of most runs the first answer is the end, and what they do not need stands in the class.
    """

    run: Run
    peer: Peer
    means: DriverDeps
    patience: Timeouts
    key: str | None
    """A key that the first message carries, by which the peer's task is found again."""
    calling_back: CallingBack | None
    """What the peer was told to call with; None where nobody can call us."""
    tries: int = field(default=0, init=False)
    """How often a driver of this run has broken."""
    failure: PasserelleError | None = field(default=None, init=False)
    proof_ms: int = field(default=0, init=False)
    """When the peer last answered, by our clock; a record is not written for each answer without news."""
    sent_ms: int = field(default=0, init=False)
    """When a send was begun here last."""
    is_streaming: bool = field(default=False, init=False)
    """Whether a stream of the task is read now: what the peer says elsewhere would be said twice."""
    was_left: bool = field(default=False, init=False)
    """Whether the peer itself has ended the stream that was read last."""
    is_throttled: bool = field(default=False, init=False)
    """Whether a stream of the task is not read now, since it brings more than it may."""
    was_throttled: bool = field(default=False, init=False)
    """Whether that is told."""
    let_through: frozenset[str] = field(default=frozenset(), init=False)
    """What hooks have let through of what the peer brought."""
    options: JsonObject | None = field(default=None, init=False)
    """What the request of a gated run says beside its message."""
    not_before_ms: int = field(default=0, init=False)
    """When the peer wants to be asked again, at the earliest."""
    new_card: str = field(default="", init=False)
    has_lost: bool = field(default=False, init=False)
    """Whether some of what the peer has said may be lost: it is asked for all of it before anything else is taken."""
    _sent: JsonObject | None = field(default=None, init=False)
    _debts: PendingReturns | None = field(default=None, init=False)
    _ladder: FollowStrategy | None = field(default=None, init=False)
    _rate: ReadRate | None = field(default=None, init=False)
    _is_held: bool = field(default=False, init=False)
    _wish: asyncio.Event | None = field(default=None, init=False)
    _stir: asyncio.Event | None = field(default=None, init=False)
    _news: tuple[Written, ...] = field(default=(), init=False)
    _is_behind: bool = field(default=False, init=False)
    """Whether there is more than what ``_news`` say."""

    @property
    def debts(self) -> PendingReturns:
        """What the run owes its peer; made for the first who looks."""
        if self._debts is None:
            self._debts = PendingReturns()
        return self._debts

    @property
    def ladder(self) -> FollowStrategy:
        """How the run is followed; one whose first answer is its end has no need of it."""
        if self._ladder is None:
            self._ladder = FollowStrategy(self.patience)
        return self._ladder

    @property
    def rate(self) -> ReadRate:
        """How much its streams may bring, all of them; made for the first one."""
        if self._rate is None:
            limits = self.run.sight.limits
            self._rate = ReadRate(limits.events_per_s, limits.bytes_per_s)
        return self._rate

    @property
    def stir(self) -> asyncio.Event:
        """Set when somebody wakes the driver, and by each frame that is read; made for the first who waits."""
        if self._stir is None:
            self._stir = asyncio.Event()
        return self._stir

    @property
    def wish(self) -> asyncio.Event:
        """Set while somebody wants the driver to look; made for the first one, too."""
        if self._wish is None:
            self._wish = asyncio.Event()
        return self._wish

    @property
    def is_woken(self) -> bool:
        """Whether somebody wants the driver to look."""
        return self._wish is not None and self._wish.is_set()

    def wake(self, news: Written | None = None) -> None:
        """Something happened that the driver should look at: an answer, a wish to cancel; ``news`` is all of it."""
        if news is None:
            self._is_behind = True
        else:
            self._news += (news,)
        self.wish.set()
        self.stir.set()

    async def drive(self, params: JsonObject | None = None, referred: Referred = NOTHING) -> None:
        """Sends the first message of the run, if there is one, and stays with the task to its end.

        While the store is away nothing is decided: afterwards the peer is asked where the task stands.
        """
        while True:
            try:
                if params is not None:
                    asked, params = params, None
                    if self.run.plain is not None and self.calling_back is None:
                        sent = self._address(asked, referred)
                    else:
                        sent = await self._prepare(asked, referred)
                    self._sent = sent
                    if sent is None:
                        return
                    if not (await deliver(self, sent) or self.run.is_held()):
                        await find_send(self)
                        await note_break(self)
                if self.run.filled is None:
                    await follow_run(self)
            except StoreUnavailable as error:
                await self.hold(error)
            except TooLarge as error:
                await give_up(self, error)
                return
            else:
                return

    async def _prepare(self, params: JsonObject, referred: Referred) -> JsonObject | None:
        """The first message as it is sent, once all who have a say in it let it through; None where it stays here."""
        if self.run.is_gated():
            self.options = read_options(params)
            message = await self.find_passed()
            if message is None:
                return None
            params = {**params, "message": message}
            # What goes along was judged with the message, and stands in it.
            referred = replace(referred, parts=())
        sent = self._address(params, referred)
        if sent is None or self.calling_back is None:
            return sent
        news = await self.calling_back.offer(self.run.record)
        return sent if news is None else ask_for_news(sent, news)

    async def find_passed(self) -> JsonObject | None:
        """The message as it may be sent, by all who have a say in it; None where it may not."""
        while True:
            try:
                return await self.find_message() if await pass_gate(self) else None
            except StoreUnavailable as error:
                await self.hold(error)

    async def find_message(self) -> JsonObject | None:
        """The message that the run was made for, as it may be sent: a hook may have changed it."""
        run = self.run.record.run
        if run is None:
            return None
        if run.updated_input is not None:
            content = await self.run.blobs.get(self.run.shard, run.updated_input)
            return None if content is None else cast("JsonObject", orjson.loads(content))
        return find_first(self.run.sight.accepted, run)

    async def refer(self, message: JsonObject) -> Referred:
        """What a stored message refers to, told to this peer."""
        return await self.means.references.recall(self.run.record, self.peer.name, message)

    async def recall(self) -> JsonObject | None:
        """What was sent first, or is to be: as it was addressed here, else made anew from what is stored."""
        run = self.run.record.run
        if self._sent is not None or run is None:
            return self._sent
        message = await self.find_message()
        if message is None:
            return None
        referred = await self.refer(message)
        if run.updated_input is not None:
            referred = replace(referred, parts=())
        params: JsonObject = {**(run.send_options or {}), "message": message}
        self._sent = self._address(params, referred)
        return self._sent

    def _address(self, params: JsonObject, referred: Referred) -> JsonObject | None:
        """What the agent is sent; None where the run has ended."""
        if self.run.plain is not None:
            to = RemoteAddress(
                self.run.plain.remote_context_id, None, None, referred.ids, referred.parts
            )
        elif (run := self.run.record.run) is not None:
            to = RemoteAddress(
                run.remote_context_id, run.remote_task_id, None, referred.ids, referred.parts
            )
        else:
            return None
        sent = address_send(params, to)
        return sent if self.key is None else correlate(sent, self.key)

    def learn(self) -> None:
        """What the first answer of the peer says about its habits."""
        run = self.run
        seen = run.seen if run.filled is not None else read_behaviour(run.record.attempts[-1])
        if seen is not None:
            self.means.habits.note(*seen)

    def may_leave(self) -> bool:
        """Whether a send may start at once: there is no replica to wait for, and the lease has time left."""
        return not self.means.replicas.are_seen(self.run.shard) and self.means.may_send(self.run)

    async def await_leave(self) -> None:
        """Until a send may start: what stands before it is on a replica, if there are any, and the lease has time left.

        A write that a failover loses is one that nobody knows any more; what was sent on it would be sent again.
        """
        shard, pause_s = self.run.shard, self.patience.replica_s
        while self.means.replicas.are_seen(shard) and not await self.means.replicas.have_all(shard):
            if pause_s == self.patience.replica_s:
                self.means.log.warning("send.unconfirmed", task=self.run.sight.task.id)
            if self.run.moved:
                raise RunMovedError
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, self.patience.replica_max_s)
        await self.await_lease()

    async def await_lease(self) -> None:
        """Until a send may start: a fence stops writes, not sends, so a send needs time left on the lease."""
        while not self.means.may_send(self.run):
            if self.run.moved:
                raise RunMovedError
            await asyncio.sleep(self.patience.lease_s)

    async def patiently(
        self, body: Callable[[Step], None], terms: Callable[[Step], Terms] | None = None
    ) -> None:
        """Appends what was observed as soon as the store can take it; nothing is read from the peer until then."""
        while True:
            try:
                await self.run.append(body, terms)
            except StoreUnavailable as error:
                await self.hold(error)
            else:
                self._is_held = False
                return

    async def hold(self, error: StoreUnavailable) -> None:
        """A pause while the store is away; said once, since an outage holds every run."""
        if not self._is_held:
            self.means.log.warning("run.held", task=self.run.record.task_id, reason=error.reason)
        self._is_held = True
        await asyncio.sleep(self.patience.store_s)

    def find_owed_s(self) -> float:
        """Seconds until an answer that was put off is looked at again, endless where none was.

        Its row comes due as well, but maybe at an instance whose news of it are lost.
        """
        at_ms = min(self.debts.put_off.values(), default=None)
        return math.inf if at_ms is None else (at_ms - self.means.clock.now_ms()) / 1000

    def find_written_ms(self, meant_ms: int) -> int:
        """When a message that was meant to be sent at a time may have been written at the latest.

        Whoever meant it may have done so until the run was taken from it.
        """
        return next((at_ms for at_ms in self.run.sight.moves if at_ms >= meant_ms), meant_ms)

    def remote_task(self) -> str | None:
        run = self.run.record.run
        return run.remote_task_id if run else None

    async def rest(self, pause_s: float) -> None:
        """Until the time is over, or somebody wakes us; the peer's own wish to be left alone is kept."""
        wished_s = (self.not_before_ms - self.means.clock.now_ms()) / 1000
        # Others may have written, on an instance whose news are lost. Not wait_for: up to Python 3.11 it loses a
        # cancellation that comes together with what is waited for, and the driver would outlive its instance.
        with suppress(TimeoutError):
            async with asyncio.timeout(max(pause_s, wished_s)):
                await self.wish.wait()
        await self._catch_up()

    async def _catch_up(self) -> None:
        """Takes over what was stored here in one's back; reads only where that is not all that there may be."""
        is_behind = self._is_behind or not self._news
        news, self._news, self._is_behind = self._news, (), False
        self.wish.clear()
        if is_behind or not await self.run.learn(news):
            await self.run.refresh()

    async def cancel(self) -> bool:
        """Tells the peer to stop, and whether it has heard; the wish is stored, and a due row until then.

        The answer is the task that a stream tells of already, so while one is read the driver looks for itself.
        """
        remote = self.remote_task()
        if remote is None or self.run.has_ended():
            self.wake()
            run = self.run.record.run
            if run is not None and run.send_after is not None:
                await self._await_end()
            return self.run.has_ended()
        outcome = await self.peer.cancel(remote)
        if isinstance(outcome, Unreached | Unknown | Malformed):
            self.means.log.warning("cancel.unknown", task=self.run.record.task_id)
        elif self.is_streaming:
            self.wake()
            await self._await_end()
        elif isinstance(outcome, Answered):
            await apply_results(self, [{"task": outcome.result}])
        else:
            await poll_task(self, remote)
        self.wake()
        return isinstance(outcome, Answered | Refused)

    async def _await_end(self) -> None:
        """For a while: whoever cancels wants to read that it has worked."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self.patience.cancel_s):
                while not (self.run.has_ended() or self.run.moved):
                    await self.run.wait_for_change()

    async def send_input(self, message: JsonObject, params: JsonObject) -> PeerOutcome | None:
        """Sends a further message on the live run; what came of it, None where there is no run any more."""
        run = self.run.record.run
        if run is None:
            return None
        referred = await self.refer(message)
        to = RemoteAddress(run.remote_context_id, run.remote_task_id, references=referred.ids)
        sent = address_send({**params, "message": message}, to)
        await self.await_leave()
        return await self.peer.send(sent)

    async def warn(self, code: str, reason: str) -> None:
        warning = WarningRaised(code, reason)
        await self.patiently(lambda step: step.add([Fact(tasks.scope_of(step.record), warning)]))
