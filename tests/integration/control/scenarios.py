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
from tests.support.control_client import ControlClient
from tests.support.scripted_peer import ScriptedResponse
from tests.support.scripted_tasks import Turn
from tests.support.waiting import wait_until

Run = Callable[[ControlClient], Awaitable[str]]


@dataclass(frozen=True, slots=True)
class Scenario:
    """Runs into a status; ``emits`` are the task events that the stream then holds."""

    run: Run
    emits: frozenset[EventType]


def emits(*types: EventType) -> frozenset[EventType]:
    return frozenset({EventType.TASK_CREATED, *types})


async def is_known(control: ControlClient, task_id: str) -> None:
    """Waits until the agent's task is bound to the run."""

    async def look() -> bool:
        run = (await control.record(task_id)).run
        return run is not None and run.remote_task_id is not None

    await wait_until(look, 15, "the agent's task is known")


async def draft(control: ControlClient) -> str:
    return await control.create(draft=True)


async def accepted(control: ControlClient) -> str:
    task_id = await control.create()
    await control.do("update_task", taskId=task_id, title="another")
    return task_id


async def parent(control: ControlClient) -> str:
    """Also accepted: a parent that has delegated a part of its work."""
    task_id = await control.create()
    session_id = (await control.record(task_id)).session_id
    await control.create("a part of it", parentTaskId=task_id, sessionId=session_id)
    return task_id


async def queued(control: ControlClient) -> str:
    """The agent has the task and has not started it."""
    return await control.start("silent")


async def preparing(control: ControlClient) -> str:
    """The agent's card is being read, slowly."""
    task_id = await control.create()
    control.hold_card()
    begun = asyncio.create_task(control.do("start_task", taskId=task_id))
    await control.until(task_id, Status.PREPARING)
    begun.cancel()  # The caller leaves; the command is still completed.
    return task_id


async def running(control: ControlClient) -> str:
    async def work(turn: Turn) -> None:
        await turn.status("WORKING", "I am at it")

    control.harness.peer.next(work)
    return await control.start()


async def waiting_input(control: ControlClient) -> str:
    return await control.start("ask which one")


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


async def waiting_permission(control: ControlClient) -> str:
    control.harness.peer.next(ask_leave)
    return await control.start()


async def waiting_credential(control: ControlClient) -> str:
    return await control.start("auth the account")


async def waiting_resource(control: ControlClient) -> str:
    """The agent is busy."""
    control.harness.peer.answer_next(ScriptedResponse(429, headers={"Retry-After": "60"}))
    return await control.start()


async def blocked(control: ControlClient) -> str:
    first, second = await control.create("first"), await control.create("second")
    await control.do("link_tasks", taskId=second, kind="blocked_by", target=first)
    return second


async def paused(control: ControlClient) -> str:
    task_id = await control.start("silent")
    await is_known(control, task_id)
    await control.do("pause_task", taskId=task_id)
    return task_id


async def retrying(control: ControlClient) -> str:
    """The agent has failed once; a retry is scheduled."""
    control.harness.policy = RetryPolicy(attempts=2, backoff_ms=60_000, backoff_max_ms=60_000)
    return await control.start("fail at it")


async def cancelling(control: ControlClient) -> str:
    """The agent receives the cancel and continues."""
    control.harness.peer.on_cancel = "ignored"
    task_id = await control.start("silent")
    await is_known(control, task_id)
    await control.do("cancel_task", taskId=task_id)
    return task_id


async def cancelled(control: ControlClient) -> str:
    task_id = await control.start("silent")
    await is_known(control, task_id)
    await control.do("cancel_task", taskId=task_id)
    return task_id


async def timed_out(control: ControlClient) -> str:
    control.harness.policy = RetryPolicy(total_timeout_ms=60_000)
    task_id = await control.start("silent")
    await is_known(control, task_id)
    await control.harness.run_due("timeout", task_id, after_ms=60_000)
    return task_id


async def failed(control: ControlClient) -> str:
    return await control.start("fail at it")


async def lost(control: ControlClient) -> str:
    task_id = await control.start("silent")
    await is_known(control, task_id)
    await control.harness.peer.stop()
    control.harness.clock.ahead_ms += 1_000
    return task_id


async def completed(control: ControlClient) -> str:
    """Completed after a pause."""
    task_id = await control.create()
    await control.do("pause_task", taskId=task_id)
    await control.do("resume_task", taskId=task_id)
    await control.do("start_task", "s", taskId=task_id)
    return task_id


async def stale(control: ControlClient) -> str:
    """The agent has been silent for longer than its recorded status stays valid."""
    task_id = await queued(control)
    await is_known(control, task_id)
    control.harness.clock.ahead_ms += QUIET_MS + 1_000
    return task_id


async def unknown(control: ControlClient) -> str:
    """The agent reports a status that the gateway does not know."""

    async def dream(turn: Turn) -> None:
        await turn.status("TASK_STATE_DREAMING")

    control.harness.peer.next(dream)
    return await control.start()


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
