"""(c) An agent requests an approval; two devices see it and decide at the same time; one decision counts."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from a2a.types import GetTaskRequest, TaskState

from passerelle.a2a_mapping.members import objects_at
from passerelle.client.items import Lost, Won
from passerelle.demo.caller import is_completed, open_caller, say
from passerelle.demo.checks import wait_for
from passerelle.demo.devices import INBOX, open_device
from passerelle.demo.peers.payments import ALLOW

if TYPE_CHECKING:
    from a2a.client import Client
    from a2a.types import Task

    from passerelle.client.items import AnswerResult
    from passerelle.core.wire.json import JsonObject
    from passerelle.demo.stage import Stage

_BILL: Final = "40 EUR to the baker"


async def play(stage: Stage) -> None:
    """Plays the approval request, the race, and the delivery of the decision."""
    checks, token, url = stage.checks, stage.gateway.token, stage.gateway.url
    checks.print_heading(
        "c", "the agent `payments` requests an approval; two devices decide at once"
    )
    async with (
        open_caller(stage.find_agent("payments"), token, streaming=False) as (_, client),
        open_device(url, token, "laptop") as laptop,
        open_device(url, token, "phone") as phone,
    ):
        for device in (laptop, phone):
            device.follow(INBOX)
            await device.await_snapshot(INBOX)
        (frame,) = [frame async for frame in client.send_message(say(_BILL))]
        task = frame.task
        checks.equal(
            "the caller sees that the task waits",
            task.status.state,
            TaskState.TASK_STATE_INPUT_REQUIRED,
            task=task.id,
        )
        for device in (laptop, phone):
            requested = await device.await_event(INBOX, "permission.requested")
            checks.equal(f"the {device.name} has it in its inbox", requested["taskId"], task.id)
        view = await _reconnect(stage, task.id)
        outcomes = await asyncio.gather(
            laptop.client.answer(view, option=ALLOW), phone.client.answer(view, option=ALLOW)
        )
        _check_race(stage, view, dict(zip((laptop.name, phone.name), outcomes, strict=True)))
        for device in (laptop, phone):
            closed = await device.await_event(INBOX, "permission.resolved")
            checks.equal(
                f"the {device.name} sees that it is resolved",
                closed["actionId"],
                view["actionId"],
            )
        await _check_receipt(stage, client, task)
        await _check_return(stage, view)


async def _reconnect(stage: Stage, task_id: str) -> JsonObject:
    """Checks that the welcome of a new device lists the pending approvals."""
    async with open_device(stage.gateway.url, stage.gateway.token, "tablet") as tablet:
        pending = [view for view in tablet.pending if view["taskId"] == task_id]
    stage.checks.equal(
        "a device that connects now has it in its welcome",
        len(pending),
        1,
        action=pending[0]["actionId"] if pending else "none",
    )
    listed = objects_at(await stage.read("/v1/approvals"), "pending")
    stage.checks.check("so has GET /v1/approvals", pending[0] in listed, listed)
    return pending[0]


def _check_race(stage: Stage, view: JsonObject, outcomes: dict[str, AnswerResult]) -> None:
    checks = stage.checks
    winners = [name for name, outcome in outcomes.items() if isinstance(outcome, Won)]
    checks.equal("exactly one decision counts", len(winners), 1, winner=", ".join(winners))
    lost = [outcome.winner for outcome in outcomes.values() if isinstance(outcome, Lost)]
    checks.equal(
        "the other one gets the winner and its option",
        [(winner.get("deviceName"), winner.get("optionId")) for winner in lost],
        [(winners[0], ALLOW)],
        action=view["actionId"],
    )


async def _check_receipt(stage: Stage, client: Client, requested: Task) -> None:
    async def look() -> Task | None:
        task = await client.get_task(GetTaskRequest(id=requested.id))
        return task if is_completed(task) else None

    task = await wait_for("the agent pays and completes the task", look)
    names = [artifact.name for artifact in task.artifacts]
    stage.checks.equal("the agent continued, and the receipt is stored", names, ["receipt"])


async def _check_return(stage: Stage, view: JsonObject) -> None:
    async def look() -> JsonObject | None:
        now = await stage.read(f"/v1/approvals/{view['actionId']}")
        return now if now["returnState"] == "returned" else None

    now = await wait_for("the decision is delivered to the agent", look)
    stage.checks.equal("it was sent to the agent once", now["returnAttempts"], 1, rev=now["rev"])
