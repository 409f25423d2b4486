"""Staying with a task at its peer: subscribed where that works, else asked again and again."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Final, assert_never

from passerelle.core import task as tasks
from passerelle.core.errors import (
    TooLarge,
)
from passerelle.core.events import Fact
from passerelle.core.payloads.run import RunStatus
from passerelle.core.peer import Answered, Malformed, Refused, Unknown, Unreached
from passerelle.core.status import Status
from passerelle.delegation.runs.delivery import (
    deliver,
    deliver_kept,
    is_kept_back,
)
from passerelle.delegation.runs.finish import (
    confirm_cancel,
    fail,
    give_up,
    judge_liveness,
    lose,
)
from passerelle.delegation.runs.follow_strategy import Mechanism
from passerelle.delegation.runs.liveness import find_stall_s, note_life, tell_stalled
from passerelle.delegation.runs.lost_tail import CODE as LOST
from passerelle.delegation.runs.lost_tail import explain_lost
from passerelle.delegation.runs.reconciliation import reconcile
from passerelle.delegation.runs.results import apply_results, revive_lost
from passerelle.delegation.runs.search import find_send
from passerelle.delegation.runs.stream import follow_stream, judge_end

if TYPE_CHECKING:
    from passerelle.delegation.runs.driver import ActiveRun


_TASK_NOT_FOUND: Final = -32001
_NEVER_TOLD: Final = frozenset({_TASK_NOT_FOUND, -32601, -32004})
"""The task, the method or the operation is not known."""
_NO_OPERATION: Final = frozenset(
    {HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED, HTTPStatus.NOT_IMPLEMENTED}
)
_HELD_UP: Final = frozenset({Status.WAITING_PERMISSION, Status.WAITING_RESOURCE})
"""What AUTH_REQUIRED is here."""
_OWED_PAUSE_S: Final = 0.05
_LONGEST_TASK_BYTES: Final = 24 * 1024 * 1024
"""Of what a peer may answer at once; its client holds to it."""


async def follow_run(driver: ActiveRun) -> None:
    """Stays with the task until it has ended: subscribe where that works, else ask."""
    await _tell_loss(driver)
    while not driver.run.has_ended() and driver.run.record.run is not None:
        if driver.run.is_held():
            await driver.rest(driver.patience.parked_poll_max_s)
            # Nobody asked meanwhile, so silence proves nothing.
            driver.proof_ms = driver.means.clock.now_ms()
            continue
        await _compare_card(driver)
        if await driver.means.returns(driver):
            driver.ladder.reset()
        if driver.run.has_ended():
            return
        await _tell_left(driver)
        if driver.run.record.withheld is not None:
            await _reconcile(driver, driver.run.record.withheld)
            continue
        remote = driver.remote_task()
        if remote is None:
            await _find_task(driver)
            continue
        await _subscribe(driver, remote)
        before = _read_news(driver)
        reached = await poll_task(driver, remote)
        if driver.run.has_ended():
            return
        driver.ladder.note_look(reached=reached)
        await tell_stalled(driver)
        await note_life(driver, driver.ladder.longest_s)
        parked, changed = driver.run.is_parked(), _read_news(driver) != before
        if parked or not driver.ladder.subscribes(parked=False):
            await _step_down(driver)
        await _rest_in_turn(driver, changed=changed, parked=parked)


async def _reconcile(driver: ActiveRun, withheld: str) -> None:
    before = driver.run.record
    await reconcile(driver, withheld)
    if not driver.run.has_ended():
        changed = driver.run.record is not before
        await _rest_in_turn(driver, changed=changed, parked=True)


async def _rest_in_turn(driver: ActiveRun, *, changed: bool, parked: bool) -> None:
    """Until the next look, which comes the later the more runs are looked after here."""
    least_s = driver.means.crowd.pause_s
    pause_s = driver.ladder.rest(_draw(driver), changed=changed, parked=parked, least_s=least_s)
    with driver.means.crowd.rest():
        owed_s = min(driver.find_owed_s(), find_stall_s(driver))
        await driver.rest(min(pause_s, max(owed_s, _OWED_PAUSE_S)))


async def _step_down(driver: ActiveRun) -> None:
    """From streams to questions, with the peer's calls beside them where it has them."""
    if driver.calling_back is not None:
        await driver.calling_back.agree(driver.run.record)
        driver.ladder.calls_back = driver.calling_back.is_agreed
    await _switch(driver, driver.ladder.below)


