"""One verb for many tasks: refused when the number differs from the expected one, and checked for each task."""

from __future__ import annotations

from typing import Any

import pytest

from passerelle.core.errors import InvalidInput, WriteConflict
from passerelle.core.task.status import Status
from passerelle.core.wire.json import JsonObject
from tests.support.desk import Desk
from tests.support.house import BOB

pytestmark = pytest.mark.anyio


async def start(desk: Desk, count: int, title: str = "report") -> list[str]:
    tasks = [await desk.start(f"ask which {number}", title=title) for number in range(count)]
    for task in tasks:
        await desk.until(task, Status.WAITING_INPUT)
    return tasks


async def test_every_matching_task_is_cancelled(desk: Desk) -> None:
    wanted, other = await start(desk, 3), await start(desk, 1, "tides")
    answer: Any = await desk.do(
        "change_tasks", verb="cancel", filter={"text": "report"}, expect=3, reason="enough"
    )
    assert (answer["matched"], answer["changed"], answer["unchanged"]) == (3, 3, [])
    for task in wanted:
        await desk.until(task, Status.CANCELLED)
    assert (await desk.record(other[0])).status is Status.WAITING_INPUT


async def test_repeat_changes_nothing_and_a_changed_match_is_refused(desk: Desk) -> None:
    await start(desk, 2)
    given: Any = {"verb": "cancel", "filter": {"text": "report"}, "expect": 2}
    waiting: Any = {**given, "filter": {"status": ["waiting_input"]}}
    assert (await desk.do("change_tasks", **waiting))["changed"] == 2
    assert (await desk.do("change_tasks", **given))["changed"] == 0
    with pytest.raises(WriteConflict):
        await desk.do("change_tasks", **waiting)


@pytest.mark.parametrize("expect", [0, 1, 3])
async def test_an_unexpected_number_of_matches_changes_nothing(desk: Desk, expect: int) -> None:
    tasks = await start(desk, 2)
    with pytest.raises(WriteConflict) as caught:
        await desk.do("change_tasks", verb="cancel", filter={"agent": "echo"}, expect=expect)
    assert (caught.value.details["expected"], caught.value.details["actual"]) == (expect, 2)
    for task in tasks:
        assert (await desk.record(task)).status is Status.WAITING_INPUT


async def test_a_task_that_refuses_the_verb_does_not_stop_the_others(desk: Desk) -> None:
    [going] = await start(desk, 1)
    done = await desk.start("echo done", title="report")
    await desk.until(done, Status.COMPLETED)
    answer: Any = await desk.do("change_tasks", verb="cancel", filter={"agent": "echo"}, expect=2)
    assert (answer["matched"], answer["changed"]) == (2, 1)
    [unchanged] = answer["unchanged"]
    assert (unchanged["taskId"], unchanged["code"]) == (done, "not_cancelable")
    await desk.until(going, Status.CANCELLED)


@pytest.mark.requirement("MK-12")
async def test_cancel_by_task_ids_reports_the_result_of_each_id(
    desk: Desk,
) -> None:
    going = await start(desk, 2)
    done = await desk.start("echo done")
    await desk.until(done, Status.COMPLETED)
    stopped = await desk.create()
    await desk.do("cancel_task", taskId=stopped)
    unknown = f"{going[0][:-6]}000000"
    ids = [*going, done, stopped, unknown, "the one of yesterday", "", going[0]]
    named: JsonObject = {"taskIds": [*ids]}
    answer: Any = await desk.do("change_tasks", verb="cancel", filter=named, expect=7)
    assert (answer["matched"], answer["changed"]) == (7, 2)
    assert {one["taskId"]: one["code"] for one in answer["unchanged"]} == {
        done: "not_cancelable",
        stopped: "not_cancelable",
        unknown: "not_found",
        "the one of yesterday": "invalid_input",
        "": "invalid_input",
    }
    messages = {one["taskId"]: one["message"] for one in answer["unchanged"]}
    assert ("completed" in messages[done], "cancelled" in messages[stopped]) == (True, True)
    for task in going:
        await desk.until(task, Status.CANCELLED)
    assert (await desk.record(done)).status is Status.COMPLETED
    alone = {one: (await desk.do("cancel_task", taskId=one))["outcome"] for one in (done, stopped)}
    assert alone == {done: "already_done", stopped: "already_cancelled"}


async def test_task_ids_of_another_caller_are_reported_as_unknown(desk: Desk) -> None:
    [going] = await start(desk, 1)
    given: Any = {"verb": "cancel", "filter": {"taskIds": [going]}, "expect": 1}
    answer: Any = await desk.do("change_tasks", None, BOB, **given)
    assert [(one["taskId"], one["code"]) for one in answer["unchanged"]] == [(going, "not_found")]
    assert (await desk.record(going)).status is Status.WAITING_INPUT


@pytest.mark.parametrize(
    ("members", "expect", "error"),
    [
        ({"agent": "echo"}, 1, InvalidInput),
        ({"taskIds": []}, 0, InvalidInput),
        ({}, 2, WriteConflict),
    ],
)
async def test_task_ids_exclude_other_filters_and_match_the_expected_number(
    desk: Desk, members: JsonObject, expect: int, error: type[Exception]
) -> None:
    [going] = await start(desk, 1)
    with pytest.raises(error):
        await desk.do(
            "change_tasks", verb="cancel", filter={"taskIds": [going], **members}, expect=expect
        )
    assert (await desk.record(going)).status is Status.WAITING_INPUT


async def test_tasks_of_other_owners_match_no_filter(desk: Desk) -> None:
    await start(desk, 1)
    answer: Any = await desk.do("change_tasks", None, BOB, verb="cancel", filter={}, expect=0)
    assert answer["matched"] == 0


async def test_failed_tasks_are_retried(desk: Desk) -> None:
    tasks = [await desk.start("fail") for _ in range(2)]
    for task in tasks:
        await desk.until(task, Status.FAILED)
    answer: Any = await desk.do(
        "change_tasks", verb="retry", filter={"status": ["failed"]}, expect=2
    )
    assert answer["changed"] == 2
    for task in tasks:
        assert (await desk.record(task)).status is not Status.FAILED


async def test_tasks_are_retried_once_per_key(desk: Desk) -> None:
    tasks = [await desk.start("fail badly", title="report") for _ in range(2)]
    for task in tasks:
        await desk.until(task, Status.FAILED)
    given: Any = {"verb": "retry", "filter": {"text": "report"}, "expect": 2}
    for _ in range(2):
        assert (await desk.do("change_tasks", "k", **given))["changed"] == 2
    for task in tasks:
        assert (await desk.types(task)).count("task.retrying") == 1
        await desk.do("cancel_task", taskId=task)


async def test_filter_with_an_unknown_member_is_refused(desk: Desk) -> None:
    with pytest.raises(InvalidInput):
        await desk.do("change_tasks", verb="cancel", filter={"colour": "blue"}, expect=0)
