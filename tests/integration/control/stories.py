"""Ways into each status of a task, through commands, real agents and time. Each gives the task that got there."""

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
from tests.support.scripted_peer import HttpAnswer
from tests.support.scripted_tasks import Turn
from tests.support.waiting import wait_until

Run = Callable[[ControlClient], Awaitable[str]]


@dataclass(frozen=True, slots=True)
class Story:
    """What leads to a status, and the task events that stand in the stream by then."""

    run: Run
    tells: frozenset[EventType]


def tells(*types: EventType) -> frozenset[EventType]:
    return frozenset({EventType.TASK_CREATED, *types})


async def is_known(control: ControlClient, task_id: str) -> None:
    """Until the agent's task is bound to the run."""

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
    """Accepted too, and somebody who has given a part of the work away."""
    task_id = await control.create()
    session_id = (await control.record(task_id)).session_id
    await control.create("a part of it", parentTaskId=task_id, sessionId=session_id)
    return task_id


async def queued(control: ControlClient) -> str:
    """The agent has the task, and has not begun."""
    return await control.start("silent")


async def preparing(control: ControlClient) -> str:
    """The card of the agent is being read, and takes its time."""
    task_id = await control.create()
    control.hold_card()
    begun = asyncio.create_task(control.do("start_task", taskId=task_id))
    await control.until(task_id, Status.PREPARING)
    begun.cancel()  # Whoever asked goes; the command is seen through.
    return task_id


async def running(control: ControlClient) -> str:
    async def work(turn: Turn) -> None:
        await turn.status("WORKING", "I am at it")

    control.harness.peer.next(work)
    return await control.start()


async def waiting_input(control: ControlClient) -> str:
    return await control.start("ask which one")


async def ask_leave(turn: Turn) -> None:
    """An agent that wants to know whether it may, in the words of our extension."""
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
    control.harness.peer.answer_next(HttpAnswer(429, headers={"Retry-After": "60"}))
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
    """The agent has failed once, and is tried again later."""
    control.harness.policy = RetryPolicy(attempts=2, backoff_ms=60_000, backoff_max_ms=60_000)
    return await control.start("fail at it")


async def cancelling(control: ControlClient) -> str:
    """The agent hears the wish, and goes on."""
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
    """After a pause."""
    task_id = await control.create()
    await control.do("pause_task", taskId=task_id)
    await control.do("resume_task", taskId=task_id)
    await control.do("start_task", "s", taskId=task_id)
    return task_id


async def stale(control: ControlClient) -> str:
    """The agent says nothing for longer than a reader should believe what stands there."""
    task_id = await queued(control)
    await is_known(control, task_id)
    control.harness.clock.ahead_ms += QUIET_MS + 1_000
    return task_id


async def unknown(control: ControlClient) -> str:
    """The agent says a word that nobody here knows."""

    async def dream(turn: Turn) -> None:
        await turn.status("TASK_STATE_DREAMING")

    control.harness.peer.next(dream)
    return await control.start()


_E = EventType
_BEGUN: Final = (_E.TASK_ACCEPTED, _E.TASK_ATTEMPT_STARTED, _E.TASK_STARTED)

STORIES: Final[dict[Status, Story]] = {
    Status.DRAFT: Story(draft, tells()),
    Status.ACCEPTED: Story(accepted, tells(_E.TASK_ACCEPTED, _E.TASK_UPDATED)),
    Status.QUEUED: Story(queued, tells(*_BEGUN, _E.TASK_QUEUED)),
    Status.PREPARING: Story(preparing, tells(_E.TASK_ACCEPTED, _E.TASK_PROGRESS)),
    Status.RUNNING: Story(running, tells(*_BEGUN, _E.TASK_PROGRESS)),
    Status.WAITING_INPUT: Story(waiting_input, tells(*_BEGUN, _E.TASK_WAITING)),
    Status.WAITING_PERMISSION: Story(waiting_permission, tells(*_BEGUN, _E.TASK_WAITING)),
    Status.WAITING_RESOURCE: Story(waiting_resource, tells(*_BEGUN, _E.TASK_WAITING)),
    Status.BLOCKED: Story(blocked, tells(_E.TASK_DEPENDENCY_UPDATED, _E.TASK_BLOCKED)),
    Status.PAUSED: Story(paused, tells(*_BEGUN, _E.TASK_PAUSED)),
    Status.RETRYING: Story(retrying, tells(*_BEGUN, _E.TASK_ATTEMPT_FAILED, _E.TASK_RETRYING)),
    Status.CANCELLING: Story(cancelling, tells(*_BEGUN, _E.TASK_CANCEL_REQUESTED)),
    Status.CANCELLED: Story(cancelled, tells(*_BEGUN, _E.TASK_CANCEL_REQUESTED, _E.TASK_CANCELLED)),
    Status.TIMED_OUT: Story(timed_out, tells(*_BEGUN, _E.TASK_ATTEMPT_FAILED, _E.TASK_TIMED_OUT)),
    Status.FAILED: Story(failed, tells(*_BEGUN, _E.TASK_ATTEMPT_FAILED, _E.TASK_FAILED)),
    Status.LOST: Story(lost, tells(*_BEGUN, _E.TASK_LOST)),
    Status.COMPLETED: Story(
        completed,
        tells(*_BEGUN, _E.TASK_RESUMED, _E.TASK_ATTEMPT_COMPLETED, _E.TASK_COMPLETED),
    ),
    Status.STALE: Story(stale, tells(*_BEGUN)),
    Status.UNKNOWN: Story(unknown, tells(*_BEGUN, _E.TASK_PROGRESS)),
}
DELEGATED: Final = Story(parent, tells(_E.TASK_DELEGATED))

BESIDES: Final[dict[str, tuple[Status, Story]]] = {
    "credential": (
        Status.WAITING_RESOURCE,
        Story(waiting_credential, tells(*_BEGUN, _E.TASK_WAITING)),
    ),
    "parent": (Status.ACCEPTED, Story(parent, tells(_E.TASK_ACCEPTED, _E.TASK_DELEGATED))),
}
"""Further ways, by what is different about them."""
