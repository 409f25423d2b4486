"""Signs of life of a peer that says nothing new, as facts: silence is neither progress nor death (AP-6, ST-19).

A peer that is asked and answers the same again lives. That is stored before readers would begin to doubt the task, and
no more often than that needs. Beside a stream the peer is asked for nothing but its life: its words come by the stream.

A task whose stream broke off and that does not move: whoever waits for it is told, and the run is followed on.

Nobody can tell an agent that works in silence from one whose program has raised and left its task as working. So
nothing ends here: callers learn what is known, and get the task as it is (I6). What the agent says later reaches all
who follow.
"""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING

from passerelle.a2a_mapping.content import fold
from passerelle.a2a_mapping.extensions import STATE
from passerelle.a2a_mapping.frames import make_message, status_frame
from passerelle.a2a_mapping.members import object_at, text_at
from passerelle.core import task as tasks
from passerelle.core.events import Fact
from passerelle.core.payloads.run import RunStatus
from passerelle.core.payloads.task import TaskProgress
from passerelle.core.peer import Answered
from passerelle.core.status import WORKING
from passerelle.core.task_commands import ReportProgress
from passerelle.core.times import parse_ms

if TYPE_CHECKING:
    from passerelle.core.json import JsonObject
    from passerelle.core.peer import PeerOutcome
    from passerelle.core.task_record import Attempt, TaskRecord
    from passerelle.delegation.runs.draft import Step
    from passerelle.delegation.runs.driver import ActiveRun


async def note_life(driver: ActiveRun, next_s: float) -> None:
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


async def probe(driver: ActiveRun) -> None:
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


async def _ask_beside(driver: ActiveRun, remote: str) -> PeerOutcome | None:
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


def _is_due(driver: ActiveRun, next_s: float) -> bool:
    """Whether the last sign would be too old by the next look."""
    run, status = driver.run.record.run, driver.run.record.status
    if run is None or status not in WORKING:
        return False
    silent_s = (driver.means.clock.now_ms() - parse_ms(run.last_seen_at)) / 1000
    return silent_s + next_s > driver.patience.heartbeat_s


async def note_break(driver: ActiveRun) -> None:
    """A stream of the run has ended before the run did; what the agent does since then is not known."""
    run = driver.run.record.run
    if run is None or run.remote_task_id is None or not _may_stall(driver.run.record):
        return

    def say(step: Step) -> None:
        live = step.record.run
        if live is not None and live.broken_at is None and _may_stall(step.record):
            step.add([Fact(tasks.scope_of(step.record), RunStatus(broke=True))])

    if run.broken_at is None:
        await driver.patiently(say)


def find_stall_s(driver: ActiveRun) -> float:
    """Seconds until whoever waits is told, endless where nothing broke or they have been told."""
    record = driver.run.record
    run = record.run
    if run is None or run.broken_at is None or run.stalled_at or not _may_stall(record):
        return math.inf
    stood_still_ms = driver.means.clock.now_ms() - parse_ms(run.broken_at)
    return driver.patience.stalled_s - stood_still_ms / 1000


async def tell_stalled(driver: ActiveRun) -> None:
    """Tells whoever waits, once, when the time has come."""
    if find_stall_s(driver) > 0:
        return
    waited_s = driver.patience.stalled_s

    def say(step: Step) -> None:
        live = step.record.run
        if live is None or live.broken_at is None or live.stalled_at or not _may_stall(step.record):
            return
        if step.sight.content is None:
            return
        text = (
            f"the connection to agent {step.sight.peer!r} broke off, and its task has not moved for {waited_s:g} s; "
            "it is followed on"
        )
        frame = _make_frame(step, step.sight.content, text)
        step.sight.content = fold(step.sight.content, frame)
        said = RunStatus(text=text, stalled=True)
        step.add_shown([Fact(tasks.scope_of(step.record), said)], frame)
        step.end_turn("task")

    await driver.patiently(say)


def _may_stall(record: TaskRecord) -> bool:
    return record.status in WORKING and record.withheld is None


def _make_frame(step: Step, content: JsonObject, text: str) -> JsonObject:
    """The status as it was, with words of ours that name the message in whose place they stand."""
    status = object_at(content, "status")
    instead: JsonObject = {
        "stalled": True,
        "messageId": text_at(object_at(status, "message"), "messageId"),
    }
    context_id = step.sight.context_id
    message = make_message(
        step.sight.mint("msg"), step.facade, context_id, [{"text": text}], {STATE: instead}
    )
    return status_frame(step.facade, context_id, {**status, "message": message})
