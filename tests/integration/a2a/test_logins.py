"""An agent waits for a credential that a person gives it elsewhere: callers learn within seconds that it went on."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Final

import pytest

from passerelle.delegation.runs.peer_profile import PeerTerms
from tests.integration.a2a.rig import PATIENCE, Rig
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio

_WITHIN_S: Final = 8.0
_LOOKS: Final = 7
"""With pauses that double, the next look after these would be later than the test waits."""
_AUTH: Final = "TASK_STATE_AUTH_REQUIRED"
_DONE: Final = "TASK_STATE_COMPLETED"


@pytest.mark.parametrize("reader", ["poll", "subscribe"])
async def test_a_task_whose_credential_came_elsewhere_is_read_soon(rig: Rig, reader: str) -> None:
    patience = replace(PATIENCE, parked_poll_s=0.05, parked_poll_max_s=3600.0)
    rig.terms["echo"] = PeerTerms(replace(patience, login_poll_max_s=0.2))
    rig.peer.hold()
    asking = asyncio.create_task(rig.send("auth-resume"))
    rig.peer.release(2)
    task = await asking
    assert task["status"]["state"] == _AUTH
    looked = rig.peer.count("GetTask")
    await wait_until(
        lambda: rig.peer.count("GetTask") > looked + _LOOKS, _WITHIN_S, "the gateway looks on"
    )
    if reader == "poll":
        rig.peer.release_all()

        async def is_done() -> bool:
            now = await rig.call("GetTask", {"id": task["id"]})
            return bool(now["status"]["state"] == _DONE)

        await wait_until(is_done, _WITHIN_S, "the caller reads that the task is completed")
        return
    async with (
        asyncio.timeout(_WITHIN_S),
        rig.stream("SubscribeToTask", {"id": task["id"]}) as events,
    ):
        assert _AUTH in (await anext(events)).data
        rig.peer.release_all()
        *_, last = [event async for event in events]
    assert _DONE in last.data
