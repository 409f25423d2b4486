"""The answers to a cancel of an unknown or ended task (MK-12)."""

from __future__ import annotations

import pytest

from tests.integration.a2a.rig import Rig

pytestmark = pytest.mark.anyio

NOT_FOUND, NOT_CANCELABLE, INVALID = -32001, -32002, -32602


@pytest.mark.requirement("MK-12")
async def test_cancel_of_an_unknown_or_ended_task_is_answered_with_the_reason(rig: Rig) -> None:
    finished = await rig.send("hello")
    stopped = await rig.send("ask which")
    await rig.call("CancelTask", {"id": stopped["id"]})
    refused = [
        await rig.refuse("CancelTask", {"id": name})
        for name in ("task_of_nobody", finished["id"], stopped["id"], "")
    ]
    assert [error["code"] for error in refused] == [
        *(NOT_FOUND, NOT_CANCELABLE, NOT_CANCELABLE, INVALID)
    ]
    assert (await rig.call("GetTask", {"id": finished["id"]}))["status"] == finished["status"]
