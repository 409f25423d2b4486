"""What a driver does, in order: sends the first message once, follows the task, and stops when the task has ended.

It follows by the answer or stream of the send, then SubscribeToTask, then GetTask at intervals. A closed stream
proves nothing about the task (I6): the peer is polled. A send of unknown outcome is searched for at the peer before
anything is sent again. A peer that is unreachable past the liveness limit makes the run *lost*, never completed.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from passerelle.a2a_mapping.members import object_at
from passerelle.a2a_mapping.outbound import add_push_config
from passerelle.core.errors import StoreUnavailable, TooLarge
from passerelle.core.payloads.run import RunStatus
from passerelle.core.task.status import Status
from passerelle.core.wire.times import parse_ms
from passerelle.delegation.runs.delivery import (
    deliver,
    deliver_kept,
    is_kept_back,
    read_options,
)
from passerelle.delegation.runs.finish import give_up
from passerelle.delegation.runs.gate import find_passed
from passerelle.delegation.runs.liveness import find_stall_s, note_break, note_life, report_stall
from passerelle.delegation.runs.lost_tail import HISTORY_LOST
from passerelle.delegation.runs.peer_calls import poll_task
from passerelle.delegation.runs.reconciliation import reconcile
from passerelle.delegation.runs.returns import return_answers
from passerelle.delegation.runs.search import find_send
from passerelle.delegation.runs.stream import follow_stream, judge_end
from passerelle.runtime.records.references import MEMBER, NOTHING

if TYPE_CHECKING:
    from passerelle.core.wire.json import JsonObject
    from passerelle.delegation.runs.active_run import ActiveRun
    from passerelle.delegation.runs.follow_strategy import Mechanism
    from passerelle.runtime.records.references import ResolvedReferences


_HELD_UP: Final = frozenset({Status.WAITING_PERMISSION, Status.WAITING_RESOURCE})
"""The statuses for AUTH_REQUIRED."""
_PENDING_PAUSE_S: Final = 0.05


async def drive(
    active: ActiveRun, params: JsonObject | None = None, referred: ResolvedReferences = NOTHING
) -> None:
    """Sends the first message of the run, if there is one, and follows the task to its end.

    While the store is unavailable nothing is decided: afterwards the peer is polled for the state of the task.
    """
    while True:
        try:
            if params is not None:
                asked, params = params, None
                if _is_sent_unchanged(active):
                    sent = active.address(asked, referred)
                else:
                    sent = await _prepare(active, asked, referred)
                active.sent = sent
                if sent is None:
                    return
                if not (await deliver(active, sent) or active.run.is_held()):
                    await find_send(active)
                    await note_break(active)
            if active.run.rendered is None:
                await follow_run(active)
        except StoreUnavailable as error:
            await active.hold(error)
        except TooLarge as error:
            await give_up(active, error)
            return
        else:
            return


def _is_sent_unchanged(active: ActiveRun) -> bool:
    """Whether the first message has no gate, and nothing is added to it."""
    turn = active.run.templated
    return turn is not None and active.callback is None and not turn.is_gated()


async def _prepare(
    active: ActiveRun, params: JsonObject, referred: ResolvedReferences
) -> JsonObject | None:
    """The first message as it is sent, once the gate has allowed it; None where it is not sent."""
    if active.run.is_gated():
        active.options, active.metadata = read_options(params), object_at(params, "metadata")
        message = await find_passed(active, is_new=True)
        if message is None:
            return None
        params = {**params, "message": message}
        if MEMBER in message:
            # A name in it may have become a reference.
            referred = await active.refer(message)
        # Content added from other tasks was judged with the message, and is part of it.
        referred = replace(referred, parts=())
    sent = active.address(params, referred)
    if sent is None or active.callback is None:
        return sent
    news = await active.callback.offer(active.run.record)
    return sent if news is None else add_push_config(sent, news)


async def follow_run(active: ActiveRun) -> None:
    """Follows the task until it has ended: subscribes where that works, else polls."""
    await _warn_of_loss(active)
    while not active.run.has_ended() and active.run.record.run is not None:
        if active.run.is_held():
            await active.rest(active.timeouts.parked_poll_max_s)
            # Nothing was polled meanwhile, so silence proves nothing.
            active.proof_ms = active.deps.clock.now_ms()
            continue
        await _compare_card(active)
        if await return_answers(active):
            active.strategy.reset()
        if active.run.has_ended():
            return
        await _record_stream_end(active)
        if active.run.record.withheld is not None:
            await _reconcile(active, active.run.record.withheld)
            continue
        remote = active.remote_task()
        if remote is None:
            await _find_task(active)
            continue
        if _knows_wait(active):
            await _pause_until_poll(active, changed=True, parked=True)
            continue
        await _subscribe(active, remote)
        before = _read_news(active)
        reached = await poll_task(active, remote)
        if active.run.has_ended():
            return
        active.strategy.note_look(reached=reached)
        await report_stall(active)
        await note_life(active, active.strategy.longest_s)
        parked, changed = active.run.is_parked(), _read_news(active) != before
        if parked or not active.strategy.subscribes(parked=False):
            await _switch_to_polling(active)
        await _pause_until_poll(active, changed=changed, parked=parked)


def _knows_wait(active: ActiveRun) -> bool:
    """Whether the peer has just answered with what it waits for; one that can call back first gets the address."""
    was_answered, active.was_answered = active.was_answered, False
    return was_answered and active.callback is None and active.run.is_parked()


async def _reconcile(active: ActiveRun, withheld: str) -> None:
    before = active.run.record
    await reconcile(active, withheld)
    if not active.run.has_ended():
        changed = active.run.record is not before
        await _pause_until_poll(active, changed=changed, parked=True)


async def _pause_until_poll(active: ActiveRun, *, changed: bool, parked: bool) -> None:
    """Pauses until the next poll; the more runs this instance polls, the longer."""
    least_s = active.deps.throttle.pause_s
    at_login = parked and _is_at_login(active)
    pause_s = active.strategy.rest(
        _draw(active), changed=changed, parked=parked, at_login=at_login, least_s=least_s
    )
    with active.deps.throttle.rest():
        owed_s = min(active.find_due_s(), find_stall_s(active))
        await active.rest(min(pause_s, max(owed_s, _PENDING_PAUSE_S)))


def _is_at_login(active: ActiveRun) -> bool:
    """Whether somebody may be giving the peer a credential elsewhere: then it goes on without a message."""
    record = active.run.record
    if record.status is not Status.WAITING_RESOURCE:
        return False
    waited_ms = active.deps.clock.now_ms() - parse_ms(record.status_at)
    return waited_ms < active.timeouts.login_s * 1000


async def _switch_to_polling(active: ActiveRun) -> None:
    """Changes from streams to polls, with callbacks of the peer if it has them."""
    if active.callback is not None:
        await active.callback.agree(active.run.record)
        active.strategy.calls_back = active.callback.is_agreed
    await _switch(active, active.strategy.below)


async def _find_task(active: ActiveRun) -> None:
    """Handles a message that is not known to be at the peer: sends it at its time, or searches for it."""
    run = active.run.record.run
    if run is not None and run.gated:
        sent = await active.recall() if await find_passed(active) is not None else None
        if sent is not None and not await deliver(active, sent):
            await find_send(active)
        return
    if not is_kept_back(active.run.record) or not await deliver_kept(active):
        await find_send(active)


def _read_news(active: ActiveRun) -> object:
    """A value that changes when the peer has sent news, or another writer has moved the task."""
    record = active.run.record
    return (record.run.steps if record.run else None, record.status)


def _draw(active: ActiveRun) -> float:
    return active.run.writes.ids.draw(16) / 0x10000


async def _compare_card(active: ActiveRun) -> None:
    """A run keeps the card that it began with; a new card of the peer is recorded in it (A2A-5)."""
    run, card = active.run.record.run, active.peer.peek()
    if run is None or card is None or card.sha256 in {run.worker.card_hash, active.new_card}:
        return
    active.new_card = card.sha256
    await active.warn("card_changed", f"the agent's card is {card.sha256[:16]} now")


async def _warn_of_loss(active: ActiveRun) -> None:
    """Records in a task that some of it was lost, once for each driver that adopts it."""
    if active.has_lost and active.run.record.run is not None:
        await active.warn(
            HISTORY_LOST,
            "the store has lost a part of this task; the gateway reads it from the agent again",
        )


async def _subscribe(active: ActiveRun, remote: str) -> None:
    """Reads the stream of the task to its end, if subscribing is next; not before lost events are read again."""
    if active.has_lost or not active.strategy.subscribes(parked=active.run.is_parked()):
        return
    card = active.peer.peek()
    active.strategy.can_subscribe = card is None or card.streaming
    if not active.strategy.can_subscribe:
        return
    await _switch(active, "subscription")
    before = _read_news(active)
    last = await follow_stream(active, active.peer.subscribe(remote))
    await judge_end(active, last)
    news = _read_news(active) != before
    active.strategy.note_subscription(brought_news=active.is_woken or news)


async def _record_stream_end(active: ActiveRun) -> None:
    """Records at once that the peer has left its stream at a task that waits: streams of callers end with it.

    It is recorded even if the record has that mechanism already: an answer may have been sent as a stream meanwhile.
    """
    if active.was_left and active.run.record.status in _HELD_UP:
        status = RunStatus(delivery_mechanism=active.strategy.below)
        await active.note(status)
    active.was_left = False


async def _switch(active: ActiveRun, mechanism: Mechanism) -> None:
    """Records how the run is followed from now on (A2A-6)."""
    run = active.run.record.run
    if run is None or run.delivery_mechanism == mechanism:
        return
    status = RunStatus(delivery_mechanism=mechanism)
    await active.note(status)
