"""Agents that dial in: their serving connection, and the calls that wait for them."""

from __future__ import annotations

import pytest

from passerelle.core.ports.agents import AgentCancelled, AgentOffered, AgentRegistered, AgentUpdate
from passerelle.store.store import Store
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio

HOLD_MS = 60_000
CARD = b'{"name":"Builder"}'


async def register(
    store: Store, link: str, agent: str, *, pool: bool = False, hold_ms: int = HOLD_MS
) -> int:
    return await store.agents.register(
        agent, link, f"inst_{link}", CARD, hold_ms=hold_ms, pool=pool
    )


async def read_links(store: Store, agent: str) -> set[str]:
    served = await store.agents.read(agent)
    return set(served.links) if served else set()


async def test_newest_link_owns_the_name_and_the_older_one_cannot_renew(store: Store) -> None:
    assert await store.agents.read("solo") is None
    assert await register(store, "cn_1", "solo") == 1
    assert await register(store, "cn_2", "solo") == 2
    served = await store.agents.read("solo")
    assert served is not None
    assert (served.card, served.generation, served.links) == (CARD, 2, {"cn_2": "inst_cn_2"})
    keep = store.agents.keep
    assert not await keep("solo", "cn_1", "inst_cn_1", 1, hold_ms=HOLD_MS)
    assert await keep("solo", "cn_2", "inst_cn_2", 2, hold_ms=HOLD_MS)
    assert await read_links(store, "solo") == {"cn_2"}


async def test_links_of_a_pool_serve_together(store: Store) -> None:
    await register(store, "cn_1", "many", pool=True)
    await register(store, "cn_2", "many", pool=True)
    assert await read_links(store, "many") == {"cn_1", "cn_2"}
    await store.agents.unregister("many", "cn_1")
    assert await read_links(store, "many") == {"cn_2"}


async def test_silent_link_stops_serving_and_its_card_stays(
    store: Store,
) -> None:
    await register(store, "cn_1", "gone", hold_ms=-1)
    served = await store.agents.read("gone")
    assert served is not None
    assert (served.card, served.links) == (CARD, {})
    await register(store, "cn_2", "gone", pool=True)
    assert not await store.agents.keep("gone", "cn_1", "inst_cn_1", 1, hold_ms=HOLD_MS)


async def test_waiting_calls_of_an_agent_are_counted_and_reported(store: Store) -> None:
    news: list[AgentUpdate] = []
    await store.agents.listen("busy", news.append)
    await store.agents.offer("busy", "task_1")
    await store.agents.offer("busy", "task_1", "turn_2")
    await store.agents.cancel("busy", "remote-7")
    await register(store, "cn_1", "busy", pool=True)
    await wait_until(lambda: len(news) == 4, 10, "four words of news")
    assert news == [
        AgentOffered("task_1"),
        AgentOffered("task_1", "turn_2"),
        AgentCancelled("remote-7"),
        AgentRegistered("cn_1", 1, pool=True),
    ]
    assert await store.agents.list_waiting("busy") == ["task_1"]
    await store.agents.forget("busy", "task_1")
    assert await store.agents.list_waiting("busy") == []
    await store.agents.ignore("busy")
    await store.agents.offer("busy", "task_2")
    assert len(news) == 4
