"""Takes the frames of a peer's stream: several in one append, and no further ahead than the buffer allows.

A stream that ends proves nothing about the task (I6). A stream over its rate is read slower: the connection fills up,
and the agent waits. A run with a high volume takes turns with other such runs. Pieces of an artifact that come close
together wait for a moment and are stored together.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, Final, assert_never

from passerelle.core.approval.record import ActionRecord
from passerelle.core.errors import StoreUnavailable
from passerelle.core.peer import Answered, Closed, Malformed, RefusedByPeer, Unknown, Unreached
from passerelle.delegation.runs.agent_errors import (
    add_words,
    end_after_error,
    fails_without_words,
)
from passerelle.delegation.runs.failure import explain
from passerelle.delegation.runs.frame_buffer import FrameBuffer
from passerelle.delegation.runs.liveness import find_left_s, note_break, probe, report_stall
from passerelle.delegation.runs.results import apply_results, revive_lost
from passerelle.delegation.runs.volume import measure_frame
from passerelle.protocol.concurrency import cancel_all

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from passerelle.core.peer import StreamOutcome
    from passerelle.core.wire.json import JsonObject
    from passerelle.delegation.runs.active_run import ActiveRun

_AT_ONCE: Final = (16, 262_144)
"""Frames per append, which keeps it below the 64 events of a batch; and bytes of their content, or one frame."""
_IN_TURN: Final = (8, 65_536)
"""Smaller batches of a run with a high volume while other such runs wait, since everything else waits for them."""
_ERROR_S: Final = 0.25
"""How long a failed task waits for the error that its agent raises at the same moment."""
_SHORTEST_REST_S: Final = 0.02
"""A reader pauses only when its run is over its rate by this much: a timer per event would cost more than the event."""


async def follow_stream(
    active: ActiveRun, outcomes: AsyncGenerator[StreamOutcome, None]
) -> StreamOutcome:
    """Takes the frames of a stream to its end; returns its last outcome, ``Closed`` if it was left from here.

    A wake-up ends the stream: a peer may keep it open while it waits for our answer, and two streams of one task
    would repeat everything.
    """
    frames = FrameBuffer()
    reader = asyncio.create_task(_read(active, outcomes, frames))
    active.is_streaming, active.was_left, began, is_behind = True, False, False, False
    now_s, stored_s = asyncio.get_running_loop().time, 0.0
    try:
        while await _await_frame(active, frames) and not active.run.has_ended():
            if not is_behind:
                await _gather_chunks(active, frames, stored_s)
            batch, size = frames.collect(
                *(await _await_turn(active, frames, is_behind=is_behind) if began else _AT_ONCE)
            )
            is_behind = len(frames) > 0
            results = [outcome.result for outcome in batch if isinstance(outcome, Answered)]
            last = batch[-1]
            if results:
                last = await _store(active, results, frames, last)
                _count(active, len(results), size)
                _confirm_stored(batch)
                await revive_lost(active)
                stored_s = now_s()
            began = began or bool(results)
            if not isinstance(last, Answered):
                active.was_left = True
                if began:
                    await _judge_break(active, last)
                return last
            # They are stored: do not keep them in memory while waiting for the next ones.
            del last, batch, results
            if active.run.record.withheld is not None:
                break
    finally:
        active.is_streaming = False
        await cancel_all([reader])
    return Closed()


async def _store(
    active: ActiveRun, results: list[JsonObject], frames: FrameBuffer, last: StreamOutcome
) -> StreamOutcome:
    """Stores the frames of a batch; returns its last outcome, or the one after it.

    A task that fails without a message gets the words of the error that follows in its stream: agents report their
    failure so before they raise.
    """
    if not fails_without_words(results[-1]):
        await apply_results(active, results)
        return last
    if len(results) > 1:
        await apply_results(active, results[:-1])
    if isinstance(last, Answered):
        last = await _await_error(active, frames) or last
    failed = results[-1]
    if isinstance(last, RefusedByPeer):
        failure = explain(last, active.run.context, active.run.record).failure
        failed = add_words(active, failed, failure)
    await apply_results(active, [failed])
    return last


async def _await_error(active: ActiveRun, frames: FrameBuffer) -> StreamOutcome | None:
    """The next outcome of a stream whose task has failed; None if none comes in time."""
    with suppress(TimeoutError):
        async with asyncio.timeout(_ERROR_S):
            while len(frames) == 0:
                active.activity.clear()
                await active.activity.wait()
            return frames.collect(1, 0)[0][0]
    return None


async def _judge_break(active: ActiveRun, last: StreamOutcome) -> None:
    """Handles the end of a stream that had begun, by an error of the agent or otherwise; its run may end, too."""
    if isinstance(last, RefusedByPeer):
        await end_after_error(active, last)
    elif not active.run.is_parked():
        await note_break(active)


async def judge_end(active: ActiveRun, last: StreamOutcome) -> bool:
    """Whether the peer certainly has the message of an ended stream; records what was wrong with the stream."""
    match last:
        case Malformed(reason=reason):
            await active.warn("malformed_frame", reason)
        case Closed() | Unknown() | Answered() | RefusedByPeer() | Unreached():
            pass
        case _:
            assert_never(last)
    return is_answered(active)


def is_answered(active: ActiveRun) -> bool:
    """Whether the peer has answered with its task, or with all that it says."""
    # A bare Message that waits for the parent's update names no task of the agent.
    is_over = active.run.has_ended() or active.run.record.withheld is not None
    return active.remote_task() is not None or is_over


async def _await_frame(active: ActiveRun, frames: FrameBuffer) -> bool:
    """Waits for a frame; False for a wake-up that the driver has to handle first."""
    while True:
        if active.run.is_held() and active.remote_task() is not None:
            return False
        if active.is_woken and active.remote_task() is not None:
            # Otherwise an agent that sends without a pause would delay a cancel for ever.
            frames.is_closed = True
        if len(frames) > 0:
            return True
        active.activity.clear()
        if active.run.has_ended() or (active.is_woken and active.remote_task() is not None):
            return False
        due_s, left_s = active.find_due_s(), find_left_s(active)
        try:
            async with asyncio.timeout(min(active.timeouts.look_s, max(min(due_s, left_s), 0.0))):
                await active.activity.wait()
        except TimeoutError:
            if find_left_s(active) <= 0:
                await report_stall(active)
            elif active.find_due_s() <= 0:
                active.wake()
            else:
                await _check_store(active)


async def _gather_chunks(active: ActiveRun, frames: FrameBuffer, stored_s: float) -> None:
    """Waits up to the chunk delay for further pieces, if these came within twice the delay after the last append."""
    delay_s = active.run.context.limits.chunk_delay_ms / 1000
    is_near = asyncio.get_running_loop().time() - stored_s < 2 * delay_s
    if not is_near or not frames.has_only_chunks():
        return
    with suppress(TimeoutError):
        async with asyncio.timeout(delay_s):
            while not active.is_woken and _has_room(frames) and frames.has_only_chunks():
                active.activity.clear()
                await active.activity.wait()


def _has_room(frames: FrameBuffer) -> bool:
    """Whether more frames fit into one append."""
    most, most_bytes = _AT_ONCE
    return len(frames) < most and frames.size < most_bytes


async def _await_turn(
    active: ActiveRun, frames: FrameBuffer, *, is_behind: bool
) -> tuple[int, int]:
    """How many frames, and bytes, may be taken now. A light run, or one that is to be left, does not wait.

    A run with more bytes than one append holds takes its turn even if all callers are heavy: several such runs at once
    would keep all of it in memory.
    """
    turns = active.deps.scheduler
    if active.is_woken:
        return _AT_ONCE
    now_s = asyncio.get_running_loop().time()
    is_heavy = is_behind or turns.sums.is_heavy(active.owner, now_s)
    is_small = frames.size <= _AT_ONCE[1]
    if not is_heavy or (is_small and turns.sums.has_no_light_callers(active.owner, now_s)):
        return _AT_ONCE
    await turns.take(active.owner, active.peer.name)
    return _IN_TURN if turns.waiting else _AT_ONCE


def _count(active: ActiveRun, events: int, size: int) -> None:
    """Counts what a run has brought, for its caller; not after the run has ended."""
    if not active.run.has_ended():
        now_s = asyncio.get_running_loop().time()
        active.deps.scheduler.sums.count(active.owner, events, size, now_s)


async def _check_store(active: ActiveRun) -> None:
    """Reads the store: another instance may have stored an answer or an end, and its signal may be lost."""
    try:
        await active.run.refresh()
    except StoreUnavailable:
        return
    if any(
        isinstance(held.record, ActionRecord) and held.record.return_state == "owed"
        for held in active.run.held.values()
    ):
        active.wake()
    if not active.is_throttled:
        # Without reading, the driver cannot conclude that the peer is silent.
        await probe(active)


async def _read(
    active: ActiveRun,
    outcomes: AsyncGenerator[StreamOutcome, None],
    frames: FrameBuffer,
) -> None:
    is_over, activity, rate = False, active.activity, active.rate
    end: StreamOutcome = Closed()
    loop = asyncio.get_running_loop()
    try:
        async with aclosing(outcomes) as open_stream:
            async for outcome in open_stream:
                is_over = not isinstance(outcome, Answered)
                size = measure_frame(outcome.result) if isinstance(outcome, Answered) else 0
                await frames.put(outcome, size)
                del outcome
                activity.set()
                if active.counts_content(frames.size):
                    await _hold_content(active, frames.size)
                now_s = loop.time()
                rate.count(1, size, now_s)
                wait_s = rate.find_wait_s(now_s)
                if wait_s >= _SHORTEST_REST_S:
                    await _throttle(active, wait_s)
    except Exception:
        # The follower waits for a last outcome, and has to get one.
        active.deps.log.exception("stream.broken", task=active.run.record.task_id)
        is_over, end = False, Unknown("the gateway could not read the stream on")
    if not is_over:
        await frames.put(end)
        active.activity.set()


async def _hold_content(active: ActiveRun, ahead: int) -> None:
    """Waits after a frame until more memory may be used. Reading is paused, so the idle limit is paused too."""
    active.is_throttled = True
    try:
        await active.hold_content(ahead)
    finally:
        active.is_throttled = False


async def _throttle(active: ActiveRun, wait_s: float) -> None:
    """Waits until the rate of the run allows more; logged once."""
    if not active.was_throttled:
        limits = active.run.context.limits
        active.deps.log.warning(
            "stream.slowed",
            task=active.run.record.task_id,
            agent=active.peer.name,
            events_per_s=limits.events_per_s,
            bytes_per_s=limits.bytes_per_s,
        )
    active.is_throttled = active.was_throttled = True
    try:
        await asyncio.sleep(wait_s)
    finally:
        active.is_throttled = False


def _confirm_stored(batch: list[StreamOutcome]) -> None:
    for outcome in batch:
        if isinstance(outcome, Answered) and outcome.on_stored is not None:
            outcome.on_stored()
