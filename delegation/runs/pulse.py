"""Signs of life of a peer that says nothing new, as facts: silence is neither progress nor death (AP-6, ST-19).

A peer that is asked and answers the same again lives. That is stored before readers would begin to doubt the task, and
no more often than that needs. Beside a stream the peer is asked for nothing but its life: its words come by the stream.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from passerelle.a2a_mapping.members import object_at, text_at
from passerelle.core.payloads.task import TaskProgress
from passerelle.core.peer import Answered
from passerelle.core.status import WORKING
from passerelle.core.task_commands import ReportProgress
from passerelle.core.times import parse_ms

if TYPE_CHECKING:
    from passerelle.core.peer import PeerOutcome
    from passerelle.core.task_record import Attempt
    from passerelle.delegation.runs.driver import Driver
    from passerelle.delegation.runs.step import Step


async def note_life(driver: Driver, next_s: float) -> None:
    """Stores that the peer has answered and has no news; ``next_s`` is how long the next look takes at most."""
    run = driver.run.record.run
    if run is None or not _is_due(driver, next_s) or driver.proof_ms <= parse_ms(run.last_seen_at):
        return

    def say(step: Step) -> None:
        live = step.record.run
        if live is not None and step.record.status in WORKING:
            beat = TaskProgress(silent_since=live.news_at, followed_by=live.delivery_mechanism)
            step.add(step.tell(ReportProgress(beat)))

    await driver.patiently(say)


async def probe(driver: Driver) -> None:
    """Asks for life beside a stream that is silent. Wakes the driver where the stream has missed something."""
    run = driver.run.record.run
    look_s = driver.patience.look_s
    if run is None or run.remote_task_id is None or not _is_due(driver, look_s):
        return
    outcome = await _ask_beside(driver, run.remote_task_id)
    if outcome is None:
        return
    if not (isinstance(outcome, Answered) and _is_same(run, outcome)):
        driver.wake()
        return
    driver.proof_ms = driver.means.clock.now_ms()
    await note_life(driver, look_s)


async def _ask_beside(driver: Driver, remote: str) -> PeerOutcome | None:
    """The peer's answer; None when the stream has spoken first."""
    asking = asyncio.create_task(driver.peer.get(remote))
    stirring = asyncio.create_task(driver.stir.wait())
    try:
        await asyncio.wait({asking, stirring}, return_when=asyncio.FIRST_COMPLETED)
        return asking.result() if asking.done() else None
    finally:
        for task in (asking, stirring):
            task.cancel()
        await asyncio.gather(asking, stirring, return_exceptions=True)


def _is_same(run: Attempt, outcome: Answered) -> bool:
    return text_at(object_at(outcome.result, "status"), "state") == run.native_status


def _is_due(driver: Driver, next_s: float) -> bool:
    """Whether the last sign would be too old by the next look."""
    run, status = driver.run.record.run, driver.run.record.status
    if run is None or status not in WORKING:
        return False
    silent_s = (driver.means.clock.now_ms() - parse_ms(run.last_seen_at)) / 1000
    return silent_s + next_s > driver.patience.heartbeat_s
