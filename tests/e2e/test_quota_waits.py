"""Messages that wait for a quota while both gateways are killed, and continue in the next period, each once."""

from __future__ import annotations

import hashlib
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final, cast

import httpx
import orjson
import pytest

from passerelle.core.wire.times import parse_ms
from passerelle.demo.processes import GatewayProcess
from passerelle.runtime.common.clock import SystemClock
from passerelle.store.engine_binary import find_engine
from tests.support.command import run_command
from tests.support.engine import redis_on_path, run_server
from tests.support.processes import AGENT, run_gateway, share_owner, start_together
from tests.support.scripted_peer import ScriptedPeer
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio

KEY: Final = "psr_quota_ada"
CALLS: Final = 4
MINUTE_MS: Final = 60_000
ROOM_MS: Final = 35_000
Answer = dict[str, Any]


def describe_client() -> dict[str, object]:
    return {
        "name": "ada",
        "key_hash": "sha256:" + hashlib.sha256(KEY.encode()).hexdigest(),
        "may_call": ["*"],
        "scopes": ["a2a:call", "tasks:read", "tasks:write"],
        "quotas": [{"calls": CALLS, "per": "minute", "over": "wait"}],
    }


class Client:
    """A caller with a quota, at one gateway."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self.http = http

    async def call(self, version: str, method: str, params: object) -> Answer:
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        headers = {"A2A-Version": version}
        answer = await self.http.post(f"/agents/{AGENT}", json=body, headers=headers)
        assert "result" in answer.json(), answer.text
        return cast("Answer", answer.json()["result"])

    async def send(self, text: str, context_id: str | None = None) -> Answer:
        """The Task of a message whose caller waits for its end, over A2A 1.0."""
        return cast(
            "Answer", (await self.call("1.0", "SendMessage", compose(text, context_id)))["task"]
        )

    async def send_older(self, text: str) -> Answer:
        """The same over A2A 0.3."""
        said = {
            "kind": "message",
            "messageId": f"m {text}",
            "role": "user",
            "parts": [{"kind": "text", "text": text}],
        }
        params = {"message": said, "configuration": {"blocking": True}}
        return await self.call("0.3", "message/send", params)

    async def open_stream(self, text: str) -> Answer:
        """The first frame of a streamed message; the rest is not read."""
        body = {
            "jsonrpc": "2.0",
            "id": 1,
            "method": "SendStreamingMessage",
            "params": compose(text),
        }
        headers = {"A2A-Version": "1.0"}
        path = f"/agents/{AGENT}"
        async with self.http.stream("POST", path, json=body, headers=headers) as answer:
            async for line in answer.aiter_lines():
                if line.startswith("data:"):
                    return cast(
                        "Answer", orjson.loads(line.removeprefix("data:"))["result"]["task"]
                    )
        raise AssertionError("the stream had no frame")

    async def read(self, task_id: str) -> Answer:
        """The record of a task."""
        answer = await self.http.get(f"/v1/tasks/{task_id}")
        assert answer.is_success, answer.text
        return cast("Answer", answer.json())


def compose(text: str, context_id: str | None = None) -> Answer:
    message: Answer = {"messageId": f"m {text}", "role": "ROLE_USER", "parts": [{"text": text}]}
    if context_id is not None:
        message["contextId"] = context_id
    return {"message": message}


async def use_up(client: Client) -> list[str]:
    """Sends until a message waits, which may be in the next minute; returns the texts of all that were answered."""
    texts: list[str] = []
    for number in range(3 * CALLS):
        texts.append(f"echo covered {number}")
        task = await client.send(texts[-1])
        if task["status"]["state"] == "TASK_STATE_WORKING":
            return texts
        assert task["status"]["state"] == "TASK_STATE_COMPLETED"
    raise AssertionError("nothing used up the quota")


async def await_room() -> None:
    """Returns when enough of the current minute is left for the next step."""
    clock = SystemClock()
    await wait_until(lambda: clock.now_ms() % MINUTE_MS < ROOM_MS, 61, "a minute has begun")


async def await_period(until: str) -> None:
    """Returns at the time that a task has named: the next minute."""
    at_ms, clock = parse_ms(until), SystemClock()
    await wait_until(lambda: clock.now_ms() > at_ms, 61, "the next minute has begun")


@pytest.mark.timeout(180)
@pytest.mark.requirement("ST-8", "CF-7")
async def test_messages_over_a_quota_outlive_both_gateways_and_continue_in_the_next_period(
    tmp_path: Path,
) -> None:
    async with AsyncExitStack() as stack:
        server = stack.enter_context(run_server(redis_on_path() or find_engine(None)))
        peer = await stack.enter_async_context(ScriptedPeer(AGENT))
        folders = [tmp_path / name for name in ("one", "two")]
        for folder in folders:
            folder.mkdir()
        share_owner(folders)
        settings: dict[str, Any] = {
            "redis_url": server.url,
            "secret_key": "00" * 32,
            "clients": [describe_client()],
        }
        gateways = await start_together(
            stack,
            [run_gateway(folder, {AGENT: {"url": peer.url}}, **settings) for folder in folders],
        )
        one, two = [await open_client(stack, gateway) for gateway in gateways]
        await await_room()
        texts = await use_up(one)
        waiting = [
            await two.send("echo blocking"),
            await two.send_older("echo older"),
            await one.open_stream("echo streaming"),
        ]
        waiting.append(await one.send("echo same context", waiting[0]["contextId"]))
        states = {str(task["status"]["state"]) for task in waiting}
        assert states == {"TASK_STATE_WORKING", "working"}
        note = waiting[0]["metadata"]["urn:passerelle:status"]
        assert (note["reason"], note["peer"]) == ("caller_quota", AGENT)
        for task in waiting:
            record = await two.read(task["id"])
            assert record["status"] == "waiting_resource"
            said = record["statusReason"]
            assert f"the quota of {CALLS} calls a minute is used up" in said
            assert f"resets at {note['until']}" in said
        explained = (await run_command(gateways[0], "tasks", "explain", waiting[1]["id"])).out
        assert f"resets at {note['until']}" in explained
        assert len(peer.texts) == len(texts) - 1
        for gateway in gateways:
            gateway.kill()
        await await_period(note["until"])
        await gateways[1].start()

        async def are_done() -> bool:
            read = [await two.read(task["id"]) for task in waiting]
            return all(each["status"] == "completed" for each in read[:3])

        await wait_until(are_done, 60, "what the new minute covers has been answered")
        names = [texts[-1], "echo blocking", "echo older", "echo streaming", "echo same context"]
        covered = len(texts) - 1 + CALLS
        assert sorted(peer.texts[:covered]) == sorted([*texts[:-1], *names[:CALLS]])
        last = await two.read(waiting[-1]["id"])
        if last["status"] != "waiting_resource":
            first = await two.read(waiting[0]["id"])
            minutes = [parse_ms(each["startedAt"]) // MINUTE_MS for each in (first, last)]
            assert minutes[0] < minutes[1], "a minute covers four"


async def open_client(stack: AsyncExitStack, gateway: GatewayProcess) -> Client:
    headers = {"Authorization": f"Bearer {KEY}"}
    http = httpx.AsyncClient(base_url=gateway.url, headers=headers, timeout=20)
    return Client(await stack.enter_async_context(http))