async def _find_task(driver: ActiveRun) -> None:
    """The message that is not known to be at the peer: sent at its time, or looked for."""
    run = driver.run.record.run
    if run is not None and run.gated:
        sent = await driver.recall() if await driver.find_passed() is not None else None
        if sent is not None and not await deliver(driver, sent):
            await find_send(driver)
        return
    if not is_kept_back(driver.run.record) or not await deliver_kept(driver):
        await find_send(driver)


def _read_news(driver: ActiveRun) -> object:
    """Changes when the peer has said something, or somebody else has moved the task."""
    record = driver.run.record
    return (record.run.steps if record.run else None, record.status)


def _draw(driver: ActiveRun) -> float:
    return driver.run.writes.ids.draw(16) / 0x10000


async def _compare_card(driver: ActiveRun) -> None:
    """A run keeps the card that it began with; that the peer has another one by now is a fact of it (A2A-5)."""
    run, card = driver.run.record.run, driver.peer.peek()
    if run is None or card is None or card.sha256 in {run.worker.card_hash, driver.new_card}:
        return
    driver.new_card = card.sha256
    await driver.warn("card_changed", f"the agent's card is {card.sha256[:16]} now")


async def _tell_loss(driver: ActiveRun) -> None:
    """Says in a task that some of it was lost, once for whoever takes it up."""
    if driver.has_lost and driver.run.record.run is not None:
        await driver.warn(LOST, "the store has lost a part of this task; its agent is asked for it")


async def _subscribe(driver: ActiveRun, remote: str) -> None:
    """Reads the stream of the task to its end, if it is its turn; not before what was lost is told again."""
    if driver.has_lost or not driver.ladder.subscribes(parked=driver.run.is_parked()):
        return
    card = driver.peer.peek()
    driver.ladder.can_subscribe = card is None or card.streaming
    if not driver.ladder.can_subscribe:
        return
    await _switch(driver, "subscription")
    before = _read_news(driver)
    last = await follow_stream(driver, driver.peer.subscribe(remote))
    await judge_end(driver, last)
    news = _read_news(driver) != before
    driver.ladder.note_subscription(brought_news=driver.is_woken or news)


async def _tell_left(driver: ActiveRun) -> None:
    """Says at once that the peer has left its stream at a task that waits: streams of callers end with it.

    It is said also where the record has that way already: an answer may have gone out as a stream meanwhile.
    """
    if driver.was_left and driver.run.record.status in _HELD_UP:
        said = RunStatus(delivery_mechanism=driver.ladder.below)
        await driver.patiently(lambda step: step.add([Fact(tasks.scope_of(step.record), said)]))
    driver.was_left = False


async def _switch(driver: ActiveRun, mechanism: Mechanism) -> None:
    """Says how the run is followed from now on (A2A-6)."""
    run = driver.run.record.run
    if run is None or run.delivery_mechanism == mechanism:
        return
    said = RunStatus(delivery_mechanism=mechanism)
    await driver.patiently(lambda step: step.add([Fact(tasks.scope_of(step.record), said)]))


def _cannot_tell(outcome: Refused) -> bool:
    """Whether the peer will never say where the task stands: it has no such task, or no such operation."""
    return outcome.code in _NEVER_TOLD or outcome.http_status in _NO_OPERATION


async def poll_task(driver: ActiveRun, remote: str) -> bool:
    """GetTask: what is new becomes facts; a task that the peer does not know any more is lost.

    Whether the peer has answered.
    """
    outcome = await driver.peer.get(remote)
    match outcome:
        case Answered(result=task):
            driver.proof_ms = driver.means.clock.now_ms()
            await apply_results(driver, [{"task": task}])
            await revive_lost(driver)
            driver.has_lost = False
        case Refused() if driver.has_lost and _cannot_tell(outcome):
            await fail(driver, explain_lost(driver.peer.name))
        case Refused(code=code) if code == _TASK_NOT_FOUND:
            if driver.run.record.status is Status.CANCELLING:
                await confirm_cancel(driver)
            else:
                await lose(driver, "the peer does not know the task any more")
        case Refused(http_status=HTTPStatus.TOO_MANY_REQUESTS | HTTPStatus.SERVICE_UNAVAILABLE):
            # It is there, and has said when to come back.
            driver.proof_ms = driver.means.clock.now_ms()
            driver.not_before_ms = driver.proof_ms + (outcome.retry_after_s or 0) * 1000
        case Malformed(too_long=True):
            # More than may be read, however often it is asked for.
            await give_up(driver, TooLarge("the task at the agent", _LONGEST_TASK_BYTES))
        case Refused() | Unreached() | Unknown() | Malformed():
            await judge_liveness(driver, type(outcome).__name__.lower())
        case _:
            assert_never(outcome)
    return isinstance(outcome, Answered | Refused)
