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
from tests.support.house import ADA, House
from tests.support.spelt_ids import compose_id

pytestmark = pytest.mark.anyio

_PAGE: Final = 5
_MANY: Final = 10_000


async def project_inbox(house: House, count: int) -> None:
    """Writes old copies of approvals into the owner's inbox."""
    shard = shard_of(ADA.key)
    for first in range(0, count, 1_000):
        copies: list[str | int] = []
        order: list[str | int] = []
        for number in range(first, min(first + 1_000, count)):
            action = compose_id("act", shard, 1, number)
            copies += [action, "{}"]
            order += [1, action]
        await put(house, copies, order)


async def put(house: House, copies: list[str | int], order: list[str | int]) -> None:
    """Writes copies of approvals and their order, as the relay does."""
    shard = shard_of(ADA.key)
    await house.store.nodes.read(
        shard,
        pack("HSET", keys.inbox_open(shard, ADA.key), *copies),
        pack("ZADD", keys.inbox_order(shard, ADA.key), *order),
    )


async def ask(house: House, count: int) -> list[str]:
    """Opens approvals with copies in the inbox; returns their ids, the newest first."""
    actions: list[str] = []
    for number in range(count):
        house.peer.next(ask_leave(f"pay-{number}"))
        accepted, _ = await house.talk("go")
        action = str((await house.question(accepted))["actionId"])
        house.clock.ahead_ms += 10
        actions.insert(0, action)
        await put(house, [action, "{}"], [house.clock.now_ms(), action])
        await mark_relayed(house, shard_of(accepted.session_id))
    return actions


async def mark_relayed(house: House, shard: Shard) -> None:
    """Moves the mark behind all feed rows of a shard, as the relay does after delivery."""
    projections = house.store.projections
    rows = await projections.read_feed(shard, None)
    await projections.move_mark(shard, RELAY, rows[-1].id)


async def list_pending(house: House, limit: int) -> list[JsonObject]:
    page = await house.service.read(ADA, ListActions(limit))
    return cast("list[JsonObject]", page["pending"])


async def test_page_of_ten_thousand_approvals_reads_only_itself_newest_first(
    house: House,
) -> None:
    actions = await ask(house, _PAGE)
    await project_inbox(house, _MANY)
    counting = CountingLog(house.log.log)
    house.parts.writes.log = counting
    began_s = time.monotonic()
    views = await list_pending(house, _PAGE)
    took_s = time.monotonic() - began_s
    assert [view["actionId"] for view in views] == actions
    assert (counting.reads, counting.loaded) == (["load"], _PAGE)
    assert took_s < 1


async def test_closed_approval_is_replaced_by_the_next_on_the_page(house: House) -> None:
    actions = await ask(house, 3)
    newest = await list_pending(house, 1)
    await house.respond(newest[0], option_id="leave")
    views = await list_pending(house, 2)
    assert [view["actionId"] for view in views] == actions[1:]
