"""A stored record that cannot be read is a failure of the store, at every edge, and logged; others are served."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import pytest
from structlog.testing import capture_logs

from tests.integration.devices.asking import bearer
from tests.support.engine import ask
from tests.support.raw_channel import open_channel

if TYPE_CHECKING:
    from tests.integration.callers.rig import Rig

pytestmark = pytest.mark.anyio

ADA: dict[str, object] = {
    "name": "ada",
    "kind": "person",
    "scopes": ["a2a:call", "tasks:read", "tasks:write", "channels:connect"],
}


@pytest.mark.parametrize("snapshot", ["x", "{}", '{"schema":"x"}'])
async def test_damaged_record_is_no_fault_of_the_caller_and_is_logged(
    rig: Rig, snapshot: str
) -> None:
    at = await rig.start(clients=[ADA])
    tasks = [(await at.send("ada-key")).json()["result"]["task"]["id"] for _ in range(2)]
    [record] = cast("list[bytes]", ask(rig.url, "KEYS", f"*:t:{tasks[0]}"))
    ask(rig.url, "HSET", record, "s", snapshot)
    with capture_logs() as lines:
        read = await at.http.get(f"/v1/tasks/{tasks[0]}", headers=bearer("ada"))
        assert (read.status_code, read.json()["code"]) == (503, "record_damaged")
        assert tasks[0] not in read.text.replace(str(read.request.url), "")
        changed = await at.http.post(f"/v1/tasks/{tasks[0]}/cancel", json={}, headers=bearer("ada"))
        assert (changed.status_code, changed.json()["code"]) == (503, "record_damaged")
        for method in ("GetTask", "CancelTask"):
            over_rpc = (await at.call("ada-key", method, {"id": tasks[0]})).json()
            assert over_rpc["error"]["data"][0]["reason"] == "UNAVAILABLE", over_rpc
        over_http = await at.http.get(f"/agents/echo/tasks/{tasks[0]}", headers=bearer("ada"))
        assert over_http.status_code == 503
        async with open_channel(str(at.http.base_url).rstrip("/")) as channel:
            await channel.greet("ada-key")
            await channel.send({"t": "rpc", "id": "c", "m": "get_task", "d": {"taskId": tasks[0]}})
            assert (await channel.expect("err", id="c"))["code"] == "record_damaged"
    said = [line for line in lines if line["event"] == "record.damaged"]
    assert len(said) == 6, "each is logged once"
    assert {line["of"] for line in said} == {tasks[0]}
    assert [line for line in lines if line["event"].endswith(".fault")] == []
    other = await at.http.get(f"/v1/tasks/{tasks[1]}", headers=bearer("ada"))
    assert other.status_code == 200
