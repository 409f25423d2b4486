"""The driver of a run: sends once, follows the peer whatever its connection does, and stops when the task has ended.

The ladder down: the answer or stream of the send; SubscribeToTask; GetTask, again and again. A closed stream says
nothing about the task (I6): the peer is asked. A send whose outcome is unknown is looked for at the peer before
anything is sent again. A peer that cannot be reached past the liveness limit makes the run *lost*, never completed.

The driver is detached from every caller: who asked may go, and who comes back reads what is stored.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, assert_never

from passerelle.a2a_mapping.outbound import RemoteAddress, address_send, ask_for_news
from passerelle.core import task as tasks
from passerelle.core.approval_record import ActionRecord
from passerelle.core.errors import (
    PasserelleError,
    StoreUnavailable,
    TooLarge,
    UnsupportedOperation,
)
from passerelle.core.events import Fact
from passerelle.core.payloads.run import RunStatus
from passerelle.core.payloads.runtime import WarningRaised
from passerelle.core.peer import Answered, Closed, Malformed, Refused, Unknown, Unreached
from passerelle.core.status import Status
from passerelle.core.task_commands import ObserveStatus
from passerelle.gateway.control.references import NOTHING
from passerelle.gateway.delegation.endings import confirm_cancel, give_up, judge_liveness, lose
from passerelle.gateway.delegation.failing import Ended, end_run
from passerelle.gateway.delegation.observe import observe
from passerelle.gateway.delegation.refusal import explain
from passerelle.gateway.delegation.run import Run, RunMovedError
from passerelle.gateway.delegation.search import find_send
from passerelle.gateway.delegation.step import Step

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable

    from structlog.typing import FilteringBoundLogger

    from passerelle.core.json import JsonObject
    from passerelle.core.peer import Peer, PeerOutcome, StreamOutcome
    from passerelle.core.ports import Clock
    from passerelle.core.task_record import TaskRecord
    from passerelle.gateway.control.references import Referred

_FRAMES_AT_ONCE: Final = 16
"""Frames of one append, so that it stays below the 64 events of a batch."""
_BUFFERED_FRAMES: Final = 256
"""Frames read ahead of the store; then reading stops, and the peer feels it."""
_TASK_NOT_FOUND: Final = -32001
_LONGEST_TASK_BYTES: Final = 16 * 1024 * 1024
"""Of what a peer may answer at once; its client holds to it."""


@dataclass(frozen=True, slots=True)
class Patience:
    """How long, in seconds, a driver waits for what."""

    poll_s: float = 1.0
    poll_max_s: float = 30.0
    parked_poll_s: float = 2.0
    parked_poll_max_s: float = 60.0
    store_s: float = 0.5
    lease_s: float = 0.1
    liveness_s: float = 120.0
    look_s: float = 10.0
    """How long a silent stream is followed without a look at what others have written."""
    revive_s: float = 5.0
    """Until a run whose driver broke is taken up again, doubled each time."""
    doubt_s: float = 35.0
    """A send may still be on its way for this long: the peer's request timeout plus 5 s."""


