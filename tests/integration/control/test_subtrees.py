"""Pause, resume and retry reach a task and all below it, also across a crash in between."""

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
from tests.integration.control.scenarios import is_known
from tests.support.control_client import ControlClient
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("CMD-31")]


_MOST_ROUNDS = 10


class DeadError(Exception):
    """The process ends right after an append."""


async def make_tree(control: ControlClient) -> list[str]:
    """Creates a task, two below it, and one below each of these."""
    top = await control.create("sail")
    children = [await control.create(f"part {n}", parentTaskId=top) for n in range(2)]
    return [top, *children, *[await control.create("a bit", parentTaskId=one) for one in children]]


async def statuses(control: ControlClient, tree: list[str]) -> list[str]:
    return [(await control.record(one)).status.value for one in tree]


async def finish(control: ControlClient, top: str) -> int:
    """Handles the due row until it is gone; returns how many visits that took."""
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


async def crash_at(
    control: ControlClient, point: int, method: str, *, idem: str | None = None, **params: Json
) -> None:
    """Sends a tree command, crashes at the ``point``-th append from its request on, and restarts."""
    count = 0

    async def die(batch: Batch) -> None:
        nonlocal count
        # Updates of the tasks to their parent may be written before the request is.
        is_wish = any(subtrees.TREE in one.fields for one in batch.entities)
        count += bool(count or is_wish)
        if count >= point:
            raise DeadError

    log = control.harness.log
    log.after_append = die
    # A process that only loses its store would wait for it and continue.
    with pytest.raises(DeadError):
        await control.do(method, idem, propagation="subtree", **params)
    log.after_append = None
    await control.harness.restart()


async def assert_no_request_left(control: ControlClient, top: str) -> None:
    """No request for the tree is left."""
    assert not [row for row in await control.harness.due(top) if row.startswith("tree:")]


@pytest.mark.requirement("CMD-8")
async def test_tree_is_paused_and_resumed_as_one(control: ControlClient) -> None:
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
    await assert_no_request_left(control, top)


async def test_without_propagation_only_the_task_itself_changes(control: ControlClient) -> None:
    tree = await make_tree(control)
    answer = await control.do("pause_task", taskId=tree[0])
    assert answer.get("subtree") is None
    assert await statuses(control, tree) == ["paused"] + ["accepted"] * 4
    with pytest.raises(VersionMismatch):
        await control.do("resume_task", taskId=tree[0], propagation="subtree", version=1)
    await assert_no_request_left(control, tree[0])


@pytest.mark.requirement("GR-2")
async def test_blocked_task_is_paused_with_its_tree_and_blocked_again_after_it(
    control: ControlClient,
) -> None:
    tree = await make_tree(control)
    await control.do("link_tasks", taskId=tree[2], kind="blocked_by", target=tree[1])
    await control.do("pause_task", taskId=tree[0], propagation="subtree")
    assert await statuses(control, tree) == ["paused"] * 5
    answer: Any = await control.do("resume_task", taskId=tree[0], propagation="subtree")
    assert answer["subtree"]["changed"] == 5
    assert await statuses(control, tree) == ["accepted", "accepted", "blocked", *["accepted"] * 2]


async def test_verb_that_no_task_accepts_is_refused_as_for_one_task(control: ControlClient) -> None:
    tree = await make_tree(control)
    with pytest.raises(UnsupportedOperation):
        await control.do("resume_task", taskId=tree[0], propagation="subtree")
    await assert_no_request_left(control, tree[0])
    assert await statuses(control, tree) == ["accepted"] * 5


@pytest.mark.requirement("CMD-30")
async def test_key_of_a_verb_that_no_task_accepted_can_be_used_again(
    control: ControlClient,
) -> None:
    tree = await make_tree(control)
    for _ in range(2):
        with pytest.raises(UnsupportedOperation):
            await control.do("resume_task", "again", taskId=tree[0], propagation="subtree")
    await control.do("pause_task", taskId=tree[0], propagation="subtree")
    answer: Any = await control.do("resume_task", "again", taskId=tree[0], propagation="subtree")
    assert (answer["repeated"], answer["subtree"]["changed"]) == (False, 5)
    answer = await control.do("resume_task", "again", taskId=tree[0], propagation="subtree")
    assert answer["repeated"] is True
    assert await statuses(control, tree) == ["accepted"] * 5


