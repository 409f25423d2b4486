"""Metrics of a working gateway: appends and their batches, calls of agents, limits, leases."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from tests.integration.callers.rig import Instance, Rig

pytestmark = pytest.mark.anyio
RATED = {"name": "rated", "limits": {"rate": "1/h"}}
FREE = {"name": "free"}


async def read(instance: Instance) -> dict[tuple[str, ...], float]:
    """Returns the samples of a scrape, by name and label values."""
    text = (await instance.http.get("/metrics")).text
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


async def test_unary_send_is_two_appends_with_their_time_and_one_answered_call(rig: Rig) -> None:
    one = await rig.start(clients=[FREE])
    before = await read(one)
    assert (await one.send("free-key")).status_code == 200
    after = await read(one)
    grown = {name: value - before.get(name, 0) for name, value in after.items()}
    assert grown["passerelle_appends_total", "appended"] == 2
    assert grown["passerelle_append_seconds_count",] == 2
    assert 0 < grown["passerelle_append_seconds_sum",] < 5
    assert after["passerelle_peer_calls_total", "echo", "answered"] == 1
    assert after["passerelle_leases_held",] == 64


async def test_store_batches_are_counted_with_their_number_of_calls(rig: Rig) -> None:
    one = await rig.start(clients=[FREE])
    after = await read(one)
    assert after["passerelle_store_batch_calls_sum",] > after["passerelle_store_batch_calls_count",]
    assert after["passerelle_store_batch_calls_count",] > 0


async def test_limit_refusals_are_counted_by_kind(rig: Rig) -> None:
    spent = {"name": "spent", "quotas": [{"calls": 1, "per": "day"}]}
    one = await rig.start(clients=[RATED, spent])
    for key in ("rated-key", "spent-key"):
        statuses = [(await one.send(key)).status_code for _ in range(4)]
        assert statuses == [200, 429, 429, 429]
    after = await read(one)
    assert after["passerelle_limit_refusals_total", "rate_limit"] == 3
    assert after["passerelle_limit_refusals_total", "quota"] == 3


async def test_stream_of_an_agent_is_counted_as_one_call(rig: Rig) -> None:
    one = await rig.start(clients=[FREE])
    answer = await one.call("free-key", "SendStreamingMessage", one.message("chunks 3"))
    assert answer.status_code == 200

    async def ended() -> bool:
        return (await read(one)).get(("passerelle_peer_calls_total", "echo", "answered")) == 1

    assert await wait_until(ended, 15, "the stream is counted at its end")


async def test_call_held_back_by_a_limit_is_counted_apart_from_a_refused_one(
    rig: Rig,
) -> None:
    one = await rig.start(clients=[FREE], agent={"limits": {"rate": "1/h"}})
    assert (await one.send("free-key")).status_code == 200
    await one.send("free-key", returnImmediately=True)

    async def held_back() -> bool:
        return ("passerelle_peer_calls_total", "echo", "limit") in await read(one)

    assert await wait_until(held_back, 15, "the call is held back")
    assert rig.counted() == 1
