"""The cost of reading a long inbox: the requested page only."""

from __future__ import annotations

import time
from typing import Final, cast

import pytest

from passerelle.core.commands import ListActions
from passerelle.core.ids import Shard, shard_of
from passerelle.core.wire.json import JsonObject
from passerelle.runtime.records.lag import RELAY
from passerelle.store import keys
from passerelle.store.connection import pack
from tests.integration.delegation.test_listing_cost import CountingLog
from tests.support.asking import ask_leave
from tests.support.harness import ADA, Harness
from tests.support.spelt_ids import compose_id

pytestmark = pytest.mark.anyio

_PAGE: Final = 5
_MANY: Final = 10_000


async def project_inbox(harness: Harness, count: int) -> None:
    """Writes old copies of approvals into the owner's inbox."""
    shard = shard_of(ADA.key)
    for first in range(0, count, 1_000):
        copies: list[str | int] = []
        order: list[str | int] = []
        for number in range(first, min(first + 1_000, count)):
            action = compose_id("act", shard, 1, number)
            copies += [action, "{}"]
            order += [1, action]
        await put(harness, copies, order)


async def put(harness: Harness, copies: list[str | int], order: list[str | int]) -> None:
    """Writes copies of approvals and their order, as the relay does."""
    shard = shard_of(ADA.key)
    await harness.store.nodes.read(
        shard,
        pack("HSET", keys.inbox_open(shard, ADA.key), *copies),
        pack("ZADD", keys.inbox_order(shard, ADA.key), *order),
    )


async def ask(harness: Harness, count: int) -> list[str]:
    """Opens approvals with copies in the inbox; returns their ids, the newest first."""
    actions: list[str] = []
    for number in range(count):
        harness.peer.next(ask_leave(f"pay-{number}"))
        accepted, _ = await harness.talk("go")
        action = str((await harness.question(accepted))["actionId"])
        harness.clock.ahead_ms += 10
        actions.insert(0, action)
        await put(harness, [action, "{}"], [harness.clock.now_ms(), action])
        await mark_relayed(harness, shard_of(accepted.session_id))
    return actions


async def mark_relayed(harness: Harness, shard: Shard) -> None:
    """Moves the mark behind all feed rows of a shard, as the relay does after delivery."""
    projections = harness.store.projections
    rows = await projections.read_feed(shard, None)
    await projections.move_mark(shard, RELAY, rows[-1].id)


async def list_pending(harness: Harness, limit: int) -> list[JsonObject]:
    page = await harness.service.read(ADA, ListActions(limit))
    return cast("list[JsonObject]", page["pending"])


async def test_page_of_ten_thousand_approvals_reads_only_itself_newest_first(
    harness: Harness,
) -> None:
    actions = await ask(harness, _PAGE)
    await project_inbox(harness, _MANY)
    counting = CountingLog(harness.log.log)
    harness.parts.writes.log = counting
    began_s = time.monotonic()
    views = await list_pending(harness, _PAGE)
    took_s = time.monotonic() - began_s
    assert [view["actionId"] for view in views] == actions
    assert (counting.reads, counting.loaded) == (["load"], _PAGE)
    assert took_s < 1


async def test_closed_approval_is_replaced_by_the_next_on_the_page(harness: Harness) -> None:
    actions = await ask(harness, 3)
    newest = await list_pending(harness, 1)
    await harness.respond(newest[0], option_id="leave")
    views = await list_pending(harness, 2)
    assert [view["actionId"] for view in views] == actions[1:]
