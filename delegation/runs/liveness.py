"""Signs of life of a silent peer, and stalled tasks: silence is neither progress nor death (AP-6, ST-19).

A peer that answers the same again is alive. That is stored before readers would begin to doubt the task, and not
more often. During a stream the peer is polled only for life: its updates come by the stream.

A task whose stream broke and that does not change may be running, or its program may have raised and left it as
working: that is unknown. So nothing ends here: callers get the status and the task as it is, and the run is followed
further (I6). Later updates of the agent reach all followers. The same holds for a task that its agent has left at work
with its answer, or with the end of its stream: without the gateway its caller would have had that answer.
"""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING

from passerelle.a2a_mapping.content import fold
from passerelle.a2a_mapping.extensions import STATE
from passerelle.a2a_mapping.frames import make_message, status_frame
from passerelle.a2a_mapping.members import object_at, text_at
from passerelle.a2a_mapping.states import UNKNOWN_STATE, map_peer_state
from passerelle.core.events import Fact
from passerelle.core.payloads.run import RunStatus
from passerelle.core.payloads.task import TaskProgress
from passerelle.core.peer import Answered, Closed
from passerelle.core.task import machine as tasks
from passerelle.core.task.commands import ReportProgress
from passerelle.core.task.status import WORKING
from passerelle.core.wire.times import parse_ms
from passerelle.protocol.concurrency import cancel_all

if TYPE_CHECKING:
    from passerelle.core.peer import PeerOutcome, StreamOutcome
    from passerelle.core.task.record import Attempt, TaskRecord
    from passerelle.core.wire.json import JsonObject
    from passerelle.delegation.runs.active_run import ActiveRun
    from passerelle.delegation.runs.draft import DecisionDraft


async def note_life(active: ActiveRun, next_s: float) -> None:
    """Stores that the peer has answered without news; ``next_s`` is the longest time until the next poll."""
    run = active.run.record.run
    if run is None or not _is_due(active, next_s) or active.proof_ms <= parse_ms(run.last_seen_at):
        return

    def add_facts(draft: DecisionDraft) -> None:
        live = draft.record.run
        if live is not None and draft.record.status in WORKING:
            beat = TaskProgress(silent_since=live.news_at, followed_by=live.delivery_mechanism)
            draft.add(draft.decide(ReportProgress(beat)))

    await active.append(add_facts)


async def probe(active: ActiveRun) -> None:
    """Polls for life during a silent stream. Wakes the driver if the stream has missed something."""
    run = active.run.record.run
    look_s = active.timeouts.look_s
    if run is None or run.remote_task_id is None or not _is_due(active, look_s):
        return
    outcome = await _poll_during_stream(active, run.remote_task_id)
    if outcome is None:
        return
    if not (isinstance(outcome, Answered) and _is_same(run, outcome)):
        active.wake()
        return
    active.proof_ms = active.deps.clock.now_ms()
    await note_life(active, look_s)


async def _poll_during_stream(active: ActiveRun, remote: str) -> PeerOutcome | None:
    """The peer's answer; None if a frame of the stream came first."""
    asking = asyncio.create_task(active.peer.get(remote))
    stirring = asyncio.create_task(active.activity.wait())
    try:
        await asyncio.wait({asking, stirring}, return_when=asyncio.FIRST_COMPLETED)
        return asking.result() if asking.done() else None
    finally:
        await cancel_all((asking, stirring))


def _is_same(run: Attempt, outcome: Answered) -> bool:
    return text_at(object_at(outcome.result, "status"), "state") == run.native_status


def _is_due(active: ActiveRun, next_s: float) -> bool:
    """Whether the last sign of life would be too old by the next poll."""
    run, status = active.run.record.run, active.run.record.status
    if run is None or status not in WORKING:
        return False
    silent_s = (active.deps.clock.now_ms() - parse_ms(run.last_seen_at)) / 1000
    return silent_s + next_s > active.timeouts.heartbeat_s


