"""Scenarios that lead a task into each status, by commands, real agents and time. Each returns its task."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from passerelle.a2a_mapping.extensions import PERMISSION
from passerelle.core.event_type import EventType
from passerelle.core.facts import RetryPolicy
from passerelle.core.read_models.task import QUIET_MS
from passerelle.core.task.status import Status
from passerelle.core.wire.json import JsonObject
from tests.support.desk import Desk
from tests.support.scripted_peer import HttpAnswer
from tests.support.scripted_tasks import Turn
from tests.support.waiting import wait_until

Run = Callable[[Desk], Awaitable[str]]


@dataclass(frozen=True, slots=True)
class Scenario:
    """Runs into a status; ``emits`` are the task events that the stream then holds."""

    run: Run
    emits: frozenset[EventType]


def emits(*types: EventType) -> frozenset[EventType]:
    return frozenset({EventType.TASK_CREATED, *types})


async def is_known(desk: Desk, task_id: str) -> None:
    """Waits until the agent's task is bound to the run."""

    async def look() -> bool:
        run = (await desk.record(task_id)).run
        return run is not None and run.remote_task_id is not None

    await wait_until(look, 15, "the agent's task is known")


async def draft(desk: Desk) -> str:
    return await desk.create(draft=True)


async def accepted(desk: Desk) -> str:
    task_id = await desk.create()
    await desk.do("update_task", taskId=task_id, title="another")
    return task_id


async def parent(desk: Desk) -> str:
    """Also accepted: a parent that has delegated a part of its work."""
    task_id = await desk.create()
    session_id = (await desk.record(task_id)).session_id
    await desk.create("a part of it", parentTaskId=task_id, sessionId=session_id)
    return task_id


async def queued(desk: Desk) -> str:
    """The agent has the task and has not started it."""
    return await desk.start("silent")


async def preparing(desk: Desk) -> str:
    """The agent's card is being read, slowly."""
    task_id = await desk.create()
    desk.hold_card()
    begun = asyncio.create_task(desk.do("start_task", taskId=task_id))
    await desk.until(task_id, Status.PREPARING)
    begun.cancel()  # The caller leaves; the command is still completed.
    return task_id


async def running(desk: Desk) -> str:
    async def work(turn: Turn) -> None:
        await turn.status("WORKING", "I am at it")

    desk.house.peer.next(work)
    return await desk.start()


async def waiting_input(desk: Desk) -> str:
    return await desk.start("ask which one")


async def ask_leave(turn: Turn) -> None:
    """An agent that requests permission, in the gateway's own dialect."""
    form: JsonObject = {
        "action_id": "native-1",
        "rev": 1,
        "digest": "sha256:00",
        "kind": "permission",
        "title": "Pay",
        "subject": {"type": "tool_call", "name": "pay"},
        "options": [
            {"option_id": "yes", "name": "Allow", "kind": "allow_once"},
            {"option_id": "no", "name": "Reject", "kind": "reject_once"},
        ],
        "risk": "high",
    }

    await turn.status("AUTH_REQUIRED", "May I pay?", [{"data": {PERMISSION: form}}])


async def waiting_permission(desk: Desk) -> str:
    desk.house.peer.next(ask_leave)
    return await desk.start()


async def waiting_credential(desk: Desk) -> str:
    return await desk.start("auth the account")


async def waiting_resource(desk: Desk) -> str:
    """The agent is busy."""
    desk.house.peer.answer_next(HttpAnswer(429, headers={"Retry-After": "60"}))
    return await desk.start()


async def blocked(desk: Desk) -> str:
    first, second = await desk.create("first"), await desk.create("second")
    await desk.do("link_tasks", taskId=second, kind="blocked_by", target=first)
    return second


async def paused(desk: Desk) -> str:
    task_id = await desk.start("silent")
    await is_known(desk, task_id)
    await desk.do("pause_task", taskId=task_id)
    return task_id


async def retrying(desk: Desk) -> str:
    """The agent has failed once; a retry is scheduled."""
    desk.house.policy = RetryPolicy(attempts=2, backoff_ms=60_000, backoff_max_ms=60_000)
    return await desk.start("fail at it")


async def cancelling(desk: Desk) -> str:
    """The agent receives the cancel and continues."""
    desk.house.peer.on_cancel = "ignored"
    task_id = await desk.start("silent")
    await is_known(desk, task_id)
    await desk.do("cancel_task", taskId=task_id)
    return task_id


async def cancelled(desk: Desk) -> str:
    task_id = await desk.start("silent")
    await is_known(desk, task_id)
    await desk.do("cancel_task", taskId=task_id)
    return task_id


