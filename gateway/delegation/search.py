"""A send of unknown outcome is looked for at the peer; nothing is sent again from here.

The remote context is ours alone, so a task in it that no run of the thread has is the one, unless another send of
unknown outcome may have made it; our message in a history proves it, and its absence proves nothing, since an agent
may keep none. Nothing found within the time that a request may take means that nobody can tell: the run is lost, and
so is its turn.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from passerelle.a2a_mapping.members import objects_at, text_at
from passerelle.core.batch import EntityKind, EntityRef
from passerelle.core.event_type import EventType
from passerelle.core.events import decode_event
from passerelle.core.facts import ErrorCategory, Failure
from passerelle.core.peer import Answered, Unknown, Unreached
from passerelle.core.ports import StreamKind, StreamRef
from passerelle.core.status import Status
from passerelle.core.task_record import TaskRecord
from passerelle.core.times import parse_ms
from passerelle.gateway.delegation.endings import fail

if TYPE_CHECKING:
    from passerelle.core.json import JsonObject
    from passerelle.core.task_record import Attempt
    from passerelle.gateway.delegation.driver import Driver

_LISTED_TASKS: Final = 1000
_SHOWN_HISTORY: Final = 5


async def find_send(driver: Driver) -> None:
    """Binds the run to the remote task that its send made, or ends it as lost."""
    run = driver.run.record.run
    if run is None or run.remote_task_id is not None:
        return
    started_ms, begun_ms = parse_ms(run.started_at), driver.clock.now_ms()
    pause = driver.patience.poll_s
    while driver.run.record.run is not None and driver.remote_task() is None:
        listed = await _list_context(driver, run.remote_context_id)
        if listed and await _bind(driver, listed):
            return
        now_ms = driver.clock.now_ms()
        # A peer that is away has said nothing: it has the time that a peer may be out of reach.
        is_away = listed is None and now_ms - begun_ms <= driver.patience.liveness_s * 1000
        if now_ms - started_ms > driver.patience.doubt_s * 1000 and not is_away:
            reason = "nobody can tell whether the agent received the message"
            lost = Failure("lost", ErrorCategory.TRANSPORT, reason, source=driver.peer.name)
            await fail(driver, lost)
            return
        await asyncio.sleep(pause)
        pause = min(pause * 2, driver.patience.poll_max_s)


async def _list_context(driver: Driver, context_id: str | None) -> list[JsonObject] | None:
    """Every task of the remote context; none when the peer does not list, None when it did not answer."""
    found: list[JsonObject] = []
    token = ""
    while True:
        asked: JsonObject = {
            "contextId": context_id,
            "historyLength": _SHOWN_HISTORY,
            "includeArtifacts": True,
            "pageToken": token,
        }
        outcome = await driver.peer.list(asked)
        if isinstance(outcome, Unreached | Unknown):
            return None
        if not isinstance(outcome, Answered):
            return []
        found += objects_at(outcome.result, "tasks")
        token = text_at(outcome.result, "nextPageToken")
        if not token or len(found) > _LISTED_TASKS:
            return found


async def _bind(driver: Driver, listed: list[JsonObject]) -> bool:
    """Whether one of the listed tasks is ours."""
    records = await _list_records(driver)
    bound = {
        attempt.remote_task_id
        for record in records
        for attempt in record.attempts
        if attempt.remote_task_id is not None
    }
    unbound = [task for task in listed if text_at(task, "id") not in bound]
    run = driver.run.record.attempts[-1]
    rivals = [
        attempt
        for record in records
        if record.task_id != driver.run.record.task_id
        for attempt in record.attempts
        if attempt.remote_context_id == run.remote_context_id and _is_unresolved(attempt)
    ]
    match = _choose(unbound, run.message_id, alone=not rivals)
    if match is None:
        return False
    if len(unbound) > 1:
        await driver.warn("ambiguous_send", f"{len(unbound)} tasks stand in the remote context")
    await driver.take([{"task": match}])
    return True


def _is_unresolved(attempt: Attempt) -> bool:
    """Whether its send may have made a task that nobody has bound: also one that was given up as lost."""
    over = attempt.ended_at is not None and attempt.status is not Status.LOST
    return attempt.remote_task_id is None and not over


async def _list_records(driver: Driver) -> list[TaskRecord]:
    """Every task of the session: the remote context is shared by the turns of a thread.

    Read from the stream: a task that was given up before callers saw it stands in no list.
    """
    writes, session = driver.run.writes, driver.run.record.session_id
    stream, after = StreamRef(StreamKind.SESSION, session), 0
    refs: list[EntityRef] = []
    while entries := await writes.log.read_page(stream, after):
        for entry in entries:
            if entry.type == EventType.TASK_CREATED:
                task_id = decode_event(entry.data).fact.scope.task_id
                refs.append(EntityRef(EntityKind.TASK, task_id or ""))
        after = entries[-1].sequence
    held = await writes.load(refs)
    return [one.record for one in held.values() if isinstance(one.record, TaskRecord)]


def _choose(found: list[JsonObject], message_id: str, *, alone: bool) -> JsonObject | None:
    """The task whose history has our message, else the newest one; none where another send may have made it.

    ``alone``: no other send of unknown outcome went into the context.
    """
    for task in found:
        if any(text_at(item, "messageId") == message_id for item in objects_at(task, "history")):
            return task
    return found[0] if found and alone else None
