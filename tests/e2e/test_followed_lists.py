"""Streams of lists and results while the gateway is killed: reading from a cursor misses nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import httpx
import pytest

from tests.support.processes import AGENT
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from passerelle.demo.processes import GatewayProcess
    from tests.support.scripted_peer import ScriptedPeer

pytestmark = pytest.mark.anyio


async def ask(gateway: GatewayProcess, method: str, path: str, body: object = None) -> Any:  # noqa: ANN401  JSON
    headers = {**gateway.authorization, "A2A-Version": "1.0"}
    async with httpx.AsyncClient(headers=headers, timeout=30) as http:
        answer = await http.request(method, f"{gateway.url}{path}", json=body)
    answer.raise_for_status()
    return answer.json()


async def send(gateway: GatewayProcess, number: int, context: str | None = None) -> Any:  # noqa: ANN401  JSON
    message: dict[str, object] = {
        "messageId": f"m-{number}",
        "role": "ROLE_USER",
        "parts": [{"text": f"echo {number}"}],
    }
    if context is not None:
        message["contextId"] = context
    body = {"message": message}
    return (await ask(gateway, "POST", f"/agents/{AGENT}/message:send", body))["task"]


@pytest.mark.requirement("MK-9", "CHN-3")
async def test_cursor_of_a_list_and_of_results_holds_through_kills(
    gateway: GatewayProcess, peer: ScriptedPeer
) -> None:
    start = (await ask(gateway, "GET", "/v1/streams/tasks/snapshot"))["cursor"]
    first = await send(gateway, 0)
    session = (await ask(gateway, "GET", f"/v1/tasks/{first['id']}"))["sessionId"]
    results = f"results:{session}"
    device = {"device": "manager"}
    page = await ask(gateway, "POST", f"/v1/streams/{results}/reconnect", device)
    (known,) = page["snapshot"]["packets"]
    ack = {**device, "cursor": known["cursor"]}
    await ask(gateway, "POST", f"/v1/streams/{results}/ack", ack)
    sent = [first["id"]]
    for number in range(1, 6):
        sent.append((await send(gateway, number, first["contextId"]))["id"])
        if number == 3:
            gateway.kill()
            await gateway.start()
    rows: list[Any] = []
    cursor = start

    async def are_all_there() -> bool:
        nonlocal cursor
        page = await ask(gateway, "GET", f"/v1/streams/tasks/events?after={cursor}&wait=1")
        cursor = page["cursor"]
        rows.extend(page["events"])
        ended = {row["name"] for row in rows if row["row"]["status"] == "completed"}
        return ended == set(sent)

    await wait_until(are_all_there, 30, "the rows of all tasks have come")
    assert [row["sequence"] for row in rows] == sorted({row["sequence"] for row in rows})
    again = await ask(gateway, "POST", f"/v1/streams/{results}/reconnect", device)
    assert (again["mode"], again["more"]) == ("acked", False)
    assert [one["payload"]["taskId"] for one in again["events"]] == sent[1:]
    assert len(peer.messages) == len(sent)
