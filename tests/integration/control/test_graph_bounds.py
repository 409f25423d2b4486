"""Limits of the task graph: no cycle, bounded depth, bounded edges per task; each refusal has its own code."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest

from passerelle.control import task_graph
from passerelle.core.errors import GraphLimit
from passerelle.core.task.status import Status
from tests.support.desk import Desk

pytestmark = pytest.mark.anyio


async def refuse(desk: Desk, limit: str, near: str, kind: str, far: str) -> None:
    """The edge is refused from both ends and changes neither task."""
    before = [await desk.record(one) for one in (near, far)]
    mirrored = {"parent": "child", "child": "parent", "blocks": "blocked_by"}.get(kind, "blocks")
    for task_id, word, target in ((near, kind, far), (far, mirrored, near)):
        with pytest.raises(GraphLimit) as refused:
            await desk.do("link_tasks", taskId=task_id, kind=word, target=target)
        assert refused.value.stable_code == f"task_graph_{limit}"
        assert refused.value.field == "target"
    assert [await desk.record(one) for one in (near, far)] == before


@pytest.mark.requirement("GR-2")
@pytest.mark.parametrize("length", [2, 3, 7])
async def test_tasks_cannot_wait_for_each_other_in_a_cycle(desk: Desk, length: int) -> None:
    ring = [await desk.create(f"step {n}") for n in range(length)]
    for earlier, later in pairwise(ring):
        await desk.do("link_tasks", taskId=later, kind="blocked_by", target=earlier)
    await refuse(desk, "cycle", ring[0], "blocked_by", ring[-1])
    # Removing one edge opens the cycle.
    await desk.do("unlink_tasks", taskId=ring[1], kind="blocked_by", target=ring[0])
    await desk.do("link_tasks", taskId=ring[0], kind="blocked_by", target=ring[-1])
    assert (await desk.record(ring[0])).status is Status.BLOCKED
    await refuse(desk, "cycle", ring[1], "blocked_by", ring[0])


@pytest.mark.requirement("GR-1")
async def test_no_task_is_its_own_ancestor(desk: Desk) -> None:
    top = await desk.create("top")
    middle = await desk.create("middle", parentTaskId=top)
    last = await desk.create("last", parentTaskId=middle)
    other = await desk.create("other")
    await desk.do("link_tasks", taskId=last, kind="child", target=other)
    await refuse(desk, "cycle", last, "child", top)
    await refuse(desk, "cycle", other, "child", middle)
    await desk.do("link_tasks", taskId=top, kind="child", target=other)


@pytest.mark.requirement("GR-1")
async def test_depth_of_a_tree_is_limited(desk: Desk) -> None:
    chain = [await desk.create("level 0")]
    for number in range(task_graph.MOST_ABOVE):
        chain.append(await desk.create(f"level {number + 1}", parentTaskId=chain[-1]))
    with pytest.raises(GraphLimit) as refused:
        await desk.create("too deep", parentTaskId=chain[-1])
    assert (refused.value.field, refused.value.stable_code) == (
        *("parentTaskId", "task_graph_depth"),
    )
    other = await desk.create("above")
    below = await desk.create("below", parentTaskId=other)
    await refuse(desk, "depth", other, "child", chain[0])
    await refuse(desk, "depth", chain[-1], "child", below)
    await refuse(desk, "depth", chain[-2], "child", other)
    await desk.do("link_tasks", taskId=chain[-2], kind="child", target=below)


@pytest.mark.requirement("GR-1", "GR-2")
async def test_edges_of_one_kind_are_limited_per_task(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task_graph, "MOST_EDGES", 3)
    top = await desk.create("top")
    children = [await desk.create(f"part {n}", parentTaskId=top) for n in range(3)]
    with pytest.raises(GraphLimit) as refused:
        await desk.create("one too many", parentTaskId=top)
    assert (refused.value.field, refused.value.stable_code) == (
        *("parentTaskId", "task_graph_width"),
    )
    other = await desk.create("other")
    await refuse(desk, "width", top, "child", other)
    await desk.do("unlink_tasks", taskId=top, kind="child", target=children[0])
    await desk.create("in its place", parentTaskId=top)
    for child in children:
        await desk.do("link_tasks", taskId=other, kind="blocked_by", target=child)
    await refuse(desk, "width", top, "blocks", other)


@pytest.mark.requirement("GR-2")
async def test_concurrent_edges_that_close_a_cycle_are_not_both_stored(desk: Desk) -> None:
    refusals = 0
    for number in range(12):
        one, two = [await desk.create(f"{number} {name}") for name in ("one", "two")]
        answers = await asyncio.gather(
            desk.do("link_tasks", taskId=one, kind="blocked_by", target=two),
            desk.do("link_tasks", taskId=two, kind="blocked_by", target=one),
            return_exceptions=True,
        )
        refused = [answer for answer in answers if isinstance(answer, BaseException)]
        assert refused, number
        assert {type(error) for error in refused} == {GraphLimit}
        refusals += len(refused)
        records = [await desk.record(task_id) for task_id in (one, two)]
        assert sum(record.blocker is not None for record in records) == 2 - len(refused)
        # Both ends agree, and a task without an open dependency is not blocked.
        for record, far in zip(records, reversed(records), strict=True):
            blocks = any(edge.is_waited_for for edge in far.relationships)
            assert blocks is (record.blocker is not None)
            assert (record.status is Status.BLOCKED) is (record.blocker is not None)
    assert refusals >= 12


@pytest.mark.requirement("GR-2")
async def test_graph_too_large_to_check_gets_no_further_edge(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task_graph, "MOST_LOOKED_AT", 4)
    chain = [await desk.create(f"step {n}") for n in range(6)]
    for earlier, later in pairwise(chain[:5]):
        await desk.do("link_tasks", taskId=later, kind="blocked_by", target=earlier)
    with pytest.raises(GraphLimit) as refused:
        await desk.do("link_tasks", taskId=chain[5], kind="blocked_by", target=chain[4])
    assert refused.value.stable_code == "task_graph_size"