async def timed_out(desk: Desk) -> str:
    desk.house.policy = RetryPolicy(total_timeout_ms=60_000)
    task_id = await desk.start("silent")
    await is_known(desk, task_id)
    await desk.house.come_due("timeout", task_id, after_ms=60_000)
    return task_id


async def failed(desk: Desk) -> str:
    return await desk.start("fail at it")


async def lost(desk: Desk) -> str:
    task_id = await desk.start("silent")
    await is_known(desk, task_id)
    await desk.house.peer.stop()
    desk.house.clock.ahead_ms += 1_000
    return task_id


async def completed(desk: Desk) -> str:
    """Completed after a pause."""
    task_id = await desk.create()
    await desk.do("pause_task", taskId=task_id)
    await desk.do("resume_task", taskId=task_id)
    await desk.do("start_task", "s", taskId=task_id)
    return task_id


async def stale(desk: Desk) -> str:
    """The agent has been silent for longer than its recorded status stays valid."""
    task_id = await queued(desk)
    await is_known(desk, task_id)
    desk.house.clock.ahead_ms += QUIET_MS + 1_000
    return task_id


async def unknown(desk: Desk) -> str:
    """The agent reports a status that the gateway does not know."""

    async def dream(turn: Turn) -> None:
        await turn.status("TASK_STATE_DREAMING")

    desk.house.peer.next(dream)
    return await desk.start()


_E = EventType
_BEGUN: Final = (_E.TASK_ACCEPTED, _E.TASK_ATTEMPT_STARTED, _E.TASK_STARTED)

SCENARIOS: Final[dict[Status, Scenario]] = {
    Status.DRAFT: Scenario(draft, emits()),
    Status.ACCEPTED: Scenario(accepted, emits(_E.TASK_ACCEPTED, _E.TASK_UPDATED)),
    Status.QUEUED: Scenario(queued, emits(*_BEGUN, _E.TASK_QUEUED)),
    Status.PREPARING: Scenario(preparing, emits(_E.TASK_ACCEPTED, _E.TASK_PROGRESS)),
    Status.RUNNING: Scenario(running, emits(*_BEGUN, _E.TASK_PROGRESS)),
    Status.WAITING_INPUT: Scenario(waiting_input, emits(*_BEGUN, _E.TASK_WAITING)),
    Status.WAITING_PERMISSION: Scenario(waiting_permission, emits(*_BEGUN, _E.TASK_WAITING)),
    Status.WAITING_RESOURCE: Scenario(waiting_resource, emits(*_BEGUN, _E.TASK_WAITING)),
    Status.BLOCKED: Scenario(blocked, emits(_E.TASK_DEPENDENCY_UPDATED, _E.TASK_BLOCKED)),
    Status.PAUSED: Scenario(paused, emits(*_BEGUN, _E.TASK_PAUSED)),
    Status.RETRYING: Scenario(retrying, emits(*_BEGUN, _E.TASK_ATTEMPT_FAILED, _E.TASK_RETRYING)),
    Status.CANCELLING: Scenario(cancelling, emits(*_BEGUN, _E.TASK_CANCEL_REQUESTED)),
    Status.CANCELLED: Scenario(
        cancelled, emits(*_BEGUN, _E.TASK_CANCEL_REQUESTED, _E.TASK_CANCELLED)
    ),
    Status.TIMED_OUT: Scenario(
        timed_out, emits(*_BEGUN, _E.TASK_ATTEMPT_FAILED, _E.TASK_TIMED_OUT)
    ),
    Status.FAILED: Scenario(failed, emits(*_BEGUN, _E.TASK_ATTEMPT_FAILED, _E.TASK_FAILED)),
    Status.LOST: Scenario(lost, emits(*_BEGUN, _E.TASK_LOST)),
    Status.COMPLETED: Scenario(
        completed,
        emits(*_BEGUN, _E.TASK_RESUMED, _E.TASK_ATTEMPT_COMPLETED, _E.TASK_COMPLETED),
    ),
    Status.STALE: Scenario(stale, emits(*_BEGUN)),
    Status.UNKNOWN: Scenario(unknown, emits(*_BEGUN, _E.TASK_PROGRESS)),
}
DELEGATED: Final = Scenario(parent, emits(_E.TASK_DELEGATED))

MORE_SCENARIOS: Final[dict[str, tuple[Status, Scenario]]] = {
    "credential": (
        Status.WAITING_RESOURCE,
        Scenario(waiting_credential, emits(*_BEGUN, _E.TASK_WAITING)),
    ),
    "parent": (Status.ACCEPTED, Scenario(parent, emits(_E.TASK_ACCEPTED, _E.TASK_DELEGATED))),
}
"""Further scenarios, by their special feature."""
