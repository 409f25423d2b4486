"""The registry of task lists: updated with rows, found without an update, and removed with its owner."""

from __future__ import annotations

import pytest

from passerelle.core.index_changes import SESSIONS
from passerelle.core.ports.projections import IndexRow, ListedTasks
from passerelle.store import keys
from passerelle.store.connection import pack
from passerelle.store.list_registry import ListRegistry
from passerelle.store.store import Store
from tests.contract.test_projections import AGENT, SOURCE, make_owner

pytestmark = pytest.mark.anyio


async def read_lists(store: Store, *owners: str) -> set[ListedTasks]:
    return {one for one in await store.projections.list_lists() if one.owner in owners}


@pytest.mark.requirement("I10")
async def test_a_list_is_known_by_its_newest_row(store: Store) -> None:
    shard, owner = make_owner()
    rows = [
        IndexRow(owner, AGENT, "task_a", 300),
        IndexRow(owner, AGENT, "task_b", 200, "completed"),
        IndexRow(owner, "", "task_c", 100, "failed"),
        IndexRow(owner, "other agent", "task_d", 150, "gone"),
        IndexRow(owner, SESSIONS, "se_a", 500),
    ]
    await store.projections.advance(SOURCE, shard, "1-0", rows)
    wanted = {ListedTasks(owner, AGENT, 300), ListedTasks(owner, "", 100)}
    assert await read_lists(store, owner) == wanted
    await store.projections.advance(SOURCE, shard, "2-0", [IndexRow(owner, AGENT, "task_e", 250)])
    assert await read_lists(store, owner) == wanted, "the later time stays"
    [held] = await store.nodes.query_all(shard, pack("PTTL", keys.listed_tasks(shard)))
    assert held == -1


@pytest.mark.requirement("I10")
async def test_lists_of_an_earlier_version_are_found_by_their_names(store: Store) -> None:
    shard, owner = make_owner()
    await store.projections.index_now(IndexRow(owner, "a b", "task_a", 300))
    await store.projections.index_now(IndexRow(owner, "a b", "task_b", 400))
    await store.projections.index_now(IndexRow(owner, SESSIONS, "se_a", 500))
    await store.nodes.update(shard, pack("UNLINK", keys.listed_tasks(shard)))
    assert await read_lists(store, owner) == {ListedTasks(owner, "a b", 400)}
    await store.projections.index_now(IndexRow(owner, AGENT, "task_c", 1))
    assert await read_lists(store, owner) == {ListedTasks(owner, "a b", 400)}, "looked for once"


async def test_only_lists_without_rows_are_removed(store: Store) -> None:
    shard, owner = make_owner()
    for number, agent in enumerate((AGENT, "", "left"), 1):
        row = IndexRow(owner, agent, f"task_{agent}", 300, "completed")
        await store.projections.advance(SOURCE, shard, f"{number}-0", [row])
    for agent in (AGENT, ""):
        for name in keys.every_part_of(shard, owner, agent):
            await store.nodes.update(shard, pack("UNLINK", name))
    await ListRegistry(store.nodes).forget(owner)
    assert await read_lists(store, owner) == {ListedTasks(owner, "left", 300)}