@dataclass(slots=True)
class Driver:
    """Drives one run to its end. ``failure`` says why a turn has no answer."""

    run: Run
    peer: Peer
    clock: Clock
    log: FilteringBoundLogger
    may_send: Callable[[], bool]
    """Whether enough of the lease is left to begin something that cannot be undone."""
    returns: Callable[[Driver], Awaitable[bool]]
    """Carries answers of people back; whether something was done."""
    offer: Callable[[TaskRecord], Awaitable[JsonObject | None]]
    """The push configuration with which the peer calls back, where it can."""
    patience: Patience = field(default_factory=Patience)
    failure: PasserelleError | None = None
    proof_ms: int = 0
    """When the peer last answered, by our clock; a record is not written for each answer without news."""
    tries: int = 0
    """How often a driver of this run has broken."""
    owed: set[str] = field(default_factory=set[str])
    """Answers that somebody said are owed on this run."""
    put_off: dict[str, int] = field(default_factory=dict[str, int])
    """Answer -> when to look again, in ms; its due row comes due then."""
    refused: set[str] = field(default_factory=set[str])
    """Answers that the peer has refused in a way that no repeat can change."""
    _new_card: str = ""
    _is_held: bool = False
    _wake: asyncio.Event = field(default_factory=asyncio.Event)
    _stir: asyncio.Event = field(default_factory=asyncio.Event)
    """Set with ``_wake``, and by each frame that is read."""

    def wake(self) -> None:
        """Something happened that the driver should look at: an answer, a wish to cancel."""
        self._wake.set()
        self._stir.set()

    async def drive(self, params: JsonObject | None = None, referred: Referred = NOTHING) -> None:
        """Sends the first message of the run, if there is one, and stays with the task to its end.

        While the store is away nothing is decided: afterwards the peer is asked where the task stands.
        """
        work = self.attend() if params is None else self.begin(params, referred)
        while True:
            try:
                await work
            except StoreUnavailable as error:
                await self._hold(error)
                work = self.attend()
            except TooLarge as error:
                await give_up(self, error)
                return
            else:
                return

    async def begin(self, params: JsonObject, referred: Referred = NOTHING) -> None:
        """Sends the first message of the run, and drives on."""
        run = self.run.record.run
        if run is None:
            return
        to = RemoteAddress(
            context_id=run.remote_context_id,
            task_id=run.remote_task_id,
            references=referred.ids,
            parts=referred.parts,
        )
        sent = address_send(params, to)
        news = await self.offer(self.run.record)
        if news is not None:
            sent = ask_for_news(sent, news)
        await self.await_lease()
        if run.delivery_mechanism == "streaming":
            settled = await self.follow(self.peer.stream(sent))
        else:
            settled = await self.settle(await self.peer.send(sent))
        if not (settled or self.run.is_held()):
            await find_send(self)
        await self.attend()

    async def await_lease(self) -> None:
        """Until a send may start: a fence stops writes, not sends, so a send needs time left on the lease."""
        while not self.may_send():
            if self.run.moved:
                raise RunMovedError
            await asyncio.sleep(self.patience.lease_s)

    async def settle(self, outcome: PeerOutcome) -> bool:
        """Takes the answer of a unary call; False when nobody knows whether it arrived."""
        match outcome:
            case Answered(result=result):
                await self.take([result])
            case Refused() | Unreached() | Malformed():
                await self.refuse(outcome)
            case Unknown(reason=reason):
                self.log.warning("send.unknown", task=self.run.record.task_id, reason=reason)
                return False
            case _:
                assert_never(outcome)
        return True

    async def refuse(self, outcome: Refused | Unreached | Malformed) -> None:
        """The peer did not take it, or answered nonsense. Before the first frame that ends the turn with an error."""
        record = self.run.record
        if record.shown:
            await self.warn("peer_refused", type(outcome).__name__.lower())
            return
        refusal = explain(outcome, self.run.sight, self.run.record)
        self.failure = refusal.error

        def end(step: Step) -> None:
            if refusal.hit is not None:
                step.add([Fact(tasks.scope_of(step.record), refusal.hit)])
            end_run(step, Ended(refusal.failure))

        await self.patiently(end)

    async def follow(self, outcomes: AsyncGenerator[StreamOutcome, None]) -> bool:
        """Takes the frames of a stream, several in one append; False when nobody knows whether the send arrived.

        Whoever wakes the driver ends the stream: a peer may keep it open while it waits for an answer of ours, and
        two streams of one task would say everything twice.
        """
        frames: asyncio.Queue[StreamOutcome] = asyncio.Queue(_BUFFERED_FRAMES)
        reader = asyncio.create_task(self._read(outcomes, frames))
        try:
            while await self._await_frame(frames) and not self.run.has_ended():
                batch = _collect(frames)
                results = [outcome.result for outcome in batch if isinstance(outcome, Answered)]
                if results:
                    await self.take(results)
                last = batch[-1]
                if not isinstance(last, Answered):
                    return await self._end_stream(last)
                if self.run.has_ended():
                    return True
        finally:
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)
        return True

    async def _await_frame(self, frames: asyncio.Queue[StreamOutcome]) -> bool:
        """Whether a frame came, and not somebody who wants the driver to look up."""
        while True:
            if self.run.is_held() and self.remote_task() is not None:
                return False
            if not frames.empty():
                return True
            self._stir.clear()
            if self.run.has_ended() or (self._wake.is_set() and self.remote_task() is not None):
                return False
            try:
                async with asyncio.timeout(self.patience.look_s):
                    await self._stir.wait()
            except TimeoutError:
                await self._look_around()

    async def _look_around(self) -> None:
        """Another instance may have taken an answer, or ended the task: nobody there can wake us."""
        try:
            await self.run.refresh()
        except StoreUnavailable:
            return
        if any(
            isinstance(held.record, ActionRecord) and held.record.return_state == "owed"
            for held in self.run.held.values()
        ):
            self.wake()

    async def _read(
        self, outcomes: AsyncGenerator[StreamOutcome, None], frames: asyncio.Queue[StreamOutcome]
    ) -> None:
        last: StreamOutcome = Answered({})
        try:
            async with aclosing(outcomes) as open_stream:
                async for outcome in open_stream:
                    last = outcome
                    await frames.put(outcome)
                    self._stir.set()
        except Exception:
            # Whoever follows waits for a last outcome, and has to get one.
            self.log.exception("stream.broken", task=self.run.record.task_id)
            last = Answered({})
        if isinstance(last, Answered):
            await frames.put(Closed())
            self._stir.set()

    async def take(self, results: list[JsonObject]) -> None:
        """Stores what the peer answered, in as many appends as it takes."""
        at_once = len(results)
        while results:
            taken = 0

            def take(step: Step, batch: list[JsonObject] = results[:at_once]) -> None:
                nonlocal taken
                taken = 0
                for result in batch:
                    observe(step, result)
                    if step.more:
                        return
                    taken += 1

            await self._await_release(results)
            try:
                await self.patiently(take)
            except UnsupportedOperation:
                await self.run.refresh()
                if not self.run.is_held():
                    raise
            except TooLarge:
                if at_once == 1:
                    raise
                at_once //= 2
            else:
                results = results[taken:]

    async def _await_release(self, results: list[JsonObject]) -> None:
        """A bare message for a task that is paused or blocked stands nowhere else, so it waits here (CMD-8)."""
        while self.run.is_held() and any("message" in result for result in results):
            await self._rest(self.patience.parked_poll_max_s)

    async def _end_stream(self, last: StreamOutcome) -> bool:
        knows = self.run.record.shown or self.run.sight.answer is not None
        match last:
            case Refused() | Unreached() if not knows:
                await self.refuse(last)
                return True
            case Malformed(reason=reason):
                await self.warn("malformed_frame", reason)
                return knows
            case Closed() | Unknown() | Answered() | Refused() | Unreached():
                return knows
            case _:
                assert_never(last)

    async def patiently(self, body: Callable[[Step], None]) -> None:
        """Appends what was observed as soon as the store can take it; nothing is read from the peer until then."""
        while True:
            try:
                await self.run.append(body)
            except StoreUnavailable as error:
                await self._hold(error)
            else:
                self._is_held = False
                return

    async def _hold(self, error: StoreUnavailable) -> None:
        """A pause while the store is away; said once, since an outage holds every run."""
        if not self._is_held:
            self.log.warning("run.held", task=self.run.record.task_id, reason=error.reason)
        self._is_held = True
        await asyncio.sleep(self.patience.store_s)

    async def attend(self) -> None:
        """Stays with the task until it has ended: subscribe where that works, else ask."""
        pause = self.patience.poll_s
        subscribes = True
        while not self.run.has_ended() and self.run.record.run is not None:
            if self.run.is_held():
                await self._rest(self.patience.parked_poll_max_s)
                # Nobody asked meanwhile, so silence proves nothing.
                self.proof_ms = self.clock.now_ms()
                continue
            await self._compare_card()
            if await self.returns(self):
                pause = self.patience.poll_s
            if self.run.has_ended():
                return
            remote = self.remote_task()
            if remote is None:
                await find_send(self)
                await self._rest(pause)
                continue
            if subscribes and not self.run.is_parked():
                subscribes = await self._subscribe(remote)
            before = self.run.record.last
            await self.ask(remote)
            if self.run.has_ended():
                return
            limit = (
                self.patience.parked_poll_max_s
                if self.run.is_parked()
                else self.patience.poll_max_s
            )
            pause = (
                self.patience.poll_s if self.run.record.last != before else min(pause * 2, limit)
            )
            await self._rest(pause)

    async def _compare_card(self) -> None:
        """A run keeps the card that it began with; that the peer has another one by now is a fact of it (A2A-5)."""
        run, card = self.run.record.run, self.peer.peek()
        if run is None or card is None or card.sha256 in {run.worker.card_hash, self._new_card}:
            return
        self._new_card = card.sha256
        await self.warn("card_changed", f"the agent's card is {card.sha256[:16]} now")

    def remote_task(self) -> str | None:
        run = self.run.record.run
        return run.remote_task_id if run else None

    async def _subscribe(self, remote: str) -> bool:
        """Whether subscribing is worth another try."""
        if self.run.record.run and self.run.record.run.delivery_mechanism != "subscription":
            await self._switch("subscription")
        before = self.run.record.last
        await self.follow(self.peer.subscribe(remote))
        return self._wake.is_set() or self.run.record.last != before

    async def _switch(self, mechanism: str) -> None:
        said = RunStatus(
            delivery_mechanism="subscription" if mechanism == "subscription" else "polling"
        )
        await self.patiently(lambda step: step.add([Fact(tasks.scope_of(step.record), said)]))

    async def _rest(self, pause_s: float) -> None:
        """Until the time is over, or somebody wakes us."""
        with suppress(TimeoutError):  # others may have written, on an instance that cannot wake us
            await asyncio.wait_for(self._wake.wait(), pause_s)
        self._wake.clear()
        await self.run.refresh()

    async def ask(self, remote: str) -> None:
        """GetTask: what is new becomes facts; a task that the peer does not know any more is lost."""
        outcome = await self.peer.get(remote)
        match outcome:
            case Answered(result=task):
                self.proof_ms = self.clock.now_ms()
                await self.take([{"task": task}])
                await self._resurrect()
            case Refused(code=code) if code == _TASK_NOT_FOUND:
                if self.run.record.status is Status.CANCELLING:
                    await confirm_cancel(self)
                else:
                    await lose(self, "the peer does not know the task any more")
            case Malformed(too_long=True):
                # More than may be read, however often it is asked for.
                await give_up(self, TooLarge("the task at the agent", _LONGEST_TASK_BYTES))
            case Refused() | Unreached() | Unknown() | Malformed():
                await judge_liveness(self, type(outcome).__name__.lower())
            case _:
                assert_never(outcome)

    async def _resurrect(self) -> None:
        if self.run.record.status is Status.LOST:
            said = RunStatus(native_status=self.run.record.attempts[-1].native_status)
            step_id = self.run.sight.mint("step")
            command = ObserveStatus(Status.RUNNING, said, step_id)
            await self.patiently(lambda step: step.add(step.tell(command)))

    async def cancel(self) -> bool:
        """Tells the peer to stop, and whether it has heard; the wish is stored, and a due row until then."""
        remote = self.remote_task()
        if remote is None or self.run.has_ended():
            return self.run.has_ended()
        outcome = await self.peer.cancel(remote)
        match outcome:
            case Answered(result=task):
                await self.take([{"task": task}])
            case Refused():
                await self.ask(remote)
            case Unreached() | Unknown() | Malformed():
                self.log.warning("cancel.unknown", task=self.run.record.task_id)
            case _:
                assert_never(outcome)
        self.wake()
        return isinstance(outcome, Answered | Refused)

    async def send_input(self, message: JsonObject, params: JsonObject) -> PeerOutcome | None:
        """Sends a further message on the live run; what came of it, None where there is no run any more.

        A Task as its answer is the run that we follow already: taken twice it would say everything twice, so the
        driver looks for what is new. A bare Message stands nowhere else.
        """
        run = self.run.record.run
        if run is None:
            return None
        to = RemoteAddress(context_id=run.remote_context_id, task_id=run.remote_task_id)
        sent = address_send({**params, "message": message}, to)
        await self.await_lease()
        outcome = await self.peer.send(sent)
        if not (isinstance(outcome, Answered) and "task" in outcome.result):
            await self.settle(outcome)
        self.wake()
        return outcome

    async def warn(self, code: str, reason: str) -> None:
        warning = WarningRaised(code, reason)
        await self.patiently(lambda step: step.add([Fact(tasks.scope_of(step.record), warning)]))


def _collect(frames: asyncio.Queue[StreamOutcome]) -> list[StreamOutcome]:
    """The frames that are there, at least one: what arrives within one round trip shares an append."""
    batch = [frames.get_nowait()]
    while len(batch) < _FRAMES_AT_ONCE and isinstance(batch[-1], Answered) and not frames.empty():
        batch.append(frames.get_nowait())
    return batch