async def note_break(active: ActiveRun) -> None:
    """A stream has ended before its run; what the agent does since then is unknown."""
    run = active.run.record.run
    if run is None or run.remote_task_id is None or not _may_stall(active.run.record):
        return

    def add_facts(draft: DecisionDraft) -> None:
        live = draft.record.run
        if live is not None and live.broken_at is None and _may_stall(draft.record):
            draft.note(RunStatus(broke=True))

    if run.broken_at is None:
        await active.append(add_facts)


def note_left(active: ActiveRun, sent: JsonObject, last: StreamOutcome) -> None:
    """Notes whether the peer has ended its answer to a request of a caller who waits; its task may have ended, too.

    ``last`` is the outcome of the request, or the last one of its stream.
    """
    at_once = object_at(sent, "configuration").get("returnImmediately") is True
    if isinstance(last, Answered | Closed) and not at_once:
        active.left_ms = active.deps.clock.now_ms()


def find_stall_s(active: ActiveRun) -> float:
    """Seconds until waiting callers are notified, infinite where nothing broke or they were notified."""
    record = active.run.record
    run = record.run
    if run is None or run.broken_at is None or run.stalled_at or not _may_stall(record):
        return find_left_s(active)
    stood_still_ms = active.deps.clock.now_ms() - parse_ms(run.broken_at)
    return min(active.timeouts.stalled_s - stood_still_ms / 1000, find_left_s(active))


def find_left_s(active: ActiveRun) -> float:
    """The same for a peer that has left its task at work, infinite where it has not, or where nobody waits."""
    record = active.run.record
    run = record.run
    if not active.left_ms or run is None or run.stalled_at or not _may_stall(record):
        return math.inf
    if not record.open_turns or run.remote_task_id is None:
        return math.inf
    since_ms = max(active.left_ms, parse_ms(run.news_at))
    return active.timeouts.stalled_s - (active.deps.clock.now_ms() - since_ms) / 1000


async def report_stall(active: ActiveRun) -> None:
    """Notifies waiting callers, once, when the task has been stalled long enough."""
    if find_stall_s(active) > 0:
        return
    waited_s = active.timeouts.stalled_s

    def add_facts(draft: DecisionDraft) -> None:
        live = draft.record.run
        if live is None or live.stalled_at or not _may_stall(draft.record):
            return
        if draft.context.content is None or (live.broken_at is None and not active.left_ms):
            return
        cause = (
            f"agent {draft.context.peer!r} {_explain_left(live)}"
            if active.left_ms
            else f"the connection to agent {draft.context.peer!r} broke"
        )
        follows = "following" if active.left_ms else "polling"
        text = f"{cause}, and its task has not changed for {waited_s:g} s; the gateway keeps {follows} it"
        frame = _make_frame(draft, draft.context.content, text)
        draft.context.content = fold(draft.context.content, frame)
        status = RunStatus(text=text, stalled=True)
        draft.add_shown([Fact(tasks.scope_of(draft.record), status)], frame)
        draft.end_turn("task")

    await active.append(add_facts)
    active.left_ms = 0


def _explain_left(run: Attempt) -> str:
    if map_peer_state(run.native_status or "") is UNKNOWN_STATE:
        return "has left its task in a state that A2A does not have"
    return "has answered with a task that is at work"


def _may_stall(record: TaskRecord) -> bool:
    return record.status in WORKING and record.withheld is None


def _make_frame(draft: DecisionDraft, content: JsonObject, text: str) -> JsonObject:
    """The present status with a message of the gateway, which names the message that it replaces."""
    status = object_at(content, "status")
    instead: JsonObject = {
        "stalled": True,
        "messageId": text_at(object_at(status, "message"), "messageId"),
    }
    context_id = draft.context.context_id
    message = make_message(
        draft.context.mint("msg"), draft.facade, context_id, [{"text": text}], {STATE: instead}
    )
    return status_frame(draft.facade, context_id, {**status, "message": message})
