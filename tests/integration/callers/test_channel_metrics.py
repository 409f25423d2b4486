"""Channel metrics for operators: each kind of channel event is counted in a series."""

from __future__ import annotations

import pytest

from tests.integration.callers.rig import Instance, Rig
from tests.integration.channels.test_connection import HELLO
from tests.support.raw_channel import open_channel
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio
ADA = {"name": "ada", "scopes": ["a2a:call", "channels:connect", "tasks:read"]}


async def read_metrics(instance: Instance) -> dict[str, float]:
    """Returns the channel series by name and labels."""
    text = (await instance.http.get("/metrics")).text
    lines = (line for line in text.splitlines() if line.startswith("passerelle_channel_"))
    return {name.removeprefix("passerelle_channel_"): float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}  # fmt: skip  # noqa: E501


async def test_each_channel_event_is_counted_in_a_series(rig: Rig) -> None:
    instance = await rig.start(clients=[ADA])
    await instance.send("ada-key", "message hello")
    session = rig.list_sessions()[0]
    stored = len(await instance.read_session(session))
    name = f"session:{session}"
    hello = {**HELLO, "token": "ada-key", "caps": []}
    url = str(instance.http.base_url).rstrip("/")
    async with open_channel(url) as first:
        await first.send({**hello, "subs": [{"s": name, "c": "0000000b.1.00000000"}]})
        await first.expect("gap", why="epoch")
        live = await first.expect("live")
        await first.send({"t": "ack", "a": {name: live["c"]}})

        async def is_stored() -> bool:
            return (await read_metrics(instance)).get('acks_total{result="stored"}') == 1

        await wait_until(is_stored, 15, "the ack is counted")
        seen = await read_metrics(instance)
        assert (seen["connections"], seen["streams"], seen["position_lag_events"]) == (1, 1, 0)
        assert seen['gaps_total{why="epoch"}'] == 1
        assert seen["repairs_total"] == 1
        async with open_channel(url) as second:
            await second.send({**hello, "subs": [{"s": name, "from": "start"}]})
            await second.expect("live")
            assert await first.read_close() == 4509
            seen = await read_metrics(instance)
            assert seen["takeovers_total"] == 1
            assert seen["replay_events_total"] == stored
            handed = (
                seen.get(f'deliveries_total{{class="{one}"}}', 0) for one in ("event", "progress")
            )
            assert sum(handed) == stored
    assert (seen["slow_total"], seen["audit_mismatch_total"], seen["ring_bytes"]) == (0, 0, 0)
