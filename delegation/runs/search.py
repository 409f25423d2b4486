"""Searches for a send of unknown outcome at the peer before anything is sent again.

Every task of the remote context is listed. A task without a run that shows our message is ours; so is the only
one left in a context made for us, unless another send may have made it. An empty list proves that the message never
arrived only at a peer of known behaviour (``peer_profile``); then the message is sent again, with the same id. If the
outcome stays unknown the run is lost, and so is its turn; what follows is for the retry policy. If the peer itself
ended its answer, and it was none, one look decides, and the run ends with what was wrong.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Final, Literal, TypeAlias, assert_never

from passerelle.a2a_mapping.members import objects_at, text_at
from passerelle.a2a_mapping.send_match import Sent, find_task
from passerelle.core.event_type import EventType
from passerelle.core.events import decode_event
from passerelle.core.frozen import frozen
from passerelle.core.ids import is_own_context
from passerelle.core.peer import Answered, Malformed, RefusedByPeer
from passerelle.core.ports.log import StreamKind, StreamRef
from passerelle.core.task.record import TaskRecord
from passerelle.core.task.status import Status
from passerelle.core.wire.times import parse_ms
from passerelle.delegation.runs.delivery import deliver_again
from passerelle.delegation.runs.draft import find_first
from passerelle.delegation.runs.finish import end_unknown
from passerelle.delegation.runs.peer_calls import cancel_task
from passerelle.delegation.runs.results import apply_results, refuse

if TYPE_CHECKING:
    from passerelle.core.task.record import Attempt
    from passerelle.core.wire.json import JsonObject
    from passerelle.delegation.runs.active_run import ActiveRun

_LISTED_TASKS: Final = 1000
_SHOWN_HISTORY: Final = 5
_PAST_S: Final = 0.01
_CANNOT: Final = frozenset({-32601, -32004})
_GONE: Final = frozenset({HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED})
_BUSY: Final = frozenset({HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE})

SearchResult: TypeAlias = Literal["bound", "absent", "unclear", "away", "refused", "hopeless"]
"""``away``: the peer cannot be reached now. ``refused``: it has answered, and shows no list at this time."""


@frozen
class TaskListing:
    """The tasks of a remote context. ``whole``: the list is complete. ``holds`` keep their memory reserved."""

    tasks: list[JsonObject]
    whole: bool
    holds: list[object]


async def find_send(active: ActiveRun) -> None:
    """Binds the run to the remote task of its send, sends again what never arrived, or ends the run as lost."""
    run = active.run.record.run
    if run is None or run.remote_task_id is not None:
        return
    begun_ms, pause_s, looks = active.deps.clock.now_ms(), active.timeouts.poll_s, 0
    while active.run.record.run is not None and active.remote_task() is None:
        if active.run.is_held():
            return
        verdict = await _search_once(active)
        looks += 1
        if verdict == "bound":
            if active.run.record.status is Status.CANCELLING:
                await cancel_task(active)
            return
        if active.void_answer is not None and verdict != "away":
            await refuse(active, active.void_answer)
            return
        now_ms = active.deps.clock.now_ms()
        # A peer that is unreachable has proved nothing: it gets the liveness limit.
        waits = (
            verdict in {"away", "refused"}
            and now_ms - begun_ms <= active.timeouts.liveness_s * 1000
        )
        left_s = active.timeouts.doubt_s - (now_ms - _find_written_ms(active)) / 1000
        is_over = left_s < 0 and not waits
        again = await active.recall() if verdict == "absent" and is_over else None
        if again is not None:
            if await deliver_again(active, again):
                return
            # The outcome of this send is unknown too, and it gets its own time to arrive.
            pause_s = active.timeouts.poll_s
        elif verdict == "hopeless" or is_over:
            await end_unknown(active, _explain_unknown(verdict, active.peer.name, looks))
            return
        # The last look comes as soon as it can decide.
        await active.rest(pause_s if left_s < 0 else min(pause_s, left_s + _PAST_S))
        pause_s = min(pause_s * 2, active.timeouts.poll_max_s)


def _explain_unknown(verdict: SearchResult, peer: str, looks: int) -> str:
    """What happened, what was checked, and what can be done, for the caller who waits for the answer."""
    match verdict:
        case "hopeless":
            found = "it has no list of tasks to look in"
        case "away" | "refused":
            found = "it could not be asked for its tasks since then"
        case "unclear" | "absent" | "bound":
            times = "once" if looks == 1 else f"{looks} times"
            found = f"its list of tasks, read {times} since then, does not show it"
        case _:
            assert_never(verdict)
    return (
        f"it is unknown whether agent {peer!r} received the message: its answer was lost, and {found}; "
        "the gateway does not send it again. Check at the agent first; if repeating the work is harmless, "
        "send it under another idempotency key, or retry the task"
    )


def _find_written_ms(active: ActiveRun) -> int:
    """The latest time, in ms, at which the send may have begun: the peer's time to receive it starts there.

    A message that was held back is sent after the task has resumed, so the time of the status counts.
    """
    record = active.run.record
    run = record.attempts[-1]
    meant_ms = max(parse_ms(run.intended_at or run.started_at), parse_ms(record.status_at))
    return max(active.find_written_ms(meant_ms), active.sent_ms)


async def _search_once(active: ActiveRun) -> SearchResult:
    """What the peer's list of tasks proves about the send."""
    run = active.run.record.run
    if run is None or run.remote_context_id is None:
        return "hopeless"
    listing = await _list_context(active, run.remote_context_id)
    if not isinstance(listing, TaskListing):
        return listing
    message = find_first(active.run.context.accepted, run)
    records = await _list_records(active)
    bound = {
        attempt.remote_task_id
        for record in records
        for attempt in record.attempts
        if attempt.remote_task_id is not None
    }
    unbound = [task for task in listing.tasks if text_at(task, "id") not in bound]
    is_minted = is_own_context(run.remote_context_id)
    is_alone = is_minted and not _list_rivals(records, run)
    sent = Sent(message or {"messageId": run.message_id}, is_alone, active.key)
    found = find_task(unbound, sent)
    if found is not None:
        if found.rivals:
            reason = f"{found.rivals + 1} tasks of the remote context show the message"
            await active.warn("ambiguous_send", reason)
        await apply_results(active, [{"task": found.task}])
        return "bound"
    if unbound or not listing.whole or not is_alone:
        return "unclear"
    return "absent" if await active.deps.behaviour.proves_absence(run.worker) else "unclear"


