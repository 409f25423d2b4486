"""Read models through the real service: what a caller reads of sessions, threads and tasks, and how honest it is."""

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
from passerelle.core.session.requests import GetTurnQueue, PromoteQueuedTurn, SetQueuePolicy
from passerelle.core.task.requests import PauseTask, ResumeTask
from passerelle.core.task.status import Status
from tests.integration.delegation.test_turn_queue import follow
from tests.support.house import ADA, House

pytestmark = pytest.mark.anyio


async def look(house: House, accepted: TurnAccepted, model: TaskModel) -> Any:  # noqa: ANN401  a JSON object, read by its members
    return await house.service.read(ADA, GetTaskModel(accepted.facade, model))


async def look_at_session(house: House, accepted: TurnAccepted, **window: int) -> Any:  # noqa: ANN401  a JSON object
    return await house.service.read(ADA, GetSession(accepted.session_id, **window))


@pytest.mark.requirement("SNAP-1", "VAL-7")
async def test_session_shows_its_newest_window_and_the_cursor_gets_the_one_before(
    house: House,
) -> None:
    first, _ = await house.talk("chunks 3")
    for text in ("two", "three"):
        await house.hear(await house.send(text, context_id=first.context_id))
    whole = await look_at_session(house, first)
    head = len(await house.entries(first.session_id))
    assert (whole["sequence"], whole["history"]["first"]) == (head, 1)
    assert whole["cursor"].split(".")[1] == str(head)
    assert whole["marks"]["title"]["state"] == "not_applicable"
    assert [thread["turns"] for thread in whole["threads"]] == [3]
    said = [item["text"] for item in whole["history"]["items"] if item["kind"] == "message"]
    assert said == ["chunks 3", "two", "three"]

    items: list[Any] = []
    before: dict[str, int] = {}
    while True:
        page = (await look_at_session(house, first, limit=7, **before))["history"]
        assert page["last"] - page["first"] < 7
        items = [*page["items"], *items]
        if "before" not in page:
            break
        before = {"before": page["before"]}
    assert items == whole["history"]["items"]
    assert page["marks"]["before"]["state"] == "not_applicable"


@pytest.mark.requirement("SNAP-2", "SNAP-4", "SNAP-18")
async def test_thread_shows_its_question_its_failure_and_which_turns_wait_for_it(
    house: House,
) -> None:
    failed, _ = await house.talk("fail")
    asking = await house.send("ask", context_id=failed.context_id)
    await house.until(asking, Status.WAITING_INPUT)
    thread = cast("Any", await house.service.read(ADA, GetThread(asking.thread_id)))
    record = await house.record(asking)
    (pending,) = thread["pending"]
    assert pending["taskId"] == asking.facade
    assert pending["actions"] == list(record.open_actions)
    assert {incident["taskId"] for incident in thread["incidents"]} == {failed.facade}
    assert thread["lastOutcome"] == "waiting_input"
    assert thread["diagnostics"]["openTasks"] == 1
    assert thread["queue"]["turns"] == []
    assert thread["queue"]["policy"] == "parallel"
    assert {mark["state"] for mark in thread["queue"]["marks"].values()} == {"not_applicable"}
    house.peer.hold()
    working = await house.send("slow 0", wait="none", context_id=asking.context_id)
    waiting = [await follow(house, asking, f"turn {number}") for number in range(3)]
    await house.service.execute(ADA, SetQueuePolicy(asking.thread_id, "queue"), None)
    for number in (1, 2):
        promoted = PromoteQueuedTurn(asking.thread_id, waiting[number].turn_id)
        await house.service.execute(ADA, promoted, None)
    await house.service.execute(ADA, PauseTask(waiting[0].task_id), None)
    thread = cast("Any", await house.service.read(ADA, GetThread(asking.thread_id)))
    assert (thread["status"], thread["activeTurns"]) == ("running", [working.turn_id])
    assert pending in thread["pending"]
    assert {incident["taskId"] for incident in thread["incidents"]} == {failed.facade}
    assert thread["queue"]["turns"] == [waiting[at].turn_id for at in (2, 1, 0)]
    assert thread["queue"]["policy"] == "queue"
    states = ["waiting", "waiting", "held"]
    assert thread["queue"]["resumeState"] == dict(
        zip(thread["queue"]["turns"], states, strict=True)
    )
    assert thread["queue"]["marks"] == {}
    assert thread["diagnostics"]["openTasks"] == 5
    order = cast("Any", await house.service.read(ADA, GetTurnQueue(asking.thread_id)))
    assert [one["turnId"] for one in order["turns"]] == thread["queue"]["turns"]
    await house.service.execute(ADA, ResumeTask(waiting[0].task_id), None)
    house.peer.release_all()
    for turn in (working, *waiting):
        await house.until(turn, Status.COMPLETED)
    tasks = cast("Any", await house.service.read(ADA, GetSessionTasks(asking.session_id)))
    assert [one["actions"] for one in tasks["blocked"]] == [list(record.open_actions)]
