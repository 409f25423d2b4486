"""Rate and concurrency limits of callers: each edge refuses in its own form, no agent is called, one fact is stored."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from tests.conformance.socket_caller import open_socket
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from tests.integration.callers.rig import Answer, Rig

pytestmark = pytest.mark.anyio
RATED = {"name": "rated", "limits": {"rate": "2/h"}, "scopes": ["a2a:call", "tasks:read"]}
NARROW = {"name": "narrow", "limits": {"concurrency": 1}}
FREE = {"name": "free"}


async def test_caller_over_its_rate_is_refused_on_each_edge_and_no_agent_is_called(
    rig: Rig,
) -> None:
    one = await rig.start(clients=[RATED, FREE])
    for _ in range(2):
        assert (await one.send("rated-key")).status_code == 200
    rpc = await one.send("rated-key")
    assert rpc.status_code == 429
    assert rpc.json()["error"]["code"] == -32603
    assert rpc.json()["error"]["data"][0]["reason"] == "RATE_LIMITED"
    assert 1 < int(rpc.headers["retry-after"]) <= 1800
    assert read_delay_s(rpc.json()["error"]["data"]) <= 1800
    key = {"Authorization": "Bearer rated-key"}
    rest = await one.http.post("/agents/echo/message:send", json=one.message("x"), headers=key)
    assert (rest.status_code, rest.json()["error"]["status"]) == (429, "RESOURCE_EXHAUSTED")
    assert read_delay_s(rest.json()["error"]["details"]) <= 1800
    async with open_socket(str(one.http.base_url) + "/agents/echo", key) as socket:
        refused = (await socket.call("SendMessage", {**one.message("x")})).refused
    assert (refused.reason, refused.code) == ("RATE_LIMITED", -32603)
    assert read_delay_s(list(refused.details)) <= 1800
    turn = {"agent": "echo", "text": "hello"}
    problem = await one.http.post("/v1/turns", json=turn, headers=key)
    assert (problem.status_code, problem.json()["code"]) == (429, "rate_limited")
    assert int(problem.headers["retry-after"]) > 1
    assert rig.counted() == 2
    assert (await one.send("free-key")).status_code == 200


def read_delay_s(details: list[Answer]) -> int:
    """Returns the delay of the RetryInfo in the details of an error."""
    (delay,) = [one["retryDelay"] for one in details if one["@type"].endswith("RetryInfo")]
    return int(delay.removesuffix("s"))


@pytest.mark.requirement("EXT-7")
async def test_rate_limit_hit_is_stored_once_in_the_home_session(rig: Rig) -> None:
    one = await rig.start(clients=[RATED])
    for _ in range(8):
        await one.send("rated-key")

    async def is_stored() -> bool:
        return len(await one.read_home("rated")) == 2

    assert await wait_until(is_stored, 15, "the fact is written")
    opened, hit = await one.read_home("rated")
    assert opened["type"] == "session.created"
    assert hit["type"] == "rate_limit.hit"
    assert hit["payload"]["limited"] == {"kind": "caller", "name": "rated"}
    assert (hit["payload"]["source"], hit["payload"]["native"]) == ("gateway", "rate_limit")
    assert hit["payload"]["retryAfterMs"] > 1000


async def test_caller_with_one_slot_has_one_call_under_way_and_gets_the_slot_back(rig: Rig) -> None:
    one = await rig.start(clients=[NARROW])
    rig.peer.hold()
    first = asyncio.create_task(one.send("narrow-key"))
    assert await wait_until(lambda: rig.counted() == 1, 15, "the agent is called")
    refused = await one.send("narrow-key")
    assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
    assert rig.counted() == 1
    rig.peer.release_all()
    assert (await first).status_code == 200
    assert (await one.send("narrow-key")).status_code == 200


async def test_limit_is_shared_by_all_instances(rig: Rig) -> None:
    rated = {"name": "rated", "limits": {"rate": "5/h"}}
    first = await rig.start(clients=[rated])
    second = await rig.start(clients=[rated])
    statuses = [
        (await instance.send("rated-key")).status_code
        for _ in range(8)
        for instance in (first, second)
    ]
    assert statuses.count(200) <= 5
    assert rig.counted() == statuses.count(200) >= 3


async def test_stream_keeps_its_slot_until_it_ends(rig: Rig) -> None:
    one = await rig.start(clients=[NARROW])
    rig.peer.hold()
    rig.peer.release(1)
    body = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "SendStreamingMessage",
        "params": one.message("chunks 3"),
    }
    key = {"Authorization": "Bearer narrow-key"}
    async with one.http.stream("POST", "/agents/echo", json=body, headers=key) as stream:
        lines = stream.aiter_lines()
        await anext(lines)
        assert (await one.send("narrow-key")).status_code == 429

    async def free() -> bool:
        rig.peer.release_all()
        return (await one.send("narrow-key")).status_code == 200

    assert await wait_until(free, 15, "the slot of a caller that left is free")


async def test_oversized_message_is_refused_on_each_edge_with_the_field_named(
    rig: Rig,
) -> None:
    requests = {"parts": 2, "part_bytes": 16, "body_bytes": 2_048}
    one = await rig.start(clients=[FREE], requests=requests)
    key = {"Authorization": "Bearer free-key"}
    many = one.message("x")
    many["message"]["parts"] = [{"text": "x"}] * 3  # type: ignore[index,call-overload]
    rest = await one.http.post("/agents/echo/message:send", json=many, headers=key)
    assert rest.status_code == 400
    assert "message.parts" in rest.json()["error"]["message"]
    large = await one.send("free-key", "é" * 9)
    assert large.json()["error"]["code"] == -32602
    assert "message.parts[0].text" in large.json()["error"]["message"]
    turn = {"agent": "echo", "text": "x" * 17}
    problem = await one.http.post("/v1/turns", json=turn, headers=key)
    assert (problem.status_code, problem.json()["field"]) == (400, "message.parts[0].text")
    whole = await one.send("free-key", "x" * 3_000)
    assert whole.json()["error"]["data"][0]["reason"] == "TOO_LARGE"
    assert rig.counted() == 0
    assert (await one.send("free-key", "x" * 16)).status_code == 200


async def test_part_of_the_maximum_size_passes_with_the_defaults(rig: Rig) -> None:
    """A file of 12 MiB is 16 MiB of base64."""
    one = await rig.start(clients=[FREE])
    key = {"Authorization": "Bearer free-key"}
    large: dict[str, object] = {"raw": "A" * 16_777_216, "filename": "scan.pdf"}
    asked = one.message("hello")
    asked["message"]["parts"].append(large)  # type: ignore[index,call-overload,union-attr,arg-type]
    rest = await one.http.post("/agents/echo/message:send", json=asked, headers=key)
    assert rest.status_code == 200, rest.text[:500]
    call = {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": asked}
    rpc = await one.http.post("/agents/echo", json=call, headers={**key, "A2A-Version": "1.0"})
    assert rpc.json()["result"]["task"]["status"]["state"] == "TASK_STATE_COMPLETED"
    assert rig.counted() == 2
