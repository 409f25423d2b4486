"""An agent whose A2A is not the SDK's: conversations through the gateway and directly.

It answers a send before it has begun, appends to artifacts that it has not opened, and replaces them at the end.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any, Final

import httpx
import orjson
import pytest

from tests.interop.environments import FASTA2A, require
from tests.interop.scripted_clients import run_agent
from tests.support.loops import SHARED, Backend
from tests.support.processes import run_gateway
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio

Answer = dict[str, Any]
ENDS_WITHIN_S: Final = 20.0
ENDED: Final = frozenset({"TASK_STATE_COMPLETED", "TASK_STATE_FAILED"})


@dataclass(frozen=True, slots=True)
class RawCaller:
    """Calls one address over JSON-RPC, without a library."""

    url: str
    http: httpx.AsyncClient

    async def call(self, method: str, params: Answer) -> Answer:
        """The result of a unary call."""
        answer: Answer = (await self.http.post(self.url, json=_wrap(method, params))).json()
        result: Answer = answer["result"]
        return result

    async def send(self, text: str, **members: str) -> Answer:
        """The task of a message once it has ended."""
        task: Answer = (await self.call("SendMessage", _write(text, **members)))["task"]

        async def read_ended() -> Answer | None:
            shown = await self.call("GetTask", {"id": task["id"]})
            return shown if shown["status"]["state"] in ENDED else None

        ended = await wait_until(read_ended, ENDS_WITHIN_S, "the task ends")
        assert ended is not None
        return ended

    async def stream(self, text: str) -> list[Answer]:
        """The items of a streamed answer."""
        call = _wrap("SendStreamingMessage", _write(text))
        async with self.http.stream("POST", self.url, json=call) as response:
            lines = [line async for line in response.aiter_lines()]
        data = [line.removeprefix("data:") for line in lines if line.startswith("data:")]
        return [orjson.loads(one)["result"] for one in data]


def _wrap(method: str, params: Answer) -> Answer:
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}


def _write(text: str, **members: str) -> Answer:
    message = {"messageId": f"m-{text}", "role": "ROLE_USER", "parts": [{"text": text}], **members}
    return {"message": message}


@pytest.fixture(scope="module")
def anyio_backend() -> Backend:
    return SHARED


@pytest.fixture(scope="module")
async def callers(
    anyio_backend: Backend, tmp_path_factory: pytest.TempPathFactory
) -> AsyncGenerator[tuple[RawCaller, RawCaller]]:
    """Callers of the agent directly and through a gateway."""
    require(FASTA2A)
    folder = tmp_path_factory.mktemp("gateway")
    async with (
        run_agent("fasta2a", "JSONRPC") as url,
        run_gateway(folder, {"counting": url}) as gateway,
        httpx.AsyncClient(
            headers={"A2A-Version": "1.0", **gateway.authorization},
            # A kept connection would look like a leak of the test.
            limits=httpx.Limits(max_keepalive_connections=0),
            timeout=30,
            trust_env=False,
        ) as http,
    ):
        yield RawCaller(f"{url}/", http), RawCaller(f"{gateway.url}/agents/counting", http)


def read_texts(task: Answer) -> list[str]:
    """The texts of the artifacts."""
    return [part["text"] for one in task.get("artifacts", ()) for part in one["parts"]]


def describe(item: Answer) -> tuple[str, str, bool, bool]:
    """Kind, text or state, and how an item joins what was there; not the state of a first task, which is a race."""
    (kind, content), *_ = item.items()
    artifact = content.get("artifact", {})
    shown = "".join(part["text"] for part in artifact.get("parts", ()))
    if not shown and kind != "task":
        shown = content["status"]["state"]
    return kind, shown, content.get("append", False), content.get("lastChunk", False)


async def test_conversation_is_the_same_through_the_gateway(
    callers: tuple[RawCaller, RawCaller],
) -> None:
    for caller in callers:
        first = await caller.send("good morning")
        assert first["status"]["state"] == "TASK_STATE_COMPLETED"
        assert read_texts(first) == ["text 1: good morning "]
        second = await caller.send("and good night", contextId=first["contextId"])
        assert read_texts(second) == ["text 2: and good night "]
        assert second["contextId"] == first["contextId"]


async def test_stream_has_every_item_as_the_agent_sent_it(
    callers: tuple[RawCaller, RawCaller],
) -> None:
    direct, through = [list(map(describe, await one.stream("one two three"))) for one in callers]
    assert direct == through
    assert [shown for kind, shown, *_ in through if kind == "artifactUpdate"] == [
        *("text 1: ", "one ", "two ", "three "),
        "text 1: one two three ",
    ]
    assert through[-1][1] == "TASK_STATE_COMPLETED"


async def test_model_that_raises_fails_the_task(callers: tuple[RawCaller, RawCaller]) -> None:
    for caller in callers:
        assert (await caller.send("fail"))["status"]["state"] == "TASK_STATE_FAILED"
    direct, through = [list(map(describe, await one.stream("fail"))) for one in callers]
    assert direct == through
    assert through[-1][1] == "TASK_STATE_FAILED"
