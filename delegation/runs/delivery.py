"""The first message of a run on its way to the peer: sent once, or held back, or looked for.

A peer that is busy (429, 503 with Retry-After), one whose way is closed by the breaker, and one that has as much as it
may get from us have not taken the message. The task waits then, visibly, and the send is a due row at the time when it
may be tried again (I9): it is not failed for that. A wait that would outlast the limit of the run helps nobody, so its
caller gets the error with the time to come back.

Each try is an intent that is stored before it (``model.requested``), so that a driver that takes over knows what may
have arrived.
"""

from __future__ import annotations

from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

import orjson

from passerelle.a2a_mapping.content import fold
from passerelle.a2a_mapping.frames import (
    make_message,
    make_status,
    note_status,
    status_frame,
    task_frame,
)
from passerelle.a2a_mapping.history import complete_history
from passerelle.a2a_mapping.members import object_at
from passerelle.a2a_mapping.states import WORKING
from passerelle.core import task as tasks
from passerelle.core.batch import DueChange
from passerelle.core.errors import StoreUnavailable
from passerelle.core.events import Fact
from passerelle.core.payloads.run import ModelFailed, request
from passerelle.core.payloads.task import TaskWaiting
from passerelle.core.peer import Answered, Malformed, Refused, Unknown, Unreached
from passerelle.core.status import HELD, WAITING, Status
from passerelle.core.task_commands import EndWait, SendInput, WaitFor
from passerelle.core.times import format_ms, parse_ms
from passerelle.delegation.runs.answer_templates import fill_answer
from passerelle.delegation.runs.failure import PeerRefusal, explain, list_tried
from passerelle.delegation.runs.finish import confirm_cancel
from passerelle.delegation.runs.follow_strategy import waits_long
from passerelle.delegation.runs.remote_drivers import release_to_link
from passerelle.delegation.runs.results import apply_outcome, tell_broken
from passerelle.delegation.runs.stream import follow_stream, judge_end
from passerelle.runtime.records.writes import Terms

if TYPE_CHECKING:
    from passerelle.core.json import JsonObject
    from passerelle.core.peer import PeerOutcome
    from passerelle.core.task_record import TaskRecord
    from passerelle.delegation.runs.draft import Step
    from passerelle.delegation.runs.driver import ActiveRun

ROW: Final = "send"
"""The kind of the due row of a message that is held back."""
_BUSY: Final = frozenset({HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE})
_FIRST_WAIT_MS: Final = 1_000
_LONGEST_WAIT_MS: Final = 30_000
_LONGEST_CROWD_MS: Final = 5_000
_CROWD_LOOK_S: Final = 0.05
_OURS: Final = "taskPushNotificationConfig"
"""A secret of a call back stands in no record; whoever sends later makes another one."""
_OPTIONS_BYTES: Final = 4_096


@dataclass(frozen=True, slots=True)
class Deferred:
    """The peer took nothing, and may take it in a while."""

    refusal: PeerRefusal
    wait_ms: int
    is_ours: bool = False
    """A limit of ours is in the way: it may be gone in a moment."""
    is_absent: bool = False
    """The agent dials in, and not here: the run is for whoever it is linked to."""


Standing: TypeAlias = "Literal['settled', 'unknown'] | Deferred"


def is_kept_back(record: TaskRecord) -> bool:
    """Whether the message of the live run is not at the peer, and waits for its time."""
    return record.run is not None and record.run.send_after is not None


def judge_refusal(outcome: Refused | Unreached | Malformed, tries: int) -> int | None:
    """For how many ms an outcome says to wait, None where it says nothing of that kind."""
    match outcome:
        case Refused(http_status=HTTPStatus.TOO_MANY_REQUESTS, retry_after_s=None):
            return back_off(tries)
        case Refused(http_status=status, retry_after_s=int(wait_s)) if status in _BUSY:
            return max(wait_s * 1000, _FIRST_WAIT_MS)
        case Unreached(why="limit", retry_after_s=wait_s):
            return max((wait_s or 0) * 1000, min(back_off(tries), _LONGEST_CROWD_MS))
        case Unreached(why="breaker" | "absent", retry_after_s=wait_s):
            return max((wait_s or 0) * 1000, _FIRST_WAIT_MS)
        case _:
            return None


def back_off(tries: int) -> int:
    """The wait in ms after so many tries in vain, where nobody names one."""
    return min(_FIRST_WAIT_MS << min(tries, 8), _LONGEST_WAIT_MS)


