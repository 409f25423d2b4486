"""The first message of a run on its way to the peer: sent once, or held back, or searched for.

A peer that is busy (429, 503 with Retry-After), one behind an open breaker, and one at our own limits has not taken
the message. Then the task waits, visibly, and the send is a due row at the time of the next try (I9): the task does
not fail. A wait beyond the limit of the run is pointless, so its caller gets the error with the time to come back.

Each try is an intent that is stored first (``model.requested``), so that a driver that takes over knows what may have
arrived.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

import orjson

from passerelle.a2a_mapping.frames import (
    note_status,
)
from passerelle.a2a_mapping.members import object_at
from passerelle.a2a_mapping.states import WORKING
from passerelle.core.back_off import find_pause
from passerelle.core.batch import DueChange
from passerelle.core.errors import StoreUnavailable
from passerelle.core.frozen import frozen
from passerelle.core.payloads.run import ModelFailed, request
from passerelle.core.payloads.task import TaskWaiting
from passerelle.core.peer import Answered, Closed, Malformed, RefusedByPeer, Unknown, Unreached
from passerelle.core.task import machine as tasks
from passerelle.core.task.commands import EndWait, SendInput, WaitFor
from passerelle.core.task.status import HELD, WAITING, Status
from passerelle.core.wire.times import format_ms, parse_ms
from passerelle.delegation.runs.answer_templates import render_answer
from passerelle.delegation.runs.failure import PeerRefusal, explain, list_tried
from passerelle.delegation.runs.finish import confirm_cancel
from passerelle.delegation.runs.follow_strategy import waits_long
from passerelle.delegation.runs.liveness import note_left
from passerelle.delegation.runs.remote_drivers import release_to_link
from passerelle.delegation.runs.results import apply_outcome, record_broken_exchange, refuse
from passerelle.delegation.runs.stream import follow_stream, is_answered, judge_end
from passerelle.runtime.records.writes import AppendOptions

if TYPE_CHECKING:
    from passerelle.core.payloads.task import MissingResource
    from passerelle.core.peer import PeerOutcome, StreamOutcome
    from passerelle.core.task.record import TaskRecord
    from passerelle.core.wire.json import JsonObject
    from passerelle.delegation.runs.active_run import ActiveRun
    from passerelle.delegation.runs.draft import DecisionDraft

SEND_ROW: Final = "send"
"""The kind of the due row of a message that is held back."""
_BUSY: Final = frozenset({HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE})
_FIRST_WAIT_MS: Final = 1_000
_LONGEST_WAIT_MS: Final = 30_000
_LONGEST_CROWD_MS: Final = 5_000
_CROWD_LOOK_S: Final = 0.05
_OURS: Final = "taskPushNotificationConfig"
"""It contains the secret of a callback, which no record contains; a later send creates another one."""
_OPTIONS_BYTES: Final = 4_096


@frozen
class Deferred:
    """The peer took nothing, and may take it later."""

    refusal: PeerRefusal
    wait_ms: int
    is_ours: bool
    """One of our limits was reached: it may have room again in a moment."""
    is_absent: bool
    """The agent dials in, and not to this instance: the run is for the instance with its link."""
    resource: MissingResource


_RESOURCES: Final[dict[str, MissingResource]] = {"absent": "worker", "breaker": "network"}
"""The missing resource, by why an agent was not reached; else the agent has too much work."""
SendResult: TypeAlias = "Literal['settled', 'unknown', 'unsent'] | Deferred"
"""``unsent``: nothing was sent, and the next try begins at once: the lease ended before there was a connection."""


def is_kept_back(record: TaskRecord) -> bool:
    """Whether the message of the live run is not at the peer, and waits for its time."""
    return record.run is not None and record.run.send_after is not None


def judge_refusal(outcome: RefusedByPeer | Unreached | Malformed, tries: int) -> int | None:
    """How many ms to wait after an outcome; None where it asks for no wait."""
    match outcome:
        case RefusedByPeer(http_status=HTTPStatus.TOO_MANY_REQUESTS, retry_after_s=None):
            return back_off(tries)
        case RefusedByPeer(http_status=status, retry_after_s=int(wait_s)) if status in _BUSY:
            return max(wait_s * 1000, _FIRST_WAIT_MS)
        case Unreached(why="limit", retry_after_s=wait_s):
            return max((wait_s or 0) * 1000, min(back_off(tries), _LONGEST_CROWD_MS))
        case Unreached(why="breaker" | "absent", retry_after_s=wait_s):
            return max((wait_s or 0) * 1000, _FIRST_WAIT_MS)
        case _:
            return None


def back_off(tries: int) -> int:
    """The wait in ms after ``tries`` failures, where the peer names none."""
    return find_pause(_FIRST_WAIT_MS, _LONGEST_WAIT_MS, tries + 1)


async def deliver(active: ActiveRun, sent: JsonObject) -> bool:
    """Sends the message until the peer has taken or refused it; False when it is unknown whether it arrived."""
    tries, crowded_ms = 0, 0
    while True:
        if not active.may_send_now():
            await active.wait_until_sendable()
        active.sent_ms, active.left_ms, active.void_answer = active.deps.clock.now_ms(), 0, None
        active.run.has_all = not active.run.is_streamed()
        crowded_ms = crowded_ms or active.sent_ms
        if active.run.is_streamed():
            standing: SendResult = await _stream(active, sent, tries)
        else:
            outcome = await active.send(sent)
            if (
                isinstance(outcome, Answered)
                and (turn := active.run.templated) is not None
                # A hook that watches answers has to see each of them, so none is rendered.
                and not active.deps.consulting.find_rules().watches_answers
                and (filling := render_answer(active.run, turn, outcome.result, active.sent_ms))
                is not None
                and await filling
            ):
                active.learn()
                return True
            standing = await _settle(active, outcome, tries)
            active.was_answered = isinstance(outcome, Answered)
            note_left(active, sent, outcome)
        active.run.has_all = False
        if isinstance(standing, Deferred) and standing.is_ours and _is_moment(active, crowded_ms):
            await active.rest(_CROWD_LOOK_S)
            standing = "unsent"
        if standing == "unsent":
            if active.run.has_ended() or active.run.record.status is Status.CANCELLING:
                await _confirm(active)
                return True
            continue
        if not isinstance(standing, Deferred):
            active.learn()
            return standing == "settled"
        await _hold(active, sent, standing)
        if not await _go_on(active):
            return True
        tries, crowded_ms = tries + 1, active.deps.clock.now_ms()


async def deliver_kept(active: ActiveRun) -> bool:
    """Delivers a message that another driver held back; False when it is unknown whether it arrived."""
    sent = await active.recall()
    if sent is None:
        return False
    return not await _go_on(active) or await deliver(active, sent)


async def deliver_again(active: ActiveRun, sent: JsonObject) -> bool:
    """Delivers a message that certainly never arrived again, with the same id and another intent."""
    await active.append(_store_intent)
    return await deliver(active, sent)


def read_options(sent: JsonObject) -> JsonObject | None:
    """The options of a request without its message, for a later send; None where they are too large to store."""
    options: JsonObject = {name: value for name, value in sent.items() if name != "message"}
    configuration = object_at(options, "configuration")
    if _OURS in configuration:
        options["configuration"] = {
            name: value for name, value in configuration.items() if name != _OURS
        }
    return options if options and len(orjson.dumps(options)) <= _OPTIONS_BYTES else None


def _is_moment(active: ActiveRun, since_ms: int) -> bool:
    return active.deps.clock.now_ms() - since_ms < active.timeouts.crowd_s * 1000


async def _stream(active: ActiveRun, sent: JsonObject, tries: int) -> SendResult:
    last = await follow_stream(active, active.stream(sent))
    knows = await judge_end(active, last)
    if active.was_left:
        note_left(active, sent, last)
    if isinstance(last, Unknown | Malformed):
        await record_broken_exchange(active, last)
    if not knows and active.was_left:
        active.void_answer = _find_void(last)
    if knows or not isinstance(last, RefusedByPeer | Unreached):
        return "settled" if knows else "unknown"
    return await _settle(active, last, tries)


def _find_void(last: StreamOutcome) -> Malformed | None:
    """What a stream was instead of an answer, if the peer ended it itself: then no answer was lost."""
    match last:
        case Closed():
            return Malformed("its stream ended without a task or a message", b"")
        case Malformed():
            return last
        case _:
            return None


async def _settle(active: ActiveRun, outcome: PeerOutcome, tries: int) -> SendResult:
    """Handles an outcome that ends no templated turn."""
    if isinstance(outcome, Unreached) and outcome.why == "lease":
        return "unsent"
    if isinstance(outcome, RefusedByPeer | Unreached) and active.remote_task() is None:
        wait_ms = judge_refusal(outcome, tries)
        why = outcome.why if isinstance(outcome, Unreached) else ""
        is_ours, is_absent = why == "limit", why == "absent"
        # Whether another agent takes over is for the retry policy to choose.
        tried = list_tried(active.run.record)
        waits_here = (is_ours and not tried.is_routed) or is_absent
        is_only = waits_here or tried.next_peer is None
        if (
            wait_ms is not None
            and is_only
            and _fits(active, wait_ms)
            and (
                is_ours or is_absent or not active.timeouts.refuses or not _is_long(active, wait_ms)
            )
        ):
            refusal = explain(outcome, active.run.context, active.run.record)
            resource = _RESOURCES.get(why, "external")
            return Deferred(refusal, wait_ms, is_ours, is_absent, resource)
    if not await apply_outcome(active, outcome):
        return "unknown"
    if isinstance(outcome, Answered) and not is_answered(active):
        await refuse(active, Malformed("neither a task nor a message", b""))
    return "settled"


def _fits(active: ActiveRun, wait_ms: int) -> bool:
    """Whether the wait ends within the limit of the run."""
    run = active.run.record.run
    if run is None:
        return False
    lasts_ms = run.retry_policy.total_timeout_ms
    if active.timeouts.busy_s is not None:
        lasts_ms = min(lasts_ms, round(active.timeouts.busy_s * 1000))
    ends_ms = parse_ms(run.started_at) + run.held_ms + lasts_ms
    return active.deps.clock.now_ms() + wait_ms < ends_ms


def _is_long(active: ActiveRun, wait_ms: int) -> bool:
    """Whether callers are notified of a wait that begins now."""
    run = active.run.record.run
    until_ms = active.deps.clock.now_ms() + wait_ms
    return run is not None and waits_long(run, active.timeouts, until_ms)


async def _hold(active: ActiveRun, sent: JsonObject, held: Deferred) -> None:
    """Has the task wait, and schedules the send.

    Raises:
        RunMovedError: the run was released for the instance that the agent is linked to.
    """
    at_ms = active.deps.clock.now_ms() + (0 if held.is_absent else held.wait_ms)
    refusal, options = held.refusal, read_options(sent)
    notifies_caller = not (held.is_ours or held.is_absent) and _is_long(active, held.wait_ms)

    again = "" if held.is_absent else f"; it is retried at {format_ms(at_ms)}"
    reason = f"{refusal.failure.message}; the message was not accepted{again}, and can be cancelled"

    def wait(draft: DecisionDraft) -> None:
        if not _may_wait(draft.record):
            return
        if refusal.hit is not None:
            draft.note(refusal.hit)
        draft.note(ModelFailed(draft.context.peer, refusal.failure))
        waiting = TaskWaiting(
            waiting_for="resource",
            status=Status.WAITING_RESOURCE,
            reason=reason,
            retry_at=format_ms(at_ms),
            send_options=options,
            resource=held.resource,
        )
        facts = draft.decide(WaitFor(waiting))
        if draft.record.shown or notifies_caller:
            note = note_status("agent_busy", peer=draft.context.peer)
            whole = not draft.record.shown
            draft.show_status(facts, WORKING, [{"text": reason}], note, whole=whole)
        else:
            draft.add(facts)

    if held.is_absent:
        await release_to_link(active, wait, _may_wait)
    row = DueChange(f"{SEND_ROW}:{active.run.record.task_id}", at_ms)
    await active.append(wait, lambda _draft: AppendOptions(due=(row,)))
    active.deps.log.info("send.held", task=active.run.record.task_id, wait_ms=held.wait_ms)


def _may_wait(record: TaskRecord) -> bool:
    return record.run is not None and record.status in tasks.TABLE[WaitFor]


async def _go_on(active: ActiveRun) -> bool:
    """Waits for the time, and stores the next try; False when the task has ended instead."""
    while not _is_time(active):
        if active.run.has_ended() or active.run.record.status is Status.CANCELLING:
            break
        try:
            await active.rest(_find_pause_s(active))
        except StoreUnavailable as error:
            await active.hold(error)
    if await _confirm(active):
        return False
    row = DueChange(f"{SEND_ROW}:{active.run.record.task_id}", None)
    await active.append(_store_intent, lambda _draft: AppendOptions(due=(row,)))
    return is_sendable(active.run.record)


def is_sendable(record: TaskRecord) -> bool:
    """Whether the live run has an intent to send, and no outcome yet."""
    run = record.run
    return run is not None and run.remote_task_id is None and run.pending_message_id is not None


async def _confirm(active: ActiveRun) -> bool:
    """Whether there is nothing to send any more; a message that was never sent is cancelled at once."""
    if active.run.record.status is Status.CANCELLING and active.run.record.run is not None:
        await confirm_cancel(active, "it was cancelled before the agent received it")
    return active.run.has_ended() or active.run.record.run is None


def _is_time(active: ActiveRun) -> bool:
    run, status = active.run.record.run, active.run.record.status
    if status in HELD:
        return False
    if run is None or run.send_after is None:
        return True
    return active.deps.clock.now_ms() >= parse_ms(run.send_after)


def _find_pause_s(active: ActiveRun) -> float:
    run = active.run.record.run
    until_ms = parse_ms(run.send_after) if run and run.send_after else 0
    left_s = (until_ms - active.deps.clock.now_ms()) / 1000
    return min(max(left_s, _CROWD_LOOK_S), active.timeouts.look_s)


def _store_intent(draft: DecisionDraft) -> None:
    record = draft.record
    run = record.run
    if run is None or record.status not in tasks.TABLE[SendInput]:
        return
    if record.status in WAITING:
        draft.add(draft.decide(EndWait("the agent is tried again")))
    requested = request(draft.context.peer, run.delivery_mechanism, run.message_id)
    draft.add(draft.decide(SendInput(requested)))
