"""Old inbox events are removed; a device that was away for longer gets a gap and misses no approval."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import pytest

from passerelle.cli.verify import run_verify
from passerelle.client.channel import ChannelClient
from passerelle.client.cursor_stores import MemoryCursors
from passerelle.client.items import Event, Gap, GapChoice, Item, Live, Snapshot
from passerelle.core.wire.json import JsonObject
from passerelle.demo.processes import GatewayProcess
from passerelle.gateway.settings.model import Settings
from passerelle.protocol.cursor import GapReason
from tests.support.engine import ask
from tests.support.processes import AGENT, find_engine_url, open_caller, run_gateway
from tests.support.scripted_peer import ScriptedPeer
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio
INBOX = "inbox"


def count_kept(gateway: GatewayProcess) -> int:
    """Number of entries in the inboxes of the store."""
    url = find_engine_url(gateway)
    names = cast("list[bytes]", ask(url, "KEYS", "{*}:in:*"))
    return sum(cast("int", ask(url, "XLEN", name.decode())) for name in names)


@dataclass
class Phone:
    """A device that connects and disconnects, and keeps its cursor."""

    gateway: GatewayProcess
    cursors: MemoryCursors = field(default_factory=MemoryCursors)
    gaps: list[GapReason] = field(default_factory=list[GapReason])

    @asynccontextmanager
    async def connect(self) -> AsyncGenerator[ChannelClient]:
        url = f"{self.gateway.url.replace('http', 'ws', 1)}/v1/channel"
        async with ChannelClient(
            url,
            token=self.gateway.token,
            device="phone",
            cursors=self.cursors,
            on_gap=self.note_gap,
        ) as client:
            yield client

    async def note_gap(self, gap: Gap) -> GapChoice:
        self.gaps.append(gap.why)
        return "snapshot"


async def read_state(client: ChannelClient) -> tuple[list[str], list[Item]]:
    """The approvals of the last inbox snapshot, and every item up to the new ones."""
    items = list[Item]()
    async for item in client.stream(INBOX):
        items.append(item)
        if not isinstance(item, Gap):
            await item.ack()
        if isinstance(item, Live):
            break
    snapshot = [item for item in items if isinstance(item, Snapshot)][-1]
    pending = cast("list[JsonObject]", snapshot.data["pending"])
    return [str(one["taskId"]) for one in pending], items


@pytest.mark.requirement("CHN-4")
async def test_returning_device_gets_a_gap_and_the_pending_approvals(tmp_path: Path) -> None:
    async with (
        ScriptedPeer(AGENT) as peer,
        run_gateway(tmp_path, {AGENT: peer.url}, retention={"inbox": "1s"}) as gateway,
        open_caller(gateway) as caller,
    ):
        phone = Phone(gateway)
        first = await caller.begin("ask Which one?")
        await caller.await_question(first["id"])
        async with phone.connect() as client:
            pending, _ = await read_state(client)
        assert pending == [first["id"].partition("~")[0]]
        await caller.send("this one", taskId=first["id"])
        second = await caller.begin("ask And now?")
        await caller.await_question(second["id"])
        await wait_until(lambda: count_kept(gateway) == 0, 20, "what came has left the inbox")
        # An instance that ran then has it in memory.
        gateway.kill()
        await gateway.start()
        async with phone.connect() as client:
            pending, items = await read_state(client)
            assert (phone.gaps, pending) == ([GapReason.TRIMMED], [second["id"].partition("~")[0]])
            assert not [item for item in items if isinstance(item, Event)]
            await caller.send("and this", taskId=second["id"])
            reported = await anext(
                item.data
                async for item in client.stream(INBOX)
                if isinstance(item, Event) and item.data["type"] == "action.resolved"
            )
        assert reported["taskId"] == second["id"].partition("~")[0]
        # The engine of a killed gateway still answers for a moment.
        gateway.kill()
        report = await run_verify(Settings(data_dir=gateway.data_dir), rebuild=True)
        assert report.lines == []