async def deliver(driver: ActiveRun, sent: JsonObject) -> bool:
    """Sends the message until the peer has it or has refused it; False when nobody knows whether it arrived."""
    tries, crowded_ms = 0, 0
    while True:
        if not driver.may_leave():
            await driver.await_leave()
        driver.sent_ms = driver.means.clock.now_ms()
        driver.run.has_all = not driver.run.is_streamed()
        crowded_ms = crowded_ms or driver.sent_ms
        if driver.run.is_streamed():
            standing: Standing = await _stream(driver, sent, tries)
        else:
            outcome = await driver.peer.send(sent)
            if (
                isinstance(outcome, Answered)
                and (turn := driver.run.plain) is not None
                # Where a hook wants to know of answers, none of them is plain.
                and not driver.means.consulting.find_rules().watches_answers
                and (filling := fill_answer(driver.run, turn, outcome.result, driver.sent_ms))
                is not None
                and await filling
            ):
                driver.learn()
                return True
            standing = await _settle(driver, outcome, tries)
        driver.run.has_all = False
        if not isinstance(standing, Deferred):
            driver.learn()
            return standing == "settled"
        if standing.is_ours and _is_moment(driver, crowded_ms):
            await driver.rest(_CROWD_LOOK_S)
            if driver.run.has_ended() or driver.run.record.status is Status.CANCELLING:
                await _confirm(driver)
                return True
            continue
        await _hold(driver, sent, standing)
        if not await _go_on(driver):
            return True
        tries, crowded_ms = tries + 1, driver.means.clock.now_ms()


async def deliver_kept(driver: ActiveRun) -> bool:
    """The same for a message that another driver held back."""
    sent = await driver.recall()
    if sent is None:
        return False
    return not await _go_on(driver) or await deliver(driver, sent)


async def deliver_again(driver: ActiveRun, sent: JsonObject) -> bool:
    """The same for a message of which is known that it never arrived: the same id, and another intent."""
    await driver.patiently(_intend)
    return await deliver(driver, sent)


def read_options(sent: JsonObject) -> JsonObject | None:
    """What a request says beside its message, for whoever sends it later; of what is too large nothing is kept."""
    options: JsonObject = {name: value for name, value in sent.items() if name != "message"}
    configuration = object_at(options, "configuration")
    if _OURS in configuration:
        options["configuration"] = {
            name: value for name, value in configuration.items() if name != _OURS
        }
    return options if options and len(orjson.dumps(options)) <= _OPTIONS_BYTES else None


def _is_moment(driver: ActiveRun, since_ms: int) -> bool:
    return driver.means.clock.now_ms() - since_ms < driver.patience.crowd_s * 1000


async def _stream(driver: ActiveRun, sent: JsonObject, tries: int) -> Standing:
    last = await follow_stream(driver, driver.peer.stream(sent))
    knows = await judge_end(driver, last)
    if isinstance(last, Unknown | Malformed):
        await tell_broken(driver, last)
    if knows or not isinstance(last, Refused | Unreached):
        return "settled" if knows else "unknown"
    return await _settle(driver, last, tries)


async def _settle(driver: ActiveRun, outcome: PeerOutcome, tries: int) -> Standing:
    """What an outcome leads to that ends no plain turn."""
    if isinstance(outcome, Refused | Unreached) and driver.remote_task() is None:
        wait_ms = judge_refusal(outcome, tries)
        why = outcome.why if isinstance(outcome, Unreached) else ""
        is_ours, is_absent = why == "limit", why == "absent"
        # Another agent that may take over is for the retry policy to choose.
        is_only = is_ours or is_absent or list_tried(driver.run.record).next_peer is None
        if (
            wait_ms is not None
            and is_only
            and _fits(driver, wait_ms)
            and (
                is_ours or is_absent or not driver.patience.refuses or not _is_long(driver, wait_ms)
            )
        ):
            refusal = explain(outcome, driver.run.sight, driver.run.record)
            return Deferred(refusal, wait_ms, is_ours, is_absent)
    return "settled" if await apply_outcome(driver, outcome) else "unknown"


def _fits(driver: ActiveRun, wait_ms: int) -> bool:
    """Whether the run may still last that long."""
    run = driver.run.record.run
    if run is None:
        return False
    lasts_ms = run.retry_policy.total_timeout_ms
    if driver.patience.busy_s is not None:
        lasts_ms = min(lasts_ms, round(driver.patience.busy_s * 1000))
    ends_ms = parse_ms(run.started_at) + run.held_ms + lasts_ms
    return driver.means.clock.now_ms() + wait_ms < ends_ms


def _is_long(driver: ActiveRun, wait_ms: int) -> bool:
    """Whether whoever waits for the answer is told of a wait that begins now."""
    run = driver.run.record.run
    until_ms = driver.means.clock.now_ms() + wait_ms
    return run is not None and waits_long(run, driver.patience, until_ms)


