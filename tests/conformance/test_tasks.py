"""GetTask, ListTasks and CancelTask (A2A 1.0 sections 3.1.3 to 3.1.5)."""

from __future__ import annotations

import pytest

from tests.conformance import errors
from tests.conformance.callers import Caller, Json
from tests.conformance.shapes import COMPLETED, WAITING, check_task
from tests.conformance.site import Site, write

pytestmark = pytest.mark.anyio


async def list_pages(caller: Caller, size: int, **query: object) -> list[Json]:
    """Every page of a list."""
    pages: list[Json] = []
    token = ""
    while True:
        asked = {"pageSize": size, **query, **({"pageToken": token} if token else {})}
        pages.append((await caller.call("ListTasks", asked)).said)
        token = pages[-1]["nextPageToken"]
        if not token:
            return pages


@pytest.mark.kit("CORE-GET-001")
async def test_task_is_read_in_its_current_state(caller: Caller) -> None:
    waiting = await caller.make_task(write("tck-input-required"))
    found = await caller.read_task(waiting["id"])
    check_task(found)
    assert found == waiting
    done = await caller.make_task(write("tck-artifact-text", taskId=waiting["id"]))
    assert (await caller.read_task(waiting["id"])) == done
    assert done["artifacts"][0]["parts"] == [{"text": "Generated text content"}]


@pytest.mark.kit("CORE-GET-002", "CORE-CANCEL-003", "STREAM-SUB-004")
async def test_unknown_task_is_not_found(caller: Caller) -> None:
    for task_id in ("no-such-task", "task_0000000000000000000000000000"):
        for operation in ("GetTask", "CancelTask"):
            refused = (await caller.call(operation, {"id": task_id})).refused
            errors.TASK_NOT_FOUND.check(refused, caller.binding)
        async with caller.stream("SubscribeToTask", {"id": task_id}) as stream:
            assert stream.refusal is not None
            errors.TASK_NOT_FOUND.check(stream.refusal, caller.binding)


@pytest.mark.kit("CORE-LIST-001")
async def test_list_has_the_tasks_of_the_caller_only(caller: Caller, site: Site) -> None:
    mine = await caller.make_task(write("tck-complete-task"))
    async with site.open_caller(caller.binding, "bob") as bob:
        theirs = await bob.make_task(write("tck-complete-task"))
        listed = {task["id"] for page in await list_pages(bob, 100) for task in page["tasks"]}
    seen = {task["id"] for page in await list_pages(caller, 100) for task in page["tasks"]}
    assert mine["id"] in seen - listed
    assert theirs["id"] in listed - seen


@pytest.mark.kit("CORE-LIST-002", "CORE-LIST-003", "CORE-LIST-004")
async def test_pages_hold_every_task_once_newest_first(caller: Caller) -> None:
    context = write("list")["messageId"]
    made = [
        (await caller.make_task(write("tck-complete-task", contextId=context)))["id"]
        for _ in range(5)
    ]
    pages = await list_pages(caller, 2, contextId=context)
    assert [len(page["tasks"]) for page in pages] == [2, 2, 1]
    assert [bool(page["nextPageToken"]) for page in pages] == [True, True, False]
    assert {(page["pageSize"], page["totalSize"]) for page in pages} == {(2, 5)}
    tasks = [task for page in pages for task in page["tasks"]]
    assert sorted(task["id"] for task in tasks) == sorted(made)
    times = [task["status"]["timestamp"] for task in tasks]
    assert times == sorted(times, reverse=True)


@pytest.mark.kit("CORE-LIST-004")
async def test_list_of_an_unknown_context_is_an_empty_page_with_all_its_fields(
    caller: Caller,
) -> None:
    page = (await caller.call("ListTasks", {"contextId": "nowhere", "pageSize": 100})).said
    assert page == {"tasks": [], "nextPageToken": "", "pageSize": 100, "totalSize": 0}


@pytest.mark.kit("CORE-LIST-005")
async def test_list_omits_artifacts_unless_requested(caller: Caller) -> None:
    context = write("list")["messageId"]
    task = await caller.make_task(write("tck-artifact-text", contextId=context))
    for asked in ({}, {"includeArtifacts": False}):
        page = (await caller.call("ListTasks", {"contextId": context, **asked})).said
        assert "artifacts" not in page["tasks"][0]
    asked = {"contextId": context, "includeArtifacts": True}
    page = (await caller.call("ListTasks", asked)).said
    assert page["tasks"][0]["artifacts"] == task["artifacts"]
    check_task(page["tasks"][0])


@pytest.mark.kit("CORE-LIST-002")
async def test_list_filters_by_state(caller: Caller) -> None:
    context = write("list")["messageId"]
    done = await caller.make_task(write("tck-complete-task", contextId=context))
    waiting = await caller.make_task(write("tck-input-required", contextId=context))
    for state, task in ((COMPLETED, done), (WAITING, waiting)):
        page = (await caller.call("ListTasks", {"contextId": context, "status": state})).said
        assert [one["id"] for one in page["tasks"]] == [task["id"]]


@pytest.mark.kit("CORE-CANCEL-001")
async def test_cancelled_task_has_that_state(caller: Caller) -> None:
    task = await caller.make_task(write("tck-input-required"))
    cancelled = (await caller.call("CancelTask", {"id": task["id"]})).said
    check_task(cancelled)
    assert cancelled["id"] == task["id"]
    assert cancelled["status"]["state"] == "TASK_STATE_CANCELED"
    assert await caller.read_task(task["id"]) == cancelled


@pytest.mark.kit("CORE-CANCEL-002")
async def test_task_that_has_ended_cannot_be_cancelled(caller: Caller) -> None:
    for prefix in ("tck-complete-task", "tck-reject-task", "psl-fail-with-ids"):
        task = await caller.make_task(write(prefix))
        refused = (await caller.call("CancelTask", {"id": task["id"]})).refused
        errors.NOT_CANCELABLE.check(refused, caller.binding)
