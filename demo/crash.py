"""(d) The gateway is killed in the middle of a task; after a restart it resumes, and nothing is lost or done twice."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Final

import httpx
from a2a.client import A2AClientError
from a2a.types import GetTaskRequest

from passerelle.a2a_mapping.members import objects_at, text_at
from passerelle.demo.caller import is_completed, open_caller, read_artifacts, say
from passerelle.demo.checks import CheckFailed, wait_for
from passerelle.demo.devices import DemoDevice, open_device

if TYPE_CHECKING:
    from a2a.client import Client
    from a2a.types import Task

    from passerelle.core.wire.json import JsonObject
    from passerelle.demo.stage import Stage

LINES: Final = 24
_ASK: Final = f"a long report: chunks={LINES} every=0.4"
_REPORT: Final = "".join(f"line {line} of {LINES}\n" for line in range(1, LINES + 1))
_BEFORE: Final = 3
_FINISH_WITHIN_S: Final = 30.0


async def play(stage: Stage) -> None:
    """Kills and restarts the gateway, and subscribes again."""
    checks, gateway = stage.checks, stage.gateway
    token = gateway.token
    checks.print_heading("d", "kill -9 in the middle of a report, and another start")
    before = await _count_received(stage)
    async with (
        open_caller(stage.find_agent("report"), token) as (_, client),
        open_device(gateway.url, token, "laptop") as laptop,
    ):
        task_id, session = await _begin(stage, client)
        stream = f"session:{session}"
        laptop.follow(stream)
        await laptop.await_lines(stream, _BEFORE)
        gateway.kill()
        reached = laptop.find_end(stream)
        checks.note("killed", task=task_id, session=session, sequence=reached)
        began = asyncio.get_running_loop().time()
        await gateway.start()
        took = f"{asyncio.get_running_loop().time() - began:.1f}s"
        kept = await client.get_task(GetTaskRequest(id=task_id))
        checks.equal("it restarts and has the task", kept.id, task_id, took=took)
        task = await _await_end(client, task_id)
        checks.equal(
            "the task completes with every line once", read_artifacts(task), [_REPORT], task=task_id
        )
        record = await stage.read(f"/v1/tasks/{task_id}")
        runs = [text_at(attempt, "status") for attempt in objects_at(record, "attempts")]
        checks.equal("it continued the same run", runs, ["completed"])
        await laptop.await_event(stream, "task.completed")
        _check_device(stage, laptop, stream, reached)
    after = await _count_received(stage)
    fresh = {name: times for name, times in after.items() if name not in before}
    checks.equal(
        "the agent received the message once", list(fresh.values()), [1], message=next(iter(fresh))
    )


async def _begin(stage: Stage, client: Client) -> tuple[str, str]:
    """Starts the report and reads its stream up to the task id."""
    async for frame in client.send_message(say(_ASK)):
        return frame.task.id, await stage.find_session(frame.task.id)
    raise CheckFailed("the agent sent no response")


async def _await_end(client: Client, task_id: str) -> Task:
    async def look() -> Task | None:
        with contextlib.suppress(httpx.HTTPError, A2AClientError):
            task = await client.get_task(GetTaskRequest(id=task_id))
            return task if is_completed(task) else None
        return None

    return await wait_for("the task completes", look, _FINISH_WITHIN_S)


def _check_device(stage: Stage, device: DemoDevice, stream: str, reached: int) -> None:
    seen = device.sequences(stream)
    stage.checks.equal(
        "the device resumed by its old cursor: no gap, no repeat",
        seen,
        list(range(seen[0], seen[0] + len(seen))),
        cursor=reached,
        last=seen[-1],
    )
    stage.checks.equal("it received no gap", device.gaps, [])
    stage.checks.equal("it has every line once as well", device.read_artifact(stream), _REPORT)


async def _count_received(stage: Stage) -> JsonObject:
    received = (await stage.peers["report"].read_stats())["received"]
    return received if isinstance(received, dict) else {}
