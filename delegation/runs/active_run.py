"""A run that this instance drives: its state, its appends, its pauses. The steps in the other modules take it.

It imports no step, so that each step can be read alone; ``loop`` puts them in order. The run is detached from every
caller: a caller may leave, and reads what is stored when it comes back (I6).
"""

from __future__ import annotations

import asyncio
import math
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, cast

import orjson

from passerelle.a2a_mapping.members import object_at
from passerelle.a2a_mapping.outbound import RemoteAddress, address_send, correlate
from passerelle.core.errors import PasserelleError, StoreUnavailable
from passerelle.core.payloads.runtime import WarningRaised
from passerelle.core.wire.record import value
from passerelle.delegation.runs.content_budget import SMALL_BYTES, HeldContent
from passerelle.delegation.runs.draft import DecisionDraft, find_first
from passerelle.delegation.runs.follow_strategy import FollowStrategy
from passerelle.delegation.runs.peer_profile import read_behaviour
from passerelle.delegation.runs.read_scheduler import ReadRate, name_caller
from passerelle.delegation.runs.run import Run, RunMovedError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine

    from structlog.typing import FilteringBoundLogger

    from passerelle.core.batch import EntityRef
    from passerelle.core.events import AnyPayload
    from passerelle.core.peer import Malformed, Peer, PeerOutcome, SendSlot, StreamOutcome
    from passerelle.core.ports.chance import Clock
    from passerelle.core.ports.leases import Replicas
    from passerelle.core.wire.json import JsonObject
    from passerelle.delegation.runs.callbacks import CallbackOffer
    from passerelle.delegation.runs.content_budget import ContentBudget
    from passerelle.delegation.runs.follow_strategy import PollThrottle, Timeouts
    from passerelle.delegation.runs.outputs import OutputPolicy
    from passerelle.delegation.runs.peer_profile import PeerBehaviour
    from passerelle.delegation.runs.read_scheduler import ReadScheduler
    from passerelle.permission_bridge.hooks.consultation import PolicyConsultation
    from passerelle.runtime.records.references import References, ResolvedReferences
    from passerelle.runtime.records.writes import AppendOptions, Written


@value
class DriverDeps:
    """Dependencies that all runs of an instance share."""

    clock: Clock
    log: FilteringBoundLogger
    may_send: Callable[[Run], bool]
    """Whether enough of the lease is left to start something irreversible.

    Raises:
        RunMovedError: the lease was lost, and the present one is a new one.
    """
    replicas: Replicas
    """Nothing is sent on a write that a failover would lose."""
    offer: Callable[[str, str], Awaitable[None]]
    """Notifies the instances that may drive a run that it was released: agent and task."""
    on_broken: Callable[[ActiveRun], None]
    """Called when a driver leaves a run that has not ended and is still owned here."""
    on_left: Callable[[EntityRef], None]
    """Called with the task of each run that is no longer driven here, whatever the reason."""
    behaviour: PeerBehaviour
    references: References
    """Resolves what messages refer to."""
    consulting: PolicyConsultation
    """The policy, hooks and grants that judge what a peer asks."""
    outputs: OutputPolicy
    throttle: PollThrottle
    """Shared by all runs that are polled."""
    scheduler: ReadScheduler
    """Shared by all runs with a high volume."""
    contents: ContentBudget
    """Bounds the memory that the tasks of all runs take together."""


@dataclass(slots=True)
class PendingReturns:
    """Answers of people that are pending for the peer, by the ids of their actions."""

    owed: set[str] = field(default_factory=set[str])
    put_off: dict[str, int] = field(default_factory=dict[str, int])
    """Pending answer -> when to check it again, in ms; its due row comes due then."""
    untaken: set[str] = field(default_factory=set[str])
    """Answers whose last send certainly did not reach the peer."""


