"""An ended task is retried by its owner; the end that its callers saw stays (CMD-10)."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import cast

import orjson
import pytest

from passerelle.a2a_mapping.resume import ResumeRequest
from passerelle.core.commands import CancelTask, GetTask, ListTasks, TurnAccepted
from passerelle.core.errors import (
    InvalidInput,
    NotCancelable,
    NotFound,
    UnsupportedOperation,
    VersionMismatch,
)
from passerelle.core.facts import RetryPolicy
from passerelle.core.ports.log import StreamKind, StreamRef
from passerelle.core.task.record import TaskRecord
from passerelle.core.task.status import Status
from passerelle.core.wire.json import JsonObject
from passerelle.protocol.cursor import Cursor
from tests.support.desk import Desk
from tests.support.house import ADA, House
from tests.support.scripted_tasks import Turn
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio

WHY = "the index is back"


async def fail(turn: Turn) -> None:
    await turn.status("WORKING")
    await turn.artifact("half of it")
    await turn.status("FAILED", "no index")


async def fail_visibly(house: House, text: str = "go") -> TurnAccepted:
    house.peer.next(fail)
    accepted = await house.send(text, wait="stream")
    await house.until(accepted, Status.FAILED)
    return accepted


async def read(house: House, facade: str) -> JsonObject:
    return await house.service.read(ADA, GetTask(facade, agent="echo"))


async def begin(house: House, accepted: TurnAccepted) -> None:
    await house.come_due("retry", accepted.task_id, after_ms=0)


async def list_ids(house: House, context: str | None = None) -> list[str]:
    page = await house.service.read(ADA, ListTasks("echo", context_id=context, page_size=50))
    return [str(task["id"]) for task in cast("list[JsonObject]", page["tasks"])]


def list_sources(record: TaskRecord) -> list[str]:
    return [edge.target for edge in record.relationships if edge.kind == "source_task"]


def state_of(task: JsonObject) -> str:
    return str(cast("JsonObject", task["status"])["state"]).removeprefix("TASK_STATE_")


@pytest.mark.requirement("CMD-10", "ATT-1", "ATT-13", "ATT-17", "LT-12", "LT-13", "TEV-10")
async def test_retried_task_has_its_next_id_and_the_old_one_stays_failed(
    desk: Desk,
) -> None:
    house = desk.house
    accepted = await fail_visibly(house)
    before, frozen = await house.record(accepted), await read(house, accepted.facade)
    answer = await desk.do("retry_task", taskId=accepted.task_id, reason=WHY)
    task = cast("JsonObject", answer["task"])
    assert (task["status"], task["exposure"]) == ("retrying", 2)
    again = f"{accepted.task_id}~2"
    shown = await read(house, again)
    assert (state_of(shown), shown["contextId"]) == ("SUBMITTED", accepted.context_id)
    (said,) = cast("list[JsonObject]", shown["history"])
    assert said["messageId"] == "m-1"

    watching = asyncio.create_task(house.watch(again))
    await begin(house, accepted)
    record = await house.until(accepted, Status.COMPLETED)
    first, second = record.attempts
    assert first == before.attempts[0]
    assert (second.reason, second.asked_by, second.ordinal) == (WHY, ADA.id, 2)
    assert second.remote_task_id != first.remote_task_id
    assert (record.constraints, record.objective) == (before.constraints, before.objective)
    assert list_sources(record) == [accepted.facade]
    assert await read(house, accepted.facade) == frozen
    assert state_of(await read(house, again)) == "COMPLETED"
    assert all(again in str(frame) for frame in await watching)
    assert sorted(await list_ids(house)) == [accepted.facade, again]
    assert sorted(await list_ids(house, accepted.context_id)) == [accepted.facade, again]


@pytest.mark.requirement("LT-12", "LT-13")
async def test_three_retries_give_three_ids_and_each_earlier_one_stays_identical_in_each_byte(
    desk: Desk,
) -> None:
    house = desk.house
    accepted = await fail_visibly(house)
    ids, frozen = [str(accepted.facade)], [await read(house, accepted.facade)]
    for number in (2, 3, 4):
        house.peer.next(fail)
        await desk.do("retry_task", taskId=accepted.task_id, reason=f"try {number}")
        await begin(house, accepted)
        await house.until(accepted, Status.FAILED)
        ids.append(f"{accepted.task_id}~{number}")
        frozen.append(await read(house, ids[-1]))
        assert [await read(house, one) for one in ids] == frozen
    await house.restart()
    assert [await read(house, one) for one in ids] == frozen
    assert len({str(task["id"]) for task in frozen}) == 4
    for missing in ("~1", "~02", "~5"):
        with pytest.raises(NotFound):
            await read(house, accepted.task_id + missing)
    record = await house.record(accepted)
    assert list_sources(record) == ids[:3]


@pytest.mark.requirement("LT-12")
async def test_old_id_accepts_nothing_while_the_new_one_runs(desk: Desk) -> None:
    house = desk.house
    accepted = await fail_visibly(house)
    frozen = await read(house, accepted.facade)
    house.peer.hold()
    await desk.do("retry_task", taskId=accepted.task_id, reason=WHY)
    await begin(house, accepted)
    await house.until(accepted, Status.RUNNING)
    with pytest.raises(UnsupportedOperation, match="the task has ended"):
        await house.send("more", task=accepted.facade)
    with pytest.raises(UnsupportedOperation, match="the task has ended"):
        await house.watch(accepted.facade)
    with pytest.raises(NotCancelable):
        await house.service.execute(ADA, CancelTask(accepted.facade, agent="echo"), None)
    house.peer.release_all()
    await house.until(accepted, Status.COMPLETED)
    assert await read(house, accepted.facade) == frozen


@pytest.mark.requirement("LT-13")
async def test_reader_resuming_the_new_id_is_not_stopped_by_the_end_of_the_old_one(
    desk: Desk,
) -> None:
    house = desk.house
    accepted = await fail_visibly(house)
    entries = await house.entries(accepted.session_id)
    house.peer.hold()
    await desk.do("retry_task", taskId=accepted.task_id, reason=WHY)
    again = f"{accepted.task_id}~2"
    head = await house.store.log.read_head(StreamRef(StreamKind.SESSION, accepted.session_id))
    assert head is not None
    wish = ResumeRequest(str(Cursor(head.epoch, 1, entries[1].previous)))
    async with house.service.follow(ADA, again, wish=wish) as followed:
        assert followed.resumed
        await begin(house, accepted)
        house.peer.release_all()
        frames = [cast("JsonObject", orjson.loads(frame.data)) async for frame in followed.frames]
    assert all(again in str(frame) for frame in frames)
    assert "SUBMITTED" in str(frames[0])
    assert "COMPLETED" in str(frames[-1])


async def test_failed_task_that_was_never_shown_keeps_its_id(desk: Desk) -> None:
    house = desk.house

    async def refuse(turn: Turn) -> None:
        await turn.refuse(-32602, "no")

    house.peer.next(refuse)
    accepted = await house.send("go")
    record = await house.until(accepted, Status.FAILED)
    assert not record.shown
    with pytest.raises(NotFound):
        await read(house, accepted.facade)
    await desk.do("retry_task", taskId=accepted.task_id, reason=WHY)
    await begin(house, accepted)
    record = await house.until(accepted, Status.COMPLETED)
    assert (record.exposure, len(record.attempts), list_sources(record)) == (1, 2, [])
    assert state_of(await read(house, accepted.facade)) == "COMPLETED"


async def test_retry_of_a_task_answered_with_a_message_gets_another_id(desk: Desk) -> None:
    async def answer(turn: Turn) -> None:
        await turn.answer("hello")

    house = desk.house
    house.peer.next(answer)
    accepted = await house.send("go")
    answered = await house.hear(accepted)
    await desk.do("retry_task", taskId=accepted.task_id, reason="say it again")
    with pytest.raises(NotFound):
        await read(house, accepted.facade)
    assert await house.hear(accepted) == answered
    await begin(house, accepted)
    await house.until(accepted, Status.COMPLETED)
    assert state_of(await read(house, f"{accepted.task_id}~2")) == "COMPLETED"


@pytest.mark.requirement("CMD-10", "CMD-30")
async def test_retry_is_scheduled_once_per_key_and_only_at_the_version_read(
    desk: Desk,
) -> None:
    house = desk.house
    accepted = await fail_visibly(house)
    version = int(str((await desk.do("get_task", taskId=accepted.task_id))["version"]))
    with pytest.raises(VersionMismatch):
        await desk.do("retry_task", taskId=accepted.task_id, reason=WHY, version=version + 1)
    for repeated in (False, True):
        answer = await desk.do("retry_task", "k-1", taskId=accepted.task_id, reason=WHY)
        assert answer["repeated"] is repeated
    await begin(house, accepted)
    await house.until(accepted, Status.COMPLETED)
    assert len(house.peer.messages) == 2


@pytest.mark.requirement("CMD-10")
async def test_running_or_never_started_task_is_not_retried(desk: Desk) -> None:
    house = desk.house
    created = await desk.create()
    with pytest.raises(UnsupportedOperation, match="never started"):
        await desk.do("retry_task", taskId=created, reason=WHY)
    house.peer.hold()
    accepted = await house.send("go")
    await house.until(accepted, Status.RUNNING)
    with pytest.raises(UnsupportedOperation, match="under way"):
        await desk.do("retry_task", taskId=accepted.task_id, reason=WHY)
    with pytest.raises(InvalidInput):
        await desk.do("retry_task", taskId=accepted.task_id, reason="")
    house.peer.release_all()
    await house.until(accepted, Status.COMPLETED)


@pytest.mark.requirement("CMD-10", "ATT-16")
async def test_retry_goes_to_the_named_agent_if_its_caller_may_call_it(desk: Desk) -> None:
    house = desk.house
    accepted = await fail_visibly(house)
    bound = replace(ADA, agents=frozenset({"echo"}))
    with pytest.raises(NotFound):
        await desk.do("retry_task", None, bound, taskId=accepted.task_id, reason=WHY, agent="other")
    with pytest.raises(NotFound):
        await desk.do("retry_task", taskId=accepted.task_id, reason=WHY, agent="nobody")
    await desk.do("retry_task", taskId=accepted.task_id, reason=WHY, agent="other")
    await begin(house, accepted)
    record = await house.until(accepted, Status.COMPLETED)
    assert [one.worker.peer for one in record.attempts] == ["echo", "other"]
    assert state_of(await read(house, f"{accepted.task_id}~2")) == "COMPLETED"


@pytest.mark.requirement("ATT-10", "CMD-10")
async def test_attempts_before_a_retry_do_not_count_towards_its_limit(desk: Desk) -> None:
    house = desk.house
    house.policy = RetryPolicy(attempts=2, backoff_ms=1)
    house.peer.next(fail, fail, fail)
    accepted = await house.send("go", wait="stream")
    await house.until(accepted, Status.RETRYING)
    await house.come_due("retry", accepted.task_id, after_ms=10)
    await house.until(accepted, Status.FAILED)
    await desk.do("retry_task", taskId=accepted.task_id, reason=WHY)
    await begin(house, accepted)

    async def is_fourth_due() -> bool:
        record = await house.record(accepted)
        return record.status is Status.RETRYING and len(record.attempts) == 3

    await wait_until(is_fourth_due, 15, "the policy counts from the retry")
    await house.come_due("retry", accepted.task_id, after_ms=10)
    record = await house.until(accepted, Status.COMPLETED)
    assert [one.asked_by for one in record.attempts] == [None, None, ADA.id, None]


@pytest.mark.requirement("CMD-10")
async def test_retry_command_skips_the_backoff_before_the_next_attempt(
    desk: Desk,
) -> None:
    house = desk.house
    house.policy = RetryPolicy(attempts=2, backoff_ms=30_000)
    house.peer.next(fail)
    accepted = await house.send("go", wait="stream")
    await house.until(accepted, Status.RETRYING)
    await desk.do("retry_task", taskId=accepted.task_id, reason="now")
    await begin(house, accepted)
    record = await house.until(accepted, Status.COMPLETED)
    assert record.exposure == 1
    assert [one.reason for one in record.attempts] == [None, "now"]


@pytest.mark.requirement("ATT-14", "CMD-10")
async def test_lost_task_is_retried_when_its_owner_asks(desk: Desk) -> None:
    house = desk.house

    async def story(turn: Turn) -> None:
        await turn.status("WORKING")
        house.peer.subscribes = False
        await turn.drop()

    house.peer.next(story)
    accepted = await house.send("go", wait="stream")
    await wait_until(lambda: house.peer.count("GetTask"), 15, "it is asked")
    await house.peer.stop()
    house.clock.ahead_ms += 121_000
    await house.until(accepted, Status.LOST)
    await desk.do("retry_task", taskId=accepted.task_id, reason=WHY)
    await house.peer.start()
    await begin(house, accepted)
    record = await house.until(accepted, Status.COMPLETED)
    assert [one.status for one in record.attempts] == [Status.LOST, Status.COMPLETED]
    assert record.exposure == 1
