"""(a) An unmodified A2A SDK client discovers an agent behind the gateway and gets its response."""

from __future__ import annotations

from typing import TYPE_CHECKING

import httpx
from a2a.types import GetTaskRequest

from passerelle.demo.caller import (
    is_completed,
    open_caller,
    read_artifacts,
    say,
)

if TYPE_CHECKING:
    from passerelle.demo.stage import Stage

_WORDS = "good morning"


async def play(stage: Stage) -> None:
    """Checks the card, the response, and the stored task."""
    checks, url = stage.checks, stage.find_agent("echo")
    checks.print_heading("a", "an A2A SDK client finds the agent `echo` and is answered")
    async with open_caller(url, stage.gateway.token, streaming=False) as (card, client):
        checks.equal("the card is the agent's", card.name, "echo", card=url)
        served = [interface.url for interface in card.supported_interfaces]
        checks.check(
            "every interface on it is the gateway's",
            served and all(_strip(each).startswith(_strip(url)) for each in served),
            served,
            interfaces=len(served),
        )
        frames = [frame async for frame in client.send_message(say(_WORDS))]
        checks.check("the answer is one task", len(frames) == 1 and frames[0].HasField("task"))
        task = frames[0].task
        checks.check("the task is completed", is_completed(task), task.status, task=task.id)
        checks.equal("its artifact has the text", read_artifacts(task), [_WORDS])
        kept = await client.get_task(GetTaskRequest(id=task.id))
        checks.equal("GetTask gives the same artifact", read_artifacts(kept), [_WORDS])
    received = (await stage.peers["echo"].read_stats())["received"]
    times = list(received.values()) if isinstance(received, dict) else []
    checks.equal("the agent received one message", times, [1])
    record = await stage.read(f"/v1/tasks/{task.id}")
    checks.equal(
        "the gateway has a record of it",
        (record["status"], record["kind"]),
        ("completed", "echo"),
        session=record["sessionId"],
    )
    async with httpx.AsyncClient(trust_env=False) as stranger:
        refused = await stranger.post(url, json={"jsonrpc": "2.0", "id": 1, "method": "GetTask"})
    checks.equal("a caller without a token is refused", refused.status_code, 401)


def _strip(url: str) -> str:
    """Returns a URL without its scheme: the WebSocket interface has another scheme."""
    return url.partition("://")[2]
