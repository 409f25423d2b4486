"""Many devices connect at once: the cycle collector pauses meanwhile and is always enabled again."""

from __future__ import annotations

import gc
from contextlib import AsyncExitStack

import pytest
from websockets.asyncio.client import connect
from websockets.typing import Subprotocol

from passerelle.protocol.frames import SUBPROTOCOL
from passerelle.runtime.common import collector
from tests.integration.callers.rig import Rig

pytestmark = pytest.mark.anyio


async def test_collector_pauses_for_a_connection_burst_and_resumes_when_the_gateway_ends(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collector, "CROWD", 2)
    monkeypatch.setattr(collector, "CROWD_WITHIN_S", 3600.0)
    monkeypatch.setattr(collector, "RESTS_S", 3600.0)
    one = await rig.start()
    url = str(one.http.base_url).replace("http", "ws", 1).rstrip("/") + "/v1/channel"
    try:
        async with AsyncExitStack() as sockets:
            for is_on in (True, True, False):
                await sockets.enter_async_context(
                    connect(url, subprotocols=[Subprotocol(SUBPROTOCOL)])
                )
                assert gc.isenabled() is is_on
        await rig.stack.aclose()
        assert gc.isenabled()
    finally:
        gc.enable()
