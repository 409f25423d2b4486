"""The graph of tasks has no cycle, is not too deep, and no task has too many edges: each has a code of its own."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest

from passerelle.control import task_graph
from passerelle.core.errors import GraphLimit
from passerelle.core.task.status import Status
from tests.support.control_client import ControlClient

pytestmark = pytest.mark.anyio


async def refuse(control: ControlClient, limit: str, near: str, kind: str, far: str) -> None:
    """The edge is refused at both ends, and none of these is changed."""
    before = [await control.record(one) for one in (near, far)]
    mirrored = {"parent": "child", "child": "parent", "blocks": "blocked_by"}.get(kind, "blocks")
    for task_id, word, target in ((near, kind, far), (far, mirrored, near)):
        with pytest.raises(GraphLimit) as refused:
            await control.do("link_tasks", taskId=task_id, kind=word, target=target)
        assert refused.value.stable_code == f"task_graph_{limit}"
        assert refused.value.field == "target"
    assert [await control.record(one) for one in (near, far)] == before


@pytest.mark.requirement("GR-2")
@pytest.mark.parametrize("length", [2, 3, 7])
async def test_tasks_never_wait_for_each_other_in_a_circle(
    control: ControlClient, length: int
) -> None:
    ring = [await control.create(f"step {n}") for n in range(length)]
    for earlier, later in pairwise(ring):
        await control.do("link_tasks", taskId=later, kind="blocked_by", target=earlier)
    await refuse(control, "cycle", ring[0], "blocked_by", ring[-1])
    # Where one of the edges is gone there is no circle.
    await control.do("unlink_tasks", taskId=ring[1], kind="blocked_by", target=ring[0])
    await control.do("link_tasks", taskId=ring[0], kind="blocked_by", target=ring[-1])
    assert (await control.record(ring[0])).status is Status.BLOCKED
    await refuse(control, "cycle", ring[1], "blocked_by", ring[0])


@pytest.mark.requirement("GR-1")
async def test_no_task_stands_above_itself(control: ControlClient) -> None:
    top = await control.create("top")
    middle = await control.create("middle", parentTaskId=top)
    last = await control.create("last", parentTaskId=middle)
    other = await control.create("other")
    await control.do("link_tasks", taskId=last, kind="child", target=other)
    await refuse(control, "cycle", last, "child", top)
    await refuse(control, "cycle", other, "child", middle)
    await control.do("link_tasks", taskId=top, kind="child", target=other)


@pytest.mark.requirement("GR-1")
async def test_tree_is_so_deep_and_no_deeper(control: ControlClient) -> None:
    chain = [await control.create("level 0")]
    for number in range(task_graph.MOST_ABOVE):
        chain.append(await control.create(f"level {number + 1}", parentTaskId=chain[-1]))
    with pytest.raises(GraphLimit) as refused:
        await control.create("too deep", parentTaskId=chain[-1])
    assert (refused.value.field, refused.value.stable_code) == (
        *("parentTaskId", "task_graph_depth"),
    )
    other = await control.create("above")
    below = await control.create("below", parentTaskId=other)
    await refuse(control, "depth", other, "child", chain[0])
    await refuse(control, "depth", chain[-1], "child", below)
    await refuse(control, "depth", chain[-2], "child", other)
    await control.do("link_tasks", taskId=chain[-2], kind="child", target=below)


@pytest.mark.requirement("GR-1", "GR-2")
async def test_task_has_so_many_edges_of_a_kind_and_no_more(
    control: ControlClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task_graph, "MOST_EDGES", 3)
    top = await control.create("top")
    children = [await control.create(f"part {n}", parentTaskId=top) for n in range(3)]
    with pytest.raises(GraphLimit) as refused:
        await control.create("one too many", parentTaskId=top)
    assert (refused.value.field, refused.value.stable_code) == (
        *("parentTaskId", "task_graph_width"),
    )
    other = await control.create("other")
    await refuse(control, "width", top, "child", other)
    await control.do("unlink_tasks", taskId=top, kind="child", target=children[0])
    await control.create("in its place", parentTaskId=top)
    for child in children:
        await control.do("link_tasks", taskId=other, kind="blocked_by", target=child)
    await refuse(control, "width", top, "blocks", other)


@pytest.mark.requirement("GR-2")
async def test_of_two_edges_made_at_once_that_close_a_circle_not_both_stand(
    control: ControlClient,
) -> None:
    refusals = 0
    for number in range(12):
        one, two = [await control.create(f"{number} {name}") for name in ("one", "two")]
        answers = await asyncio.gather(
            control.do("link_tasks", taskId=one, kind="blocked_by", target=two),
            control.do("link_tasks", taskId=two, kind="blocked_by", target=one),
            return_exceptions=True,
        )
        refused = [answer for answer in answers if isinstance(answer, BaseException)]
        assert refused, number
        assert {type(error) for error in refused} == {GraphLimit}
        refusals += len(refused)
        records = [await control.record(task_id) for task_id in (one, two)]
        assert sum(record.blocker is not None for record in records) == 2 - len(refused)
        # Both ends say the same, and who waits for nothing is not blocked.
        for record, far in zip(records, reversed(records), strict=True):
            blocks = any(edge.is_waited_for for edge in far.relationships)
            assert blocks is (record.blocker is not None)
            assert (record.status is Status.BLOCKED) is (record.blocker is not None)
    assert refusals >= 12


@pytest.mark.requirement("GR-2")
async def test_graph_that_is_too_large_to_be_looked_at_gets_no_further_edge(
    control: ControlClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task_graph, "MOST_LOOKED_AT", 4)
    chain = [await control.create(f"step {n}") for n in range(6)]
    for earlier, later in pairwise(chain[:5]):
        await control.do("link_tasks", taskId=later, kind="blocked_by", target=earlier)
    with pytest.raises(GraphLimit) as refused:
        await control.do("link_tasks", taskId=chain[5], kind="blocked_by", target=chain[4])
    assert refused.value.stable_code == "task_graph_size"