async def _hold(driver: ActiveRun, sent: JsonObject, held: Deferred) -> None:
    """The task waits, and the send is owed at its time.

    Raises:
        RunMovedError: it is owed by whoever the agent is linked to.
    """
    at_ms = driver.means.clock.now_ms() + (0 if held.is_absent else held.wait_ms)
    refusal, options = held.refusal, read_options(sent)
    is_told = not (held.is_ours or held.is_absent) and _is_long(driver, held.wait_ms)

    again = "" if held.is_absent else f"; it is tried again at {format_ms(at_ms)}"
    reason = f"{refusal.failure.message}; the message was not taken{again}, and can be cancelled"

    def wait(step: Step) -> None:
        if not _may_wait(step.record):
            return
        scope = tasks.scope_of(step.record)
        if refusal.hit is not None:
            step.add([Fact(scope, refusal.hit)])
        step.add([Fact(scope, ModelFailed(step.sight.peer, refusal.failure))])
        waiting = TaskWaiting(
            waiting_for="resource",
            status=Status.WAITING_RESOURCE,
            reason=reason,
            retry_at=format_ms(at_ms),
            send_options=options,
        )
        facts = step.tell(WaitFor(waiting))
        if step.record.shown or is_told:
            _show_wait(step, facts, reason)
        else:
            step.add(facts)

    if held.is_absent:
        await release_to_link(driver, wait, _may_wait)
    row = DueChange(f"{ROW}:{driver.run.record.task_id}", at_ms)
    await driver.patiently(wait, lambda _step: Terms(due=(row,)))
    driver.means.log.info("send.held", task=driver.run.record.task_id, wait_ms=held.wait_ms)


def _show_wait(step: Step, facts: list[Fact], reason: str) -> None:
    """Adds the facts of a wait; callers see it, and so they can stop what waits."""
    sight = step.sight
    message = make_message(sight.mint("msg"), step.facade, sight.context_id, [{"text": reason}])
    status = make_status(WORKING, format_ms(step.decision.now_ms), message)
    note = note_status("agent_busy", peer=sight.peer)
    if step.record.shown:
        frame = status_frame(step.facade, sight.context_id, status, note)
    else:
        task: JsonObject = {
            "id": step.facade,
            "contextId": sight.context_id,
            "status": status,
            "metadata": note,
        }
        frame = task_frame(complete_history(task, sight.accepted))
    sight.content = fold(sight.content, frame)
    step.add_shown(facts, frame)


def _may_wait(record: TaskRecord) -> bool:
    return record.run is not None and record.status in tasks.TABLE[WaitFor]


async def _go_on(driver: ActiveRun) -> bool:
    """Waits for the time, and stores the next try; False when the task has ended instead."""
    while not _is_time(driver):
        if driver.run.has_ended() or driver.run.record.status is Status.CANCELLING:
            break
        try:
            await driver.rest(_find_pause_s(driver))
        except StoreUnavailable as error:
            await driver.hold(error)
    if await _confirm(driver):
        return False
    row = DueChange(f"{ROW}:{driver.run.record.task_id}", None)
    await driver.patiently(_intend, lambda _step: Terms(due=(row,)))
    return is_sendable(driver.run.record)


def is_sendable(record: TaskRecord) -> bool:
    """Whether the intent of the live run stands, and nothing has come of it yet."""
    run = record.run
    return run is not None and run.remote_task_id is None and run.pending_message_id is not None


async def _confirm(driver: ActiveRun) -> bool:
    """Whether there is nothing to send any more; what was never sent is cancelled at once."""
    if driver.run.record.status is Status.CANCELLING and driver.run.record.run is not None:
        await confirm_cancel(driver, "it was stopped before the agent had it")
    return driver.run.has_ended() or driver.run.record.run is None


def _is_time(driver: ActiveRun) -> bool:
    run, status = driver.run.record.run, driver.run.record.status
    if status in HELD:
        return False
    if run is None or run.send_after is None:
        return True
    return driver.means.clock.now_ms() >= parse_ms(run.send_after)


def _find_pause_s(driver: ActiveRun) -> float:
    run = driver.run.record.run
    until_ms = parse_ms(run.send_after) if run and run.send_after else 0
    left_s = (until_ms - driver.means.clock.now_ms()) / 1000
    return min(max(left_s, _CROWD_LOOK_S), driver.patience.look_s)


def _intend(step: Step) -> None:
    record = step.record
    run = record.run
    if run is None or record.status not in tasks.TABLE[SendInput]:
        return
    if record.status in WAITING:
        step.add(step.tell(EndWait("the agent is tried again")))
    requested = request(step.sight.peer, run.delivery_mechanism, run.message_id)
    step.add(step.tell(SendInput(requested)))