@pytest.mark.requirement("CMD-30")
async def test_key_of_an_unfinished_or_replaced_request_is_used(control: ControlClient) -> None:
    tree = await make_tree(control)
    words: dict[str, Json] = {"taskId": tree[0], "propagation": "subtree"}
    await crash_at(control, 3, "pause_task", taskId=tree[0], idem="p")
    answer: Any = await control.do("pause_task", "p", **words)
    assert answer["repeated"] is True
    with pytest.raises(IdempotencyConflict):
        await control.do("pause_task", "p", **words, reason="another")
    await control.do("resume_task", **words)
    answer = await control.do("pause_task", "p", **words)
    assert answer["repeated"] is True
    assert await statuses(control, tree) == ["accepted"] * 5


@pytest.mark.requirement("CMD-30")
async def test_concurrent_repeats_under_one_key_change_each_task_once(
    control: ControlClient,
) -> None:
    tree = await make_tree(control)
    words: dict[str, Json] = {"taskId": tree[0], "propagation": "subtree"}
    await asyncio.gather(*(control.do("pause_task", "p", **words) for _ in range(4)))
    for one in tree:
        assert (await control.types(one)).count("task.paused") == 1, one
    await assert_no_request_left(control, tree[0])
    answer: Any = await control.do("pause_task", "p", **words)
    assert answer["repeated"] is True


async def test_row_of_a_request_finishes_although_many_tasks_refuse(
    control: ControlClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subtrees, "MOST_AT_ONCE", 2)
    top = await control.create("sail")
    children = [await control.create(f"part {n}", parentTaskId=top) for n in range(7)]
    await crash_at(control, 1, "pause_task", taskId=top)
    execute, refused = control.harness.parts.subtrees.execute, children[:5]

    async def refuse(principal: Principal, command: OtherCommand, idem: str | None) -> Result:
        if isinstance(command, PauseTask) and command.task_id in refused:
            raise UnsupportedOperation("a rule denies it")
        return await execute(principal, command, idem)

    object.__setattr__(control.harness.parts.subtrees, "execute", refuse)
    assert await finish(control, top) == 4
    await assert_no_request_left(control, top)
    assert (await statuses(control, children))[-2:] == ["paused", "paused"]


@pytest.mark.requirement("CMD-10")
async def test_failed_tasks_of_a_tree_are_retried_and_no_others(control: ControlClient) -> None:
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
    # The top task was never started: its refusal does not hold back the tasks below it.
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


async def test_tasks_beyond_the_first_batch_are_changed_after_the_response(
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
async def test_due_row_finishes_a_tree_after_a_crash_and_changes_no_task_twice(
    control: ControlClient, verb: str, point: int
) -> None:
    make = control.start if verb == "retry" else control.create
    top = await control.create("sail")
    children = [await make(f"fail at it {n}", parentTaskId=top) for n in range(4)]
    if verb == "retry":
        for one in children:
            await control.until(one, Status.FAILED)
    event_type = "task.paused" if verb == "pause" else "task.retrying"
    await crash_at(control, point, f"{verb}_task", taskId=top, reason="all of it")
    for one in children:
        # A task that was retried and has failed again by now is not retried once more.
        if (await control.record(one)).status is Status.RETRYING:
            await control.harness.run_due("retry", one, after_ms=0)
            await control.until(one, Status.FAILED)
    assert await finish(control, top) == 1
    await assert_no_request_left(control, top)
    for one in children:
        assert (await control.types(one)).count(event_type) == 1, one


async def test_later_request_replaces_an_unfinished_one(control: ControlClient) -> None:
    tree = await make_tree(control)
    await crash_at(control, 1, "pause_task", taskId=tree[0])
    with pytest.raises(UnsupportedOperation):
        await control.do("resume_task", taskId=tree[0], propagation="subtree")
    await finish(control, tree[0])
    assert await statuses(control, tree) == ["accepted"] * 5


@pytest.mark.requirement("CMD-9", "GR-11")
async def test_paused_tree_is_cancelled_as_one(control: ControlClient) -> None:
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
async def test_cancel_of_a_tree_whose_top_is_already_cancelling_reaches_the_tasks_below(
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
async def test_repeated_link_without_a_key_changes_nothing(control: ControlClient) -> None:
    near, far = await control.create("one"), await control.create("two")
    await control.do("link_tasks", taskId=near, kind="blocks", target=far)
    before = [await control.record(one) for one in (near, far)]
    await control.do("link_tasks", taskId=near, kind="blocks", target=far)
    assert [await control.record(one) for one in (near, far)] == before
