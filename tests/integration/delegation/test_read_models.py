"""Read models through the real service: what callers read of sessions, threads and tasks, and how gaps are marked."""

from __future__ import annotations

from typing import Any, cast

import pytest

from passerelle.core.commands import (
    GetSession,
    GetSessionTasks,
    GetTaskModel,
    GetThread,
    TaskModel,
    TurnAccepted,
)
from passerelle.core.session.requests import GetTurnQueue
from passerelle.core.task.status import Status
from tests.integration.delegation.test_turn_queue import follow
from tests.support.harness import ADA, Harness

pytestmark = pytest.mark.anyio


async def read_model(harness: Harness, accepted: TurnAccepted, model: TaskModel) -> Any:  # noqa: ANN401  a JSON object, read by its members
    return await harness.service.read(ADA, GetTaskModel(accepted.facade, model))


async def read_session(harness: Harness, accepted: TurnAccepted, **window: int) -> Any:  # noqa: ANN401  a JSON object
    return await harness.service.read(ADA, GetSession(accepted.session_id, **window))


@pytest.mark.requirement("SNAP-1", "VAL-7")
async def test_session_returns_its_newest_window_and_a_cursor_to_the_previous(
    harness: Harness,
) -> None:
    first, _ = await harness.talk("chunks 3")
    for text in ("two", "three"):
        await harness.await_answer(await harness.send(text, context_id=first.context_id))
    whole = await read_session(harness, first)
    head = len(await harness.entries(first.session_id))
    assert (whole["sequence"], whole["history"]["first"]) == (head, 1)
    assert whole["cursor"].split(".")[1] == str(head)
    assert whole["marks"]["title"]["state"] == "not_applicable"
    assert [thread["turns"] for thread in whole["threads"]] == [3]
    texts = [item["text"] for item in whole["history"]["items"] if item["kind"] == "message"]
    assert texts == ["chunks 3", "two", "three"]

    items: list[Any] = []
    before: dict[str, int] = {}
    while True:
        page = (await read_session(harness, first, limit=7, **before))["history"]
        assert page["last"] - page["first"] < 7
        items = [*page["items"], *items]
        if "before" not in page:
            break
        before = {"before": page["before"]}
    assert items == whole["history"]["items"]
    assert page["marks"]["before"]["state"] == "not_applicable"


@pytest.mark.requirement("SNAP-2", "SNAP-4", "SNAP-18")
async def test_thread_lists_pending_approval_and_failure_and_marks_an_empty_queue(
    harness: Harness,
) -> None:
    failed, _ = await harness.talk("fail")
    asking = await harness.send("ask", context_id=failed.context_id)
    await harness.until(asking, Status.WAITING_INPUT)
    thread = cast("Any", await harness.service.read(ADA, GetThread(asking.thread_id)))
    record = await harness.record(asking)
    (pending,) = thread["pending"]
    assert pending["taskId"] == asking.facade
    assert pending["actions"] == list(record.open_actions)
    assert {incident["taskId"] for incident in thread["incidents"]} == {failed.facade}
    assert thread["lastOutcome"] == "waiting_input"
    assert thread["diagnostics"]["openTasks"] == 1
    assert thread["queue"]["turns"] == []
    assert thread["queue"]["marks"]["turns"]["state"] == "not_applicable"
    tasks = cast("Any", await harness.service.read(ADA, GetSessionTasks(asking.session_id)))
    assert [one["actions"] for one in tasks["blocked"]] == [list(record.open_actions)]


@pytest.mark.requirement("SNAP-2", "SNAP-4")
async def test_thread_lists_pending_approval_and_failure_and_queued_turns(harness: Harness) -> None:
    failed, _ = await harness.talk("fail")
    asking = await harness.send("ask", context_id=failed.context_id)
    await harness.until(asking, Status.WAITING_INPUT)
    # A task that waits for input does not block its context: the next turn begins, and the turns after it wait.
    active = await follow(harness, asking, "silent")
    await harness.until(active, Status.QUEUED)
    first, second = [await follow(harness, asking, text) for text in ("echo one", "echo two")]
    for restarted in (False, True):
        if restarted:
            await harness.restart()
        thread = cast("Any", await harness.service.read(ADA, GetThread(asking.thread_id)))
        (pending,) = thread["pending"]
        assert pending["taskId"] == asking.facade
        assert {incident["taskId"] for incident in thread["incidents"]} == {failed.facade}
        assert thread["lastOutcome"] == "waiting_input"
        assert thread["activeTurns"] == [active.turn_id]
        assert thread["diagnostics"]["openTasks"] == 4
        queue = thread["queue"]
        assert [(one["turnId"], one["position"]) for one in queue["turns"]] == [
            (first.turn_id, 1),
            (second.turn_id, 2),
        ]
        assert {(one["agent"], one["resumeState"]) for one in queue["turns"]} == {
            ("echo", "waiting")
        }
        assert "marks" not in queue or not queue["marks"]
        shown = cast("Any", await harness.service.read(ADA, GetTurnQueue(asking.thread_id)))
        assert shown["turns"] == queue["turns"]
