"""Frames of a peer's stream, as they come: several in one append, and never further ahead than the store can take.

A stream that ends says nothing about the task (I6).
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING, Final, assert_never

from passerelle.core.approval_record import ActionRecord
from passerelle.core.errors import StoreUnavailable
from passerelle.core.peer import Answered, Closed, Malformed, Refused, Unknown, Unreached
from passerelle.gateway.delegation.pulse import probe
from passerelle.gateway.delegation.taking import resurrect, take

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from passerelle.core.peer import StreamOutcome
    from passerelle.gateway.delegation.driver import Driver

_FRAMES_AT_ONCE: Final = 16
"""Frames of one append, so that it stays below the 64 events of a batch."""
_BUFFERED_FRAMES: Final = 256
"""Frames read ahead of the store; then reading stops, and the peer feels it."""


async def follow(driver: Driver, outcomes: AsyncGenerator[StreamOutcome, None]) -> StreamOutcome:
    """Takes the frames of a stream to its end; its last outcome, ``Closed`` where it was left from here.

    Whoever wakes the driver ends the stream: a peer may keep it open while it waits for an answer of ours, and two
    streams of one task would say everything twice.
    """
    frames: asyncio.Queue[StreamOutcome] = asyncio.Queue(_BUFFERED_FRAMES)
    reader = asyncio.create_task(_read(driver, outcomes, frames))
    driver.is_streaming = True
    try:
        while await _await_frame(driver, frames) and not driver.run.has_ended():
            batch = _collect(frames)
            results = [outcome.result for outcome in batch if isinstance(outcome, Answered)]
            if results:
                await take(driver, results)
                _tell_stored(batch)
                await resurrect(driver)
            if not isinstance(batch[-1], Answered):
                return batch[-1]
            if driver.run.record.withheld is not None:
                break
    finally:
        driver.is_streaming = False
        reader.cancel()
        await asyncio.gather(reader, return_exceptions=True)
    return Closed()


async def judge_end(driver: Driver, last: StreamOutcome) -> bool:
    """Whether the peer is known to have the message whose stream has ended so; says what was wrong with it."""
    knows = driver.remote_task() is not None or driver.run.has_ended()
    match last:
        case Malformed(reason=reason):
            await driver.warn("malformed_frame", reason)
        case Closed() | Unknown() | Answered() | Refused() | Unreached():
            pass
        case _:
            assert_never(last)
    return knows


async def _await_frame(driver: Driver, frames: asyncio.Queue[StreamOutcome]) -> bool:
    """Whether a frame came, and not somebody who wants the driver to look up."""
    while True:
        if driver.run.is_held() and driver.remote_task() is not None:
            return False
        if not frames.empty():
            return True
        driver.stir.clear()
        if driver.run.has_ended() or (driver.is_woken and driver.remote_task() is not None):
            return False
        try:
            async with asyncio.timeout(min(driver.patience.look_s, max(driver.find_owed_s(), 0.0))):
                await driver.stir.wait()
        except TimeoutError:
            if driver.find_owed_s() <= 0:
                driver.wake()
            else:
                await _look_around(driver)


async def _look_around(driver: Driver) -> None:
    """Another instance may have taken an answer, or ended the task: what it told us may be lost."""
    try:
        await driver.run.refresh()
    except StoreUnavailable:
        return
    if any(
        isinstance(held.record, ActionRecord) and held.record.return_state == "owed"
        for held in driver.run.held.values()
    ):
        driver.wake()
    await probe(driver)


async def _read(
    driver: Driver,
    outcomes: AsyncGenerator[StreamOutcome, None],
    frames: asyncio.Queue[StreamOutcome],
) -> None:
    last: StreamOutcome = Answered({})
    try:
        async with aclosing(outcomes) as open_stream:
            async for outcome in open_stream:
                last = outcome
                await frames.put(outcome)
                driver.stir.set()
    except Exception:
        # Whoever follows waits for a last outcome, and has to get one.
        driver.means.log.exception("stream.broken", task=driver.run.record.task_id)
        last = Answered({})
    if isinstance(last, Answered):
        await frames.put(Closed())
        driver.stir.set()


def _tell_stored(batch: list[StreamOutcome]) -> None:
    for outcome in batch:
        if isinstance(outcome, Answered) and outcome.on_stored is not None:
            outcome.on_stored()


def _collect(frames: asyncio.Queue[StreamOutcome]) -> list[StreamOutcome]:
    """The frames that are there, at least one: what arrives within one round trip shares an append."""
    batch = [frames.get_nowait()]
    while len(batch) < _FRAMES_AT_ONCE and isinstance(batch[-1], Answered) and not frames.empty():
        batch.append(frames.get_nowait())
    return batch
