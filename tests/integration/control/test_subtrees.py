"""A pause, its end and a further attempt reach a task and all below it, also where the process dies among them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from passerelle.control import subtrees
from passerelle.core.batch import Batch
from passerelle.core.commands import OtherCommand, Result
from passerelle.core.errors import (
    IdempotencyConflict,
    UnsupportedOperation,
    VersionMismatch,
)
from passerelle.core.ids import Shard
from passerelle.core.ports.due import DueRow
from passerelle.core.principal import Principal
from passerelle.core.task.requests import PauseTask
from passerelle.core.task.status import Status
from passerelle.core.wire.json import Json
from tests.integration.control.stories import is_known
from tests.support.control_client import ControlClient
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("CMD-31")]


_MOST_ROUNDS = 10


class DeadError(Exception):
    """The process is gone right behind an append."""


async def make_tree(control: ControlClient) -> list[str]:
    """A task, two below it, and one below each of these."""
    top = await control.create("sail")
    children = [await control.create(f"part {n}", parentTaskId=top) for n in range(2)]
    return [top, *children, *[await control.create("a bit", parentTaskId=one) for one in children]]


async def statuses(control: ControlClient, tree: list[str]) -> list[str]:
    return [(await control.record(one)).status.value for one in tree]


async def finish(control: ControlClient, top: str) -> int:
    """Has the due row handled until it is gone; how often that took."""
    member, drops = f"tree:{top}", list[str]()

    async def drop(_shard: object, row: DueRow) -> bool:
        drops.append(row.member)
        return True

    rounds = 0
    while (
        rounds < _MOST_ROUNDS
        and (score := (await control.harness.due(top)).get(member))
        and not drops
    ):
        await control.harness.parts.subtrees.on_due(Shard(0), DueRow(member, score), drop)
        rounds += 1
    return rounds


async def die_at(
    control: ControlClient, point: int, method: str, *, idem: str | None = None, **params: Json
) -> None:
    """A command for a tree, and a death so many appends after its wish; then another process over what is stored."""
    count = 0

    async def die(batch: Batch) -> None:
        nonlocal count
        # What its tasks tell the one above them may still be written before the wish is.
        is_wish = any(subtrees.TREE in one.fields for one in batch.entities)
        count += bool(count or is_wish)
        if count >= point:
            raise DeadError

    log = control.harness.log
    log.after_append = die
    # Who only loses its store waits for it, and goes on.
    with pytest.raises(DeadError):
        await control.do(method, idem, propagation="subtree", **params)
    log.after_append = None
    await control.harness.restart()


async def is_over(control: ControlClient, top: str) -> None:
    """Nothing of a wish is left."""
    assert not [row for row in await control.harness.due(top) if row.startswith("tree:")]


@pytest.mark.requirement("CMD-8")
async def test_tree_is_paused_and_goes_on_as_one(control: ControlClient) -> None:
    tree = await make_tree(control)
    top, left, _, deep, _ = tree
    working = await control.start("ask which?", parentTaskId=deep)
    await control.until(working, Status.WAITING_INPUT)
    paused: Any = await control.do(
        "pause_task", "p", taskId=top, propagation="subtree", reason="tea"
    )
    assert paused["subtree"] == {"changed": 6, "done": True, "unchanged": []}
    assert await statuses(control, [*tree, working]) == ["paused"] * 6
    assert {(await control.record(one)).status_reason for one in tree} == {"tea"}
    again: Any = await control.do(
        "pause_task", "p", taskId=top, propagation="subtree", reason="tea"
    )
    assert again["repeated"] is True
    with pytest.raises(IdempotencyConflict):
        await control.do("pause_task", "p", taskId=top)
    with pytest.raises(UnsupportedOperation):
        await control.do("start_task", "s", taskId=left)
    for one in (*tree, working):
        assert (await control.types(one)).count("task.paused") == 1
    resumed: Any = await control.do("resume_task", taskId=top, propagation="subtree")
    assert resumed["subtree"]["changed"] == 6
    assert await statuses(control, [*tree, working]) == ["accepted"] * 5 + ["waiting_input"]
    await is_over(control, top)


async def test_without_the_policy_the_task_alone_is_told(control: ControlClient) -> None:
    tree = await make_tree(control)
    answer = await control.do("pause_task", taskId=tree[0])
    assert answer.get("subtree") is None
    assert await statuses(control, tree) == ["paused"] + ["accepted"] * 4
    with pytest.raises(VersionMismatch):
        await control.do("resume_task", taskId=tree[0], propagation="subtree", version=1)
    await is_over(control, tree[0])


@pytest.mark.requirement("GR-2")
async def test_task_that_waits_for_another_one_is_paused_with_its_tree_and_waits_again(
    control: ControlClient,
) -> None:
    tree = await make_tree(control)
    await control.do("link_tasks", taskId=tree[2], kind="blocked_by", target=tree[1])
    await control.do("pause_task", taskId=tree[0], propagation="subtree")
    assert await statuses(control, tree) == ["paused"] * 5
    answer: Any = await control.do("resume_task", taskId=tree[0], propagation="subtree")
    assert answer["subtree"]["changed"] == 5
    assert await statuses(control, tree) == ["accepted", "accepted", "blocked", *["accepted"] * 2]


async def test_verb_that_no_task_takes_is_refused_as_for_one(control: ControlClient) -> None:
    tree = await make_tree(control)
    with pytest.raises(UnsupportedOperation):
        await control.do("resume_task", taskId=tree[0], propagation="subtree")
    await is_over(control, tree[0])
    assert await statuses(control, tree) == ["accepted"] * 5


@pytest.mark.requirement("CMD-30")
async def test_key_of_a_verb_that_no_task_took_is_free_for_another_try(
    control: ControlClient,
) -> None:
    tree = await make_tree(control)
    for _ in range(2):
        with pytest.raises(UnsupportedOperation):
            await control.do("resume_task", "again", taskId=tree[0], propagation="subtree")
    await control.do("pause_task", taskId=tree[0], propagation="subtree")
    told: Any = await control.do("resume_task", "again", taskId=tree[0], propagation="subtree")
    assert (told["repeated"], told["subtree"]["changed"]) == (False, 5)
    told = await control.do("resume_task", "again", taskId=tree[0], propagation="subtree")
    assert told["repeated"] is True
    assert await statuses(control, tree) == ["accepted"] * 5


@pytest.mark.requirement("CMD-30")
async def test_key_of_a_wish_that_has_not_reached_all_or_was_replaced_is_used(
    control: ControlClient,
) -> None:
    tree = await make_tree(control)
    words: dict[str, Json] = {"taskId": tree[0], "propagation": "subtree"}
    await die_at(control, 3, "pause_task", taskId=tree[0], idem="p")
    told: Any = await control.do("pause_task", "p", **words)
    assert told["repeated"] is True
    with pytest.raises(IdempotencyConflict):
        await control.do("pause_task", "p", **words, reason="another")
    await control.do("resume_task", **words)
    told = await control.do("pause_task", "p", **words)
    assert told["repeated"] is True
    assert await statuses(control, tree) == ["accepted"] * 5


@pytest.mark.requirement("CMD-30")
async def test_verb_that_comes_twice_at_once_under_one_key_tells_each_task_once(
    control: ControlClient,
) -> None:
    tree = await make_tree(control)
    words: dict[str, Json] = {"taskId": tree[0], "propagation": "subtree"}
    await asyncio.gather(*(control.do("pause_task", "p", **words) for _ in range(4)))
    for one in tree:
        assert (await control.types(one)).count("task.paused") == 1, one
    await is_over(control, tree[0])
    told: Any = await control.do("pause_task", "p", **words)
    assert told["repeated"] is True


async def test_row_of_a_wish_comes_to_its_end_behind_many_tasks_that_refuse(
    control: ControlClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subtrees, "MOST_AT_ONCE", 2)
    top = await control.create("sail")
    children = [await control.create(f"part {n}", parentTaskId=top) for n in range(7)]
    await die_at(control, 1, "pause_task", taskId=top)
    execute, refused = control.harness.parts.subtrees.execute, children[:5]

    async def refuse(principal: Principal, command: OtherCommand, idem: str | None) -> Result:
        if isinstance(command, PauseTask) and command.task_id in refused:
            raise UnsupportedOperation("a rule denies it")
        return await execute(principal, command, idem)

    object.__setattr__(control.harness.parts.subtrees, "execute", refuse)
    assert await finish(control, top) == 4
    await is_over(control, top)
    assert (await statuses(control, children))[-2:] == ["paused", "paused"]


@pytest.mark.requirement("CMD-10")
async def test_tasks_below_that_have_failed_are_tried_again_and_no_others(
    control: ControlClient,
) -> None:
    top = await control.start("fail at it")
    await control.until(top, Status.FAILED)
    other = await control.create("sail")
    failed = [await control.start(f"fail once {n}", parentTaskId=other) for n in range(2)]
    for one in failed:
        await control.until(one, Status.FAILED)
    done = await control.start("echo it", parentTaskId=other)
    await control.until(done, Status.COMPLETED)
    idle = await control.create("later", parentTaskId=other)
    answer: Any = await control.do(
        "retry_task", "r", taskId=other, reason="the index is back", propagation="subtree"
    )
    # The task at the top was never started: that it is not tried again keeps nothing from those below it.
    assert answer["subtree"]["changed"] == 2
    assert [one["taskId"] for one in answer["subtree"]["unchanged"]] == [other]
    assert [(await control.types(one)).count("task.retrying") for one in (*failed, done, idle)] == [
        *[1, 1, 0, 0]
    ]
    again: Any = await control.do(
        "retry_task", "r", taskId=other, reason="the index is back", propagation="subtree"
    )
    assert again["repeated"] is True
    assert [(await control.types(one)).count("task.retrying") for one in failed] == [1, 1]
    for one in failed:
        await control.harness.run_due("retry", one, after_ms=1_000)
        assert len((await control.record(one)).attempts) == 2


async def test_more_than_a_caller_waits_for_follow_behind_the_answer(
    control: ControlClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subtrees, "MOST_AT_ONCE", 2)
    tree = await make_tree(control)
    answer: Any = await control.do("pause_task", taskId=tree[0], propagation="subtree")
    assert answer["subtree"]["done"] is False

    async def are_paused() -> bool:
        return set(await statuses(control, tree)) == {"paused"} and not [
            row for row in await control.harness.due(tree[0]) if row.startswith("tree:")
        ]

    await wait_until(are_paused, 15, "all are paused and nothing is owed")


@pytest.mark.requirement("I9")
@pytest.mark.parametrize("verb", ["pause", "retry"])
@pytest.mark.parametrize("point", range(1, 6))
async def test_rest_of_a_tree_is_told_by_a_due_row_after_a_death_and_nobody_twice(
    control: ControlClient, verb: str, point: int
) -> None:
    make = control.start if verb == "retry" else control.create
    top = await control.create("sail")
    children = [await make(f"fail at it {n}", parentTaskId=top) for n in range(4)]
    if verb == "retry":
        for one in children:
            await control.until(one, Status.FAILED)
    told = "task.paused" if verb == "pause" else "task.retrying"
    await die_at(control, point, f"{verb}_task", taskId=top, reason="all of it")
    for one in children:
        # One that was told, and has failed again by now, is not told once more.
        if (await control.record(one)).status is Status.RETRYING:
            await control.harness.run_due("retry", one, after_ms=0)
            await control.until(one, Status.FAILED)
    assert await finish(control, top) == 1
    await is_over(control, top)
    for one in children:
        assert (await control.types(one)).count(told) == 1, one


async def test_later_wish_takes_the_place_of_one_that_has_not_reached_all(
    control: ControlClient,
) -> None:
    tree = await make_tree(control)
    await die_at(control, 1, "pause_task", taskId=tree[0])
    with pytest.raises(UnsupportedOperation):
        await control.do("resume_task", taskId=tree[0], propagation="subtree")
    await finish(control, tree[0])
    assert await statuses(control, tree) == ["accepted"] * 5


@pytest.mark.requirement("CMD-9", "GR-11")
async def test_tree_that_is_paused_is_stopped_as_one(control: ControlClient) -> None:
    tree = await make_tree(control)
    working = await control.start("silent", parentTaskId=tree[3])
    await is_known(control, working)
    await control.do("pause_task", taskId=tree[0], propagation="subtree")
    await control.do("cancel_task", taskId=tree[0], propagation="subtree")
    for one in (*tree, working):
        await control.until(one, Status.CANCELLED)
        assert (await control.types(one)).count("task.cancel_requested") == 1


@pytest.mark.requirement("CMD-9", "GR-11")
@pytest.mark.parametrize("first", ["active_run", "subtree"])
async def test_wish_for_a_tree_whose_top_is_to_stop_already_reaches_what_is_below(
    control: ControlClient, first: str
) -> None:
    control.harness.peer.on_cancel = "ignored"
    top = await control.start("silent")
    await is_known(control, top)
    child = await control.create("part", parentTaskId=top)
    await control.do("cancel_task", taskId=top, propagation=first)
    for _ in range(2):
        await control.do("cancel_task", taskId=top, propagation="subtree")
    assert await statuses(control, [top, child]) == ["cancelling", "cancelled"]
    for one in (top, child):
        assert (await control.types(one)).count("task.cancel_requested") == 1
    assert f"subtree:{top}" in await control.harness.due(top)


@pytest.mark.requirement("CMD-13")
async def test_edge_that_stands_is_made_again_without_a_key_and_nothing_changes(
    control: ControlClient,
) -> None:
    near, far = await control.create("one"), await control.create("two")
    await control.do("link_tasks", taskId=near, kind="blocks", target=far)
    before = [await control.record(one) for one in (near, far)]
    await control.do("link_tasks", taskId=near, kind="blocks", target=far)
    assert [await control.record(one) for one in (near, far)] == before
