"""The connections of one instance: the newest one holds the channel, whatever the store's count."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import cast

import pytest

from passerelle.channels.limits import ChannelLimits
from passerelle.channels.roster import Roster
from passerelle.core.errors import Limited, StoreUnavailable
from passerelle.core.ports.channels import (
    Channels,
    ChannelUpdate,
    ConnectionOpened,
    OwnerForgotten,
    PresenceChanged,
)

pytestmark = pytest.mark.anyio


@dataclass(eq=False)
class Member:
    channel: str
    generation: int
    superseded: int = 0
    rechecked: int = 0
    forgotten: int = 0

    def supersede(self) -> None:
        self.superseded += 1

    def recheck(self) -> None:
        self.rechecked += 1

    def forget(self) -> None:
        self.forgotten += 1


@dataclass
class News:
    """What a roster listens to; ``away``: nothing can be listened to."""

    listeners: dict[str, Callable[[ChannelUpdate], None]] = field(
        default_factory=dict[str, "Callable[[ChannelUpdate], None]"]
    )
    away: bool = False
    let_go: asyncio.Event | None = None
    """What an end of listening waits for."""
    moved: list[str] = field(default_factory=list[str])

    async def listen(self, owner: str, on_update: Callable[[ChannelUpdate], None]) -> None:
        await asyncio.sleep(0)
        if self.away:
            raise StoreUnavailable("away", "no")
        assert owner not in self.listeners
        self.listeners[owner] = on_update

    async def ignore(self, owner: str) -> None:
        await (self.let_go.wait() if self.let_go else asyncio.sleep(0))
        del self.listeners[owner]


def make(**limits: int) -> tuple[Roster, News]:
    news = News()
    return Roster(cast("Channels", news), ChannelLimits(**limits), news.moved.append), news


@pytest.mark.requirement("CHN-9")
async def test_the_newest_connection_has_the_channel_even_if_the_store_restarts_its_count() -> None:
    roster, _ = make()
    older, newer, other = Member("ch_1", 7), Member("ch_1", 1), Member("ch_2", 1)
    for member in (older, other, newer):
        await roster.enter("pr", "phone", member)
        roster.install("pr", member)
    assert (older.superseded, newer.superseded, other.superseded) == (1, 0, 0)


@pytest.mark.requirement("CHN-9")
async def test_news_supersede_what_is_older_and_nothing_else() -> None:
    roster, news = make()
    member = Member("ch_1", 3)
    await roster.enter("pr", "phone", member)
    roster.install("pr", member)
    for channel, generation in (("ch_1", 2), ("ch_1", 3), ("ch_2", 9)):
        news.listeners["pr"](ConnectionOpened(channel, generation))
    assert member.superseded == 0
    news.listeners["pr"](ConnectionOpened("ch_1", 4))
    assert member.superseded == 1


@pytest.mark.requirement("PRS-9")
async def test_presence_changes_are_passed_on_with_their_principal() -> None:
    roster, news = make()
    await roster.enter("pr", "phone", member := Member("ch_1", 3))
    news.listeners["pr"](PresenceChanged())
    assert (news.moved, member.superseded) == (["pr"], 0)


async def test_each_principal_has_one_listener_while_it_has_connections() -> None:
    roster, news = make()
    members = [Member("", 0) for _ in range(3)]
    await asyncio.gather(*(roster.enter("pr", "phone", member) for member in members))
    assert set(news.listeners) == {"pr"}
    for member in members:
        roster.leave("pr", member)
        roster.leave("pr", member)
    late = Member("", 0)
    await roster.enter("pr", "phone", late)
    await roster.close()
    assert set(news.listeners) == {"pr"}
    roster.leave("pr", late)
    await roster.close()
    assert not news.listeners


async def test_connections_that_enter_together_share_one_result() -> None:
    roster, news = make()
    turns: list[int] = []

    async def enter(turn: list[int]) -> None:
        await roster.enter("pr", "phone", Member("", 0))
        turns.append(turn[0])

    turn = [0]
    entering = [asyncio.create_task(enter(turn)) for _ in range(5)]
    while not turns and not all(one.done() for one in entering):
        await asyncio.sleep(0)
        turn[0] += 1
    await asyncio.gather(*entering)
    assert len(set(turns)) == 1
    news.away = True
    failed = await asyncio.gather(
        *(roster.enter("other", "phone", Member("", 0)) for _ in range(3)), return_exceptions=True
    )
    assert [type(one) for one in failed] == [StoreUnavailable] * 3
    news.away = False
    await roster.enter("other", "phone", Member("", 0))
    assert set(news.listeners) == {"pr", "other"}


async def test_the_first_connection_may_leave_before_its_entry_is_confirmed() -> None:
    roster, news = make()
    first, second = (
        asyncio.create_task(roster.enter("pr", "phone", Member("", 0))) for _ in range(2)
    )
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.wait([first])
    await second
    assert (first.cancelled(), set(news.listeners)) == (True, {"pr"})


async def test_no_listener_stays_for_a_connection_that_left_during_a_restart() -> None:
    roster, news = make()
    news.let_go = asyncio.Event()
    await roster.enter("pr", "phone", older := Member("", 0))
    roster.leave("pr", older)
    await asyncio.sleep(0)
    entering = asyncio.create_task(roster.enter("pr", "phone", Member("", 0)))
    for _ in range(3):
        await asyncio.sleep(0)
    entering.cancel()
    await asyncio.wait([entering])
    news.let_go.set()
    await roster.close()
    assert not news.listeners
    await roster.enter("pr", "phone", Member("", 0))
    assert set(news.listeners) == {"pr"}


async def test_a_refused_connection_is_freed_without_the_collector() -> None:
    roster, news = make()
    news.away = True
    gc.disable()
    try:
        member = Member("", 0)
        gone = weakref.ref(member)
        with pytest.raises(StoreUnavailable):
            await roster.enter("pr", "phone", member)
        await roster.close()
        del member
        await asyncio.sleep(0)
        assert gone() is None
    finally:
        gc.enable()


async def test_refused_connection_is_not_counted() -> None:
    roster, news = make(device_connections=1, principal_connections=2)
    news.away = True
    with pytest.raises(StoreUnavailable):
        await roster.enter("pr", "phone", Member("", 0))
    news.away = False
    await roster.enter("pr", "phone", Member("", 0))
    with pytest.raises(Limited):
        await roster.enter("pr", "phone", Member("", 0))
    await roster.enter("pr", "tablet", Member("", 0))
    with pytest.raises(Limited):
        await roster.enter("pr", "watch", Member("", 0))
    await roster.enter("other", "watch", Member("", 0))


async def test_all_connections_of_a_principal_end_once_it_is_forgotten_and_no_others() -> None:
    roster, news = make()
    mine, others = [Member("ch_1", 1), Member("ch_2", 1)], Member("ch_3", 1)
    for member in mine:
        await roster.enter("pr_ada", member.channel, member)
    await roster.enter("pr_bob", others.channel, others)
    news.listeners["pr_ada"](OwnerForgotten())
    assert [one.forgotten for one in (*mine, others)] == [1, 1, 0]
