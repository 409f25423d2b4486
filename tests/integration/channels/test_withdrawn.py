"""Open approvals that a device may no longer see, as its client is notified."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import orjson
import pytest
from websockets.asyncio.server import ServerConnection, serve
from websockets.typing import Subprotocol

from passerelle.channels.limits import ChannelLimits
from passerelle.client.channel import ChannelClient
from passerelle.core.errors import StoreUnavailable
from passerelle.core.principal import AccessScope
from passerelle.protocol.frames import SUBPROTOCOL, Welcome
from passerelle.protocol.wire import encode_server
from passerelle.store.store import Store
from tests.integration.channels.rig import ADA
from tests.integration.channels.test_credentials import run
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio
VECTORS: Final[dict[str, Any]] = json.loads(
    (Path(__file__).parents[2] / "vectors/channel.json").read_text("utf-8")
)
WELCOME: Final = Welcome(
    "cn", "ch", 1, "pr", frozenset(), 25, 35, {}, "ch.1", "now", (), pending_more=False
)


@pytest.mark.parametrize("row", VECTORS["withdrawals"], ids=lambda row: str(row["take"]["why"]))
async def test_the_client_reports_a_withdrawn_approval(row: dict[str, Any]) -> None:
    async def welcome(socket: ServerConnection) -> None:
        await socket.recv()
        await socket.send(b"\n".join((encode_server(WELCOME), orjson.dumps(row["take"]))).decode())
        await socket.wait_closed()

    reported: list[list[str]] = []
    async with serve(welcome, "127.0.0.1", 0, subprotocols=[Subprotocol(SUBPROTOCOL)]) as server:
        url = f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1/channel"
        async with ChannelClient(
            url, device="screen", on_withdrawn=lambda action, why: reported.append([action, why])
        ):
            await wait_until(lambda: reported, 15, "the application is notified")
    assert reported == [row["tells"]]


@pytest.mark.requirement("CHN-8")
async def test_a_withdrawal_during_a_store_outage_is_reported_afterwards(
    store: Store,
) -> None:
    reported: list[tuple[str, str]] = []
    async with run(store, ChannelLimits(recheck_s=0.05)) as (rig, known, _):
        rig.control.pending = ({"actionId": "act_1"},)
        async with rig.client(
            on_withdrawn=lambda action, why: reported.append((action, why))
        ) as one:
            await wait_until(lambda: one.welcome, 15, "the client is welcome")
            rig.control.away = StoreUnavailable("away", wrote="no")
            looked = rig.control.withdrawals
            known.give("ada-token", replace(ADA, scopes=ADA.scopes - {AccessScope.DECIDE}))
            await wait_until(lambda: rig.control.withdrawals > looked + 1, 15, "it is asked for")
            assert reported == []
            rig.control.away = None
            await wait_until(lambda: reported, 15, "the client is notified")
        assert reported == [("act_1", "scope")]
