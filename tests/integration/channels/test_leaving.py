"""An ended connection leaves no object behind, whichever side ended it."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import orjson
import pytest

from passerelle.channels.connection import ChannelConnection
from tests.integration.channels.rig import OVER_BOTH, Rig
from tests.integration.channels.test_fast import CLOSE, TEXT, connect
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio


@pytest.fixture
def uncollected() -> Iterator[None]:
    """Disables the cycle collector during the test."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@OVER_BOTH
@pytest.mark.parametrize("ends", ["the client drops it", "we close it"])
@pytest.mark.usefixtures("uncollected")
async def test_an_ended_connection_is_freed_without_the_cycle_collector(
    rig: Rig, ends: str
) -> None:
    """When hundreds end together, a collection would pause the gateway while they reconnect."""
    session = rig.make_session()
    await rig.append(session, 3)
    before = count_connections()
    hello = {
        "t": "hello",
        "v": 1,
        "token": "ada-token",
        "device": "phone",
        "role": "ui",
        "sdk": "t",
        "caps": [],
        "subs": [{"s": f"session:{session}", "from": "live"}],
    }
    async with connect(rig.port) as (bare, _):
        bare.send(TEXT, orjson.dumps(hello))
        while b'"t":"live"' not in await bare.expect(TEXT):
            pass
        assert count_connections() == before + 1
        if ends == "we close it":
            bare.send(TEXT, b"no frame")
            await bare.expect(CLOSE)
    await wait_until(lambda: count_connections() == before, 30, "nothing knows the connection")


def count_connections() -> int:
    return sum(isinstance(one, ChannelConnection) for one in gc.get_objects())