@dataclass(eq=False)
class ActiveRun:
    """One run that is driven to its end. ``failure`` is why a turn has no answer.

    It has no slots: most runs end with their first answer, and defaults that they never change are in the class.
    """

    run: Run
    peer: Peer
    deps: DriverDeps
    timeouts: Timeouts
    key: str | None
    """A key in the first message by which the peer's task is found again."""
    callback: CallbackOffer | None
    """The callback that was offered to the peer; None where the peer cannot call this gateway."""
    tries: int = field(default=0, init=False)
    """How often a driver of this run has broken."""
    failure: PasserelleError | None = field(default=None, init=False)
    proof_ms: int = field(default=0, init=False)
    """When the peer last answered, by our clock; answers without news are not written to the record each time."""
    sent_ms: int = field(default=0, init=False)
    """When the last send began here."""
    was_answered: bool = field(default=False, init=False)
    """Whether the peer has just stated the task's status in its answer to a message: no poll is needed at once."""
    is_streaming: bool = field(default=False, init=False)
    """Whether a stream of the task is being read: answers from elsewhere would repeat its content."""
    left_ms: int = field(default=0, init=False)
    """When the peer ended its answer to a message of a caller who waits, or the stream of one; 0 while it has not."""
    was_left: bool = field(default=False, init=False)
    """Whether the peer itself ended the stream that was read last."""
    void_answer: Malformed | None = field(default=None, init=False)
    """What the peer answered to the first message, if it ended its answer and that was none."""
    is_throttled: bool = field(default=False, init=False)
    """Whether the stream is not being read now, since it exceeds its rate."""
    was_throttled: bool = field(default=False, init=False)
    """Whether that was logged."""
    passed_hooks: frozenset[str] = field(default=frozenset(), init=False)
    """Digests of the content of the peer that hooks have allowed."""
    options: JsonObject | None = field(default=None, init=False)
    """The options in the request of a gated run, without its message."""
    metadata: JsonObject | None = field(default=None, init=False)
    """The metadata in the request of a gated run; None: that of what is stored."""
    not_before_ms: int = field(default=0, init=False)
    """The earliest time, in ms, at which the peer wants to be polled again."""
    new_card: str = field(default="", init=False)
    has_lost: bool = field(default=False, init=False)
    """Whether events of the peer may be lost: the whole task is read from it before anything else is taken."""
    sent: JsonObject | None = field(default=None, init=False)
    place: SendSlot | None = field(default=None, init=False)
    """The reserved slot of the agent's limits for the first send, if the run has waited for its turn."""
    _pending: PendingReturns | None = field(default=None, init=False)
    _strategy: FollowStrategy | None = field(default=None, init=False)
    _rate: ReadRate | None = field(default=None, init=False)
    _content: HeldContent | None = field(default=None, init=False)
    _owner: str = field(default="", init=False)
    _is_held: bool = field(default=False, init=False)
    _attention: asyncio.Event | None = field(default=None, init=False)
    _activity: asyncio.Event | None = field(default=None, init=False)
    _news: tuple[Written, ...] = field(default=(), init=False)
    _is_behind: bool = field(default=False, init=False)
    """Whether more was stored than ``_news`` contain."""

    @property
    def pending(self) -> PendingReturns:
        """The pending answers; made when first needed."""
        if self._pending is None:
            self._pending = PendingReturns()
        return self._pending

    @property
    def strategy(self) -> FollowStrategy:
        """How the run is followed; made when first needed."""
        if self._strategy is None:
            self._strategy = FollowStrategy(self.timeouts)
        return self._strategy

    @property
    def rate(self) -> ReadRate:
        """The read rate of its streams together; made when first needed."""
        if self._rate is None:
            limits = self.run.context.limits
            self._rate = ReadRate(limits.events_per_s, limits.bytes_per_s)
        return self._rate

    @property
    def owner(self) -> str:
        """The caller whose share of memory and reading is used: the owner of the task when its driver began."""
        if not self._owner:
            scope = self.run.record.scope
            self._owner = name_caller(scope.tenant, scope.principal)
        return self._owner

    def counts_content(self, ahead: int) -> bool:
        """Whether the task's content in memory is large enough to count, ``ahead`` bytes of it not stored yet."""
        return self._content is not None or self._measure_content(ahead) > SMALL_BYTES

    def _measure_content(self, ahead: int) -> int:
        volume = self.run.context.volume
        return ahead if volume is None else ahead + volume.total.memory_bytes

    async def hold_content(self, ahead: int) -> None:
        """Counts the content in memory, ``ahead`` bytes of it not stored yet; returns when more may be read."""
        if self._content is None:
            self._content = HeldContent(self.owner)
        self.deps.contents.grow(self._content, self._measure_content(ahead))
        await self.deps.contents.wait(self._content)

    def release_content(self) -> None:
        """Stops counting the content: it is not in memory any more."""
        if self._content is not None:
            self.deps.contents.grow(self._content, 0)

    @property
    def activity(self) -> asyncio.Event:
        """Set by each wake-up, and by each frame that is read; made when first needed."""
        if self._activity is None:
            self._activity = asyncio.Event()
        return self._activity

    @property
    def attention(self) -> asyncio.Event:
        """Set by a wake-up until the driver has handled it; made when first needed."""
        if self._attention is None:
            self._attention = asyncio.Event()
        return self._attention

    @property
    def is_woken(self) -> bool:
        """Whether a wake-up waits for the driver."""
        return self._attention is not None and self._attention.is_set()

    def wake(self, news: Written | None = None) -> None:
        """Wakes the driver: an answer was given, a cancel was requested. ``news`` is all that was stored, if known."""
        if news is None:
            self._is_behind = True
        else:
            self._news += (news,)
        self.attention.set()
        self.activity.set()

    async def find_message(self) -> JsonObject | None:
        """The message of the run as it may be sent: a hook may have changed it."""
        run = self.run.record.run
        if run is None:
            return None
        if run.updated_input is not None:
            content = await self.run.blobs.get(self.run.shard, run.updated_input)
            return None if content is None else cast("JsonObject", orjson.loads(content))
        return find_first(self.run.context.accepted, run)

    def find_metadata(self) -> JsonObject:
        """The metadata of the request that the message of a gated run goes with."""
        if self.metadata is not None:
            return self.metadata
        run = self.run.record.run
        return object_at((run and run.send_options) or {}, "metadata")

    async def refer(self, message: JsonObject) -> ResolvedReferences:
        """Resolves what a stored message refers to, as this peer may read it."""
        referred = await self.deps.references.recall(self.run.record, self.peer.name, message)
        self._keep_ids(referred)
        return referred

    def _keep_ids(self, referred: ResolvedReferences) -> None:
        """Keeps under which ids the peer gets the tasks that a message to it refers to."""
        self.run.context.referred |= {remote: facade for facade, remote in referred.ids.items()}

    async def recall(self) -> JsonObject | None:
        """The first message as it was or will be sent: as addressed here, else rebuilt from what is stored."""
        run = self.run.record.run
        if self.sent is not None or run is None:
            return self.sent
        message = await self.find_message()
        if message is None:
            return None
        referred = await self.refer(message)
        if run.updated_input is not None:
            referred = replace(referred, parts=())
        params: JsonObject = {**(run.send_options or {}), "message": message}
        self.sent = self.address(params, referred)
        return self.sent

    def address(self, params: JsonObject, referred: ResolvedReferences) -> JsonObject | None:
        """The request for the agent; None where the run has ended."""
        self._keep_ids(referred)
        if self.run.templated is not None:
            to = RemoteAddress(
                self.run.templated.remote_context_id, None, None, referred.ids, referred.parts
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
        """Records what the first answer shows of the peer's behaviour."""
        run = self.run
        seen = run.seen if run.rendered is not None else read_behaviour(run.record.attempts[-1])
        if seen is not None:
            self.deps.behaviour.note(*seen)

    def may_send_now(self) -> bool:
        """Whether a send may start at once: no replica has to confirm, and the lease has time left."""
        return not self.deps.replicas.are_seen(self.run.shard) and self.deps.may_send(self.run)

    async def wait_until_sendable(self) -> None:
        """Waits until a send may start: a replica, if any, has the earlier writes, and the lease has time left.

        When a failover loses the write behind an earlier send, that message is sent a second time.
        """
        shard, pause_s = self.run.shard, self.timeouts.replica_s
        while self.deps.replicas.are_seen(shard) and not await self.deps.replicas.have_all(shard):
            if pause_s == self.timeouts.replica_s:
                self.deps.log.warning("send.unconfirmed", task=self.run.context.task.id)
            if self.run.moved:
                raise RunMovedError
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, self.timeouts.replica_max_s)
        await self.wait_for_lease()

    async def wait_for_lease(self) -> None:
        """Waits until a send may start: a fence stops writes, not sends, so a send needs time left on the lease."""
        while not self.deps.may_send(self.run):
            if self.run.moved:
                raise RunMovedError
            await asyncio.sleep(self.timeouts.lease_s)

    def send(self, sent: JsonObject) -> Coroutine[Any, Any, PeerOutcome]:
        """SendMessage, unless the lease has expired before its first byte.

        Raises:
            RunMovedError: the lease was lost before, and the present one is a new one.
        """
        if self.place is not None:
            return self.peer.send(sent, may_send=self._has_lease, place=self.place)
        return self.peer.send(sent, may_send=self._has_lease)

    def stream(self, sent: JsonObject) -> AsyncGenerator[StreamOutcome, None]:
        """SendStreamingMessage in the same way."""
        if self.place is not None:
            return self.peer.stream(sent, may_send=self._has_lease, place=self.place)
        return self.peer.stream(sent, may_send=self._has_lease)

    def _has_lease(self) -> bool:
        return self.deps.may_send(self.run)

    async def append(
        self,
        body: Callable[[DecisionDraft], None],
        terms: Callable[[DecisionDraft], AppendOptions] | None = None,
    ) -> None:
        """Appends as soon as the store accepts it; nothing is read from the peer until then."""
        while True:
            try:
                await self.run.append(body, terms)
            except StoreUnavailable as error:
                await self.hold(error)
            else:
                self._is_held = False
                return

    async def hold(self, error: StoreUnavailable) -> None:
        """Pauses while the store is unavailable; logged once, since an outage holds every run."""
        if not self._is_held:
            self.deps.log.warning("run.held", task=self.run.record.task_id, reason=error.reason)
        self._is_held = True
        await asyncio.sleep(self.timeouts.store_s)

    def find_due_s(self) -> float:
        """Seconds until a postponed answer is checked again, infinite without one.

        Its row comes due as well, but that instance's signal may be lost.
        """
        at_ms = min(self.pending.put_off.values(), default=None)
        return math.inf if at_ms is None else (at_ms - self.deps.clock.now_ms()) / 1000

    def find_written_ms(self, meant_ms: int) -> int:
        """The latest time, in ms, at which a message that was to be sent at ``meant_ms`` may have been written.

        Its sender may have sent it until the run was moved to another driver.
        """
        return next((at_ms for at_ms in self.run.context.moves if at_ms >= meant_ms), meant_ms)

    def remote_task(self) -> str | None:
        run = self.run.record.run
        return run.remote_task_id if run else None

    async def rest(self, pause_s: float) -> None:
        """Waits for the pause or a wake-up, and at least until ``not_before_ms``."""
        wished_s = (self.not_before_ms - self.deps.clock.now_ms()) / 1000
        # The signal of a write by another instance may be lost, so it is read after the pause, too. Not wait_for: up to
        # Python 3.11 it loses a cancellation that comes with the event, and the driver would outlive its instance.
        with suppress(TimeoutError):
            async with asyncio.timeout(max(pause_s, wished_s)):
                await self.attention.wait()
        await self._catch_up()

    async def _catch_up(self) -> None:
        """Applies what was stored elsewhere meanwhile; reads the store only where ``_news`` is incomplete."""
        is_behind = self._is_behind or not self._news
        news, self._news, self._is_behind = self._news, (), False
        self.attention.clear()
        if is_behind or not await self.run.learn(news):
            await self.run.refresh()

    async def note(self, payload: AnyPayload) -> None:
        """Appends one fact about the task that only the record shows."""
        await self.append(lambda draft: draft.note(payload))

    async def warn(self, code: str, reason: str) -> None:
        await self.note(WarningRaised(code, reason))
