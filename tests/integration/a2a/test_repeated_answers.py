"""A further message repeated under its key is answered with its result, in whatever state the task is then."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

import orjson
import pytest

from tests.integration.a2a.test_follow_ups import refuse_it, show
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from passerelle.core.wire.json import JsonObject
    from tests.integration.a2a.rig import Rig
    from tests.support.scripted_tasks import Turn

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("CMD-30", "LT-5")]

_WITHIN_S: Final = 10.0
_KEY: Final = {"Idempotency-Key": "answer"}
_METHODS: Final = ("SendMessage", "SendStreamingMessage")


async def send(rig: Rig, method: str, params: JsonObject) -> list[Any]:
    """Returns the bodies of the response; one for a unary call."""
    async with asyncio.timeout(_WITHIN_S):
        body = {"jsonrpc": "2.0", "id": 7, "method": method, "params": params}
        response = await rig.http.post("/agents/echo", json=body, headers=_KEY)
        lines = response.text.splitlines() if method == "SendStreamingMessage" else []
        streamed = [orjson.loads(one[6:]) for one in lines if one.startswith("data: ")]
        return streamed or [response.json()]


def read_state(body: Any) -> str:  # noqa: ANN401  an answer as it came
    result = body["result"]
    task = result.get("task") or result["statusUpdate"]
    return str(task["status"]["state"]).removeprefix("TASK_STATE_")


async def complete(turn: Turn) -> None:
    await turn.status("WORKING")
    await turn.status("COMPLETED")


async def ask_more(turn: Turn) -> None:
    await turn.status("WORKING")
    await turn.status("INPUT_REQUIRED", "Which size?")


@pytest.mark.parametrize("first", _METHODS)
@pytest.mark.parametrize("script", [complete, ask_more])
async def test_a_repeated_answer_gets_the_result_of_the_first(
    rig: Rig, first: str, script: Callable[[Turn], Awaitable[None]]
) -> None:
    asked = await rig.send("ask which colour?")
    rig.peer.next(script)
    params = rig.message("blue", taskId=asked["id"])
    ended = read_state((await send(rig, first, params))[-1])
    assert ended == ("COMPLETED" if script is complete else "INPUT_REQUIRED")
    for again in _METHODS:
        (body_again,) = await send(rig, again, params)
        assert read_state(body_again) == ended
        assert body_again["result"]["task"] == await show(rig, asked)
    assert rig.peer.texts == ["ask which colour?", "blue"]


@pytest.mark.parametrize("streams", [True, False])
async def test_a_repeated_stream_continues_while_the_agent_works(
    rig: Rig, *, streams: bool
) -> None:
    asked = await rig.send("ask which colour?")
    going_on = asyncio.Event()

    async def work(turn: Turn) -> None:
        await turn.status("WORKING", "mixing it")
        await going_on.wait()
        await turn.status("COMPLETED")

    rig.peer.next(work)
    params = rig.message("blue", taskId=asked["id"])
    first = asyncio.create_task(send(rig, _METHODS[streams], params))

    async def is_at_work() -> bool:
        return "mixing it" in str(await show(rig, asked)) or not streams

    await wait_until(lambda: rig.peer.texts[1:], _WITHIN_S, "the agent has the answer")
    await wait_until(is_at_work, _WITHIN_S, "the agent works on it")
    async with rig.stream("SendStreamingMessage", params, **_KEY) as events:
        opening = (await anext(events)).result
        assert "blue" in str(opening["task"]["history"])
        assert opening["task"]["status"]["state"] == "TASK_STATE_WORKING"
        going_on.set()
        last = [event async for event in events][-1]
    assert last.result["statusUpdate"]["status"]["state"] == "TASK_STATE_COMPLETED"
    assert read_state((await first)[-1]) == "COMPLETED"
    assert rig.peer.texts == ["ask which colour?", "blue"]


@pytest.mark.parametrize("first", _METHODS)
async def test_a_repeated_answer_that_was_refused_is_refused_again(rig: Rig, first: str) -> None:
    asked = await rig.send("ask which colour?")
    rig.peer.next(refuse_it)
    params = rig.message("blue", taskId=asked["id"])
    refused = (await send(rig, first, params))[-1]["error"]
    for again in _METHODS:
        body_again = (await send(rig, again, params))[-1]["error"]
        assert (body_again["code"], body_again["message"]) == (refused["code"], refused["message"])
    assert rig.peer.texts == ["ask which colour?", "blue"]


async def test_a_message_to_an_ended_task_is_refused_by_both_methods(rig: Rig) -> None:
    ended = await rig.send("hello")
    for method in _METHODS:
        (body_again,) = await send(rig, method, rig.message("more", taskId=ended["id"]))
        assert body_again["error"]["code"] == -32004
        assert "send without taskId" in body_again["error"]["message"]
