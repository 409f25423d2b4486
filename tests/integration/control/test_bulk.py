"""One verb for many tasks: all of them or none, as their number says, and each judged for itself."""

from __future__ import annotations

from typing import Any

import pytest

from passerelle.core.errors import InvalidInput, WriteConflict
from passerelle.core.task.status import Status
from passerelle.core.wire.json import JsonObject
from tests.support.control_client import ControlClient
from tests.support.harness import BOB

pytestmark = pytest.mark.anyio


async def start(control: ControlClient, count: int, title: str = "report") -> list[str]:
    tasks = [await control.start(f"ask which {number}", title=title) for number in range(count)]
    for task in tasks:
        await control.until(task, Status.WAITING_INPUT)
    return tasks


async def test_every_task_that_matches_is_cancelled(control: ControlClient) -> None:
    wanted, other = await start(control, 3), await start(control, 1, "tides")
    answer: Any = await control.do(
        "change_tasks", verb="cancel", filter={"text": "report"}, expect=3, reason="enough"
    )
    assert (answer["matched"], answer["changed"], answer["unchanged"]) == (3, 3, [])
    for task in wanted:
        await control.until(task, Status.CANCELLED)
    assert (await control.record(other[0])).status is Status.WAITING_INPUT


async def test_repeat_finds_what_is_done_done_and_what_matches_no_more_refused(
    control: ControlClient,
) -> None:
    await start(control, 2)
    given: Any = {"verb": "cancel", "filter": {"text": "report"}, "expect": 2}
    waiting: Any = {**given, "filter": {"status": ["waiting_input"]}}
    assert (await control.do("change_tasks", **waiting))["changed"] == 2
    assert (await control.do("change_tasks", **given))["changed"] == 0
    with pytest.raises(WriteConflict):
        await control.do("change_tasks", **waiting)


@pytest.mark.parametrize("expect", [0, 1, 3])
async def test_another_number_than_is_expected_changes_nothing(
    control: ControlClient, expect: int
) -> None:
    tasks = await start(control, 2)
    with pytest.raises(WriteConflict) as caught:
        await control.do("change_tasks", verb="cancel", filter={"agent": "echo"}, expect=expect)
    assert (caught.value.details["expected"], caught.value.details["actual"]) == (expect, 2)
    for task in tasks:
        assert (await control.record(task)).status is Status.WAITING_INPUT


async def test_task_that_does_not_take_the_verb_stops_no_other(control: ControlClient) -> None:
    [going] = await start(control, 1)
    done = await control.start("echo done", title="report")
    await control.until(done, Status.COMPLETED)
    answer: Any = await control.do(
        "change_tasks", verb="cancel", filter={"agent": "echo"}, expect=2
    )
    assert (answer["matched"], answer["changed"]) == (2, 1)
    [unchanged] = answer["unchanged"]
    assert (unchanged["taskId"], unchanged["code"]) == (done, "not_cancelable")
    await control.until(going, Status.CANCELLED)


@pytest.mark.requirement("MK-12")
async def test_cancel_of_tasks_by_their_ids_is_answered_for_each_whatever_it_is(
    control: ControlClient,
) -> None:
    going = await start(control, 2)
    done = await control.start("echo done")
    await control.until(done, Status.COMPLETED)
    stopped = await control.create()
    await control.do("cancel_task", taskId=stopped)
    unknown = f"{going[0][:-6]}000000"
    ids = [*going, done, stopped, unknown, "the one of yesterday", "", going[0]]
    named: JsonObject = {"taskIds": [*ids]}
    answer: Any = await control.do("change_tasks", verb="cancel", filter=named, expect=7)
    assert (answer["matched"], answer["changed"]) == (7, 2)
    assert {one["taskId"]: one["code"] for one in answer["unchanged"]} == {
        done: "not_cancelable",
        stopped: "not_cancelable",
        unknown: "not_found",
        "the one of yesterday": "invalid_input",
        "": "invalid_input",
    }
    told = {one["taskId"]: one["message"] for one in answer["unchanged"]}
    assert ("completed" in told[done], "cancelled" in told[stopped]) == (True, True)
    for task in going:
        await control.until(task, Status.CANCELLED)
    assert (await control.record(done)).status is Status.COMPLETED
    alone = {
        one: (await control.do("cancel_task", taskId=one))["outcome"] for one in (done, stopped)
    }
    assert alone == {done: "already_done", stopped: "already_cancelled"}


async def test_ids_of_another_caller_are_as_unknown_as_those_of_nobody(
    control: ControlClient,
) -> None:
    [going] = await start(control, 1)
    given: Any = {"verb": "cancel", "filter": {"taskIds": [going]}, "expect": 1}
    answer: Any = await control.do("change_tasks", None, BOB, **given)
    assert [(one["taskId"], one["code"]) for one in answer["unchanged"]] == [(going, "not_found")]
    assert (await control.record(going)).status is Status.WAITING_INPUT


@pytest.mark.parametrize(
    ("members", "expect", "error"),
    [
        ({"agent": "echo"}, 1, InvalidInput),
        ({"taskIds": []}, 0, InvalidInput),
        ({}, 2, WriteConflict),
    ],
)
async def test_ids_stand_alone_and_are_as_many_as_is_expected(
    control: ControlClient, members: JsonObject, expect: int, error: type[Exception]
) -> None:
    [going] = await start(control, 1)
    with pytest.raises(error):
        await control.do(
            "change_tasks", verb="cancel", filter={"taskIds": [going], **members}, expect=expect
        )
    assert (await control.record(going)).status is Status.WAITING_INPUT


async def test_tasks_of_others_match_no_filter(control: ControlClient) -> None:
    await start(control, 1)
    answer: Any = await control.do("change_tasks", None, BOB, verb="cancel", filter={}, expect=0)
    assert answer["matched"] == 0


async def test_failed_tasks_are_tried_again(control: ControlClient) -> None:
    tasks = [await control.start("fail") for _ in range(2)]
    for task in tasks:
        await control.until(task, Status.FAILED)
    answer: Any = await control.do(
        "change_tasks", verb="retry", filter={"status": ["failed"]}, expect=2
    )
    assert answer["changed"] == 2
    for task in tasks:
        assert (await control.record(task)).status is not Status.FAILED


async def test_tasks_are_tried_again_once_for_each_key(control: ControlClient) -> None:
    tasks = [await control.start("fail badly", title="report") for _ in range(2)]
    for task in tasks:
        await control.until(task, Status.FAILED)
    given: Any = {"verb": "retry", "filter": {"text": "report"}, "expect": 2}
    for _ in range(2):
        assert (await control.do("change_tasks", "k", **given))["changed"] == 2
    for task in tasks:
        assert (await control.types(task)).count("task.retrying") == 1
        await control.do("cancel_task", taskId=task)


async def test_filter_with_another_member_is_refused(control: ControlClient) -> None:
    with pytest.raises(InvalidInput):
        await control.do("change_tasks", verb="cancel", filter={"colour": "blue"}, expect=0)