async def _list_context(
    active: ActiveRun, context_id: str
) -> TaskListing | Literal["away", "refused", "hopeless"]:
    """Every page of the list; without a filter by time, since the peer's clock is not ours."""
    found: list[JsonObject] = []
    holds: list[object] = []
    token = ""
    while True:
        asked: JsonObject = {
            "contextId": context_id,
            "historyLength": _SHOWN_HISTORY,
            "includeArtifacts": True,
            "pageToken": token,
        }
        outcome = await active.peer.list(asked)
        match outcome:
            case Answered(result=result):
                found += objects_at(result, "tasks")
                holds.append(outcome.hold)
                token = text_at(result, "nextPageToken")
            case RefusedByPeer(code=code, http_status=status) if code in _CANNOT or status in _GONE:
                return "hopeless"
            case RefusedByPeer(http_status=status) if status not in _BUSY:
                return "refused"
            case Malformed():
                return TaskListing([], whole=False, holds=[])
            case _:
                return "away"
        if not token or len(found) > _LISTED_TASKS:
            return TaskListing(found, whole=not token, holds=holds)


def _list_rivals(records: list[TaskRecord], run: Attempt) -> list[Attempt]:
    """Other sends of unknown outcome in the same context."""
    return [
        attempt
        for record in records
        for attempt in record.attempts
        if attempt.run_id != run.run_id
        and attempt.remote_context_id == run.remote_context_id
        and _is_unresolved(attempt)
    ]


def _is_unresolved(attempt: Attempt) -> bool:
    """Whether its send may have made a task without a run; also true if it was given up as lost."""
    over = attempt.ended_at is not None and attempt.status is not Status.LOST
    return attempt.remote_task_id is None and not over and attempt.send_after is None


async def _list_records(active: ActiveRun) -> list[TaskRecord]:
    """Every task of the session: the remote context is shared by the turns of a thread.

    Read from the stream: a task that was given up before callers saw it is in no list.
    """
    writes, session = active.run.writes, active.run.record.session_id
    stream, after = StreamRef(StreamKind.SESSION, session), 0
    names: list[str] = []
    while entries := await writes.log.read_page(stream, after):
        created = (entry for entry in entries if entry.type == EventType.TASK_CREATED)
        names += (decode_event(entry.data).fact.scope.task_id or "" for entry in created)
        after = entries[-1].sequence
    return [*(await writes.read_all(TaskRecord, names)).values()]
