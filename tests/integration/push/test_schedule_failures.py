"""A failed run of a schedule is delivered to the schedule's webhook exactly once, across restarts (OBJ-8)."""

from __future__ import annotations

from typing import Any, Final

import orjson
import pytest

from tests.integration.push.rig import Rig
from tests.integration.push.test_stream_webhooks import SECRET, Hook, read_events, verify
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio
HOURLY: Final = 3_600


async def make(rig: Rig, text: str) -> str:
    """Creates a schedule whose next tick is an hour away."""
    body = {
        "title": "Tides",
        "agent": "echo",
        "text": text,
        "everyS": HOURLY,
    }
    made = await rig.http.post("/v1/schedules", json=body)
    assert made.is_success, made.text
    return str(made.json()["schedule"]["scheduleId"])


async def run(rig: Rig, schedule: str) -> None:
    asked = await rig.http.post(f"/v1/schedules/{schedule}/run", json={})
    assert asked.is_success, asked.text


def list_failures(rig: Rig) -> list[dict[str, Any]]:
    """Returns the delivered ``task.failed`` events in order."""
    delivered = [orjson.loads(event) for event in read_events(rig)]
    return [event for event in delivered if event["type"] == "task.failed"]


async def until_over(rig: Rig, schedule: str, status: str, count: int) -> list[Any]:
    """Waits until ``count`` runs have this status; returns them, the newest first."""

    async def look() -> list[Any] | None:
        shown = (await rig.http.get(f"/v1/schedules/{schedule}")).json()
        over: list[Any] = [one for one in shown.get("recent", []) if one.get("status") == status]
        return over if len(over) == count else None

    found: list[Any] | None = await wait_until(look, 20, f"{count} runs are {status}")
    assert found is not None
    return found


@pytest.mark.requirement("OBJ-8")
async def test_a_failed_run_is_delivered_once_to_the_webhook_of_its_schedule(rig: Rig) -> None:
    schedule = await make(rig, "fail")
    hook = Hook(rig, f"session:{schedule}", schedule)
    await hook.set(secret=SECRET)
    for number in (1, 2):
        await run(rig, schedule)
        runs = await until_over(rig, schedule, "failed", number)
        await wait_until(lambda: len(list_failures(rig)) >= number, 20, "the failure is delivered")  # noqa: B023
        assert [one["taskId"] for one in list_failures(rig)][::-1] == [
            one["taskId"] for one in runs
        ]
    assert all(event["payload"]["error"]["code"] for event in list_failures(rig))
    assert all(verify(one) for one in rig.receiver.taken("/stream"))
    await rig.restart()
    await run(rig, schedule)
    await until_over(rig, schedule, "failed", 3)
    await wait_until(lambda: len(list_failures(rig)) >= 3, 20, "the third one is delivered")
    delivered = [event["taskId"] for event in list_failures(rig)]
    assert len(delivered) == len(set(delivered)) == 3, "none is delivered again after a restart"


@pytest.mark.requirement("OBJ-8")
async def test_a_completed_run_delivers_no_failure(rig: Rig) -> None:
    schedule = await make(rig, "echo fine")
    hook = Hook(rig, f"session:{schedule}", schedule)
    await hook.set(secret=SECRET)
    await run(rig, schedule)
    await until_over(rig, schedule, "completed", 1)

    def is_delivered() -> bool:
        return any(b'"task.completed"' in event for event in read_events(rig))

    await wait_until(is_delivered, 20, "the end is delivered")
    assert list_failures(rig) == []
