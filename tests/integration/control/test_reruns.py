"""A task that has ended is tried again because its owner wants it; what its callers saw of the end stays (CMD-10)."""

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
from tests.support.control_client import ControlClient
from tests.support.harness import ADA, Harness
from tests.support.scripted_tasks import Turn
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio

WHY = "the index is back"


async def fail(turn: Turn) -> None:
    await turn.status("WORKING")
    await turn.artifact("half of it")
    await turn.status("FAILED", "no index")


async def fail_visibly(harness: Harness, text: str = "go") -> TurnAccepted:
    harness.peer.next(fail)
    accepted = await harness.send(text, wait="stream")
    await harness.until(accepted, Status.FAILED)
    return accepted


async def read(harness: Harness, facade: str) -> JsonObject:
    return await harness.service.read(ADA, GetTask(facade, agent="echo"))


async def begin(harness: Harness, accepted: TurnAccepted) -> None:
    await harness.run_due("retry", accepted.task_id, after_ms=0)


async def list_ids(harness: Harness, context: str | None = None) -> list[str]:
    page = await harness.service.read(ADA, ListTasks("echo", context_id=context, page_size=50))
    return [str(task["id"]) for task in cast("list[JsonObject]", page["tasks"])]


def list_sources(record: TaskRecord) -> list[str]:
    return [edge.target for edge in record.relationships if edge.kind == "source_task"]


def state_of(task: JsonObject) -> str:
    return str(cast("JsonObject", task["status"])["state"]).removeprefix("TASK_STATE_")


@pytest.mark.requirement("CMD-10", "ATT-1", "ATT-13", "ATT-17", "LT-12", "LT-13", "TEV-10")
async def test_failed_task_is_tried_again_under_its_next_id_and_the_old_one_stays_failed(
    control: ControlClient,
) -> None:
    harness = control.harness
    accepted = await fail_visibly(harness)
    before, frozen = await harness.record(accepted), await read(harness, accepted.facade)
    answer = await control.do("retry_task", taskId=accepted.task_id, reason=WHY)
    task = cast("JsonObject", answer["task"])
    assert (task["status"], task["exposure"]) == ("retrying", 2)
    again = f"{accepted.task_id}~2"
    shown = await read(harness, again)
    assert (state_of(shown), shown["contextId"]) == ("SUBMITTED", accepted.context_id)
    (said,) = cast("list[JsonObject]", shown["history"])
    assert said["messageId"] == "m-1"

    watching = asyncio.create_task(harness.watch(again))
    await begin(harness, accepted)
    record = await harness.until(accepted, Status.COMPLETED)
    first, second = record.attempts
    assert first == before.attempts[0]
    assert (second.reason, second.asked_by, second.ordinal) == (WHY, ADA.id, 2)
    assert second.remote_task_id != first.remote_task_id
    assert (record.constraints, record.objective) == (before.constraints, before.objective)
    assert list_sources(record) == [accepted.facade]
    assert await read(harness, accepted.facade) == frozen
    assert state_of(await read(harness, again)) == "COMPLETED"
    assert all(again in str(frame) for frame in await watching)
    assert sorted(await list_ids(harness)) == [accepted.facade, again]
    assert sorted(await list_ids(harness, accepted.context_id)) == [accepted.facade, again]


@pytest.mark.requirement("LT-12", "LT-13")
async def test_three_reruns_give_three_ids_and_each_earlier_one_stays_byte_for_byte(
    control: ControlClient,
) -> None:
    harness = control.harness
    accepted = await fail_visibly(harness)
    ids, frozen = [str(accepted.facade)], [await read(harness, accepted.facade)]
    for number in (2, 3, 4):
        harness.peer.next(fail)
        await control.do("retry_task", taskId=accepted.task_id, reason=f"try {number}")
        await begin(harness, accepted)
        await harness.until(accepted, Status.FAILED)
        ids.append(f"{accepted.task_id}~{number}")
        frozen.append(await read(harness, ids[-1]))
        assert [await read(harness, one) for one in ids] == frozen
    await harness.restart()
    assert [await read(harness, one) for one in ids] == frozen
    assert len({str(task["id"]) for task in frozen}) == 4
    for missing in ("~1", "~02", "~5"):
        with pytest.raises(NotFound):
            await read(harness, accepted.task_id + missing)
    record = await harness.record(accepted)
    assert list_sources(record) == ids[:3]


@pytest.mark.requirement("LT-12")
async def test_old_id_takes_nothing_while_the_new_one_is_at_work(control: ControlClient) -> None:
    harness = control.harness
    accepted = await fail_visibly(harness)
    frozen = await read(harness, accepted.facade)
    harness.peer.hold()
    await control.do("retry_task", taskId=accepted.task_id, reason=WHY)
    await begin(harness, accepted)
    await harness.until(accepted, Status.RUNNING)
    with pytest.raises(UnsupportedOperation, match="the task has ended"):
        await harness.send("more", task=accepted.facade)
    with pytest.raises(UnsupportedOperation, match="the task has ended"):
        await harness.watch(accepted.facade)
    with pytest.raises(NotCancelable):
        await harness.service.execute(ADA, CancelTask(accepted.facade, agent="echo"), None)
    harness.peer.release_all()
    await harness.until(accepted, Status.COMPLETED)
    assert await read(harness, accepted.facade) == frozen


@pytest.mark.requirement("LT-13")
async def test_reader_that_comes_back_to_the_new_id_is_not_stopped_by_the_end_of_the_old_one(
    control: ControlClient,
) -> None:
    harness = control.harness
    accepted = await fail_visibly(harness)
    entries = await harness.entries(accepted.session_id)
    harness.peer.hold()
    await control.do("retry_task", taskId=accepted.task_id, reason=WHY)
    again = f"{accepted.task_id}~2"
    head = await harness.store.log.read_head(StreamRef(StreamKind.SESSION, accepted.session_id))
    assert head is not None
    wish = ResumeRequest(str(Cursor(head.epoch, 1, entries[1].previous)))
    async with harness.service.follow(ADA, again, wish=wish) as followed:
        assert followed.resumed
        await begin(harness, accepted)
        harness.peer.release_all()
        frames = [cast("JsonObject", orjson.loads(frame.data)) async for frame in followed.frames]
    assert all(again in str(frame) for frame in frames)
    assert "SUBMITTED" in str(frames[0])
    assert "COMPLETED" in str(frames[-1])


async def test_task_that_nobody_saw_fail_keeps_its_id(control: ControlClient) -> None:
    harness = control.harness

    async def refuse(turn: Turn) -> None:
        await turn.refuse(-32602, "no")

    harness.peer.next(refuse)
    accepted = await harness.send("go")
    record = await harness.until(accepted, Status.FAILED)
    assert not record.shown
    with pytest.raises(NotFound):
        await read(harness, accepted.facade)
    await control.do("retry_task", taskId=accepted.task_id, reason=WHY)
    await begin(harness, accepted)
    record = await harness.until(accepted, Status.COMPLETED)
    assert (record.exposure, len(record.attempts), list_sources(record)) == (1, 2, [])
    assert state_of(await read(harness, accepted.facade)) == "COMPLETED"


async def test_task_that_was_answered_with_a_message_is_a_task_of_another_id(
    control: ControlClient,
) -> None:
    async def answer(turn: Turn) -> None:
        await turn.answer("hello")

    harness = control.harness
    harness.peer.next(answer)
    accepted = await harness.send("go")
    heard = await harness.await_answer(accepted)
    await control.do("retry_task", taskId=accepted.task_id, reason="say it again")
    with pytest.raises(NotFound):
        await read(harness, accepted.facade)
    assert await harness.await_answer(accepted) == heard
    await begin(harness, accepted)
    await harness.until(accepted, Status.COMPLETED)
    assert state_of(await read(harness, f"{accepted.task_id}~2")) == "COMPLETED"


@pytest.mark.requirement("CMD-10", "CMD-30")
async def test_rerun_is_owed_once_per_key_and_only_for_the_version_that_was_read(
    control: ControlClient,
) -> None:
    harness = control.harness
    accepted = await fail_visibly(harness)
    version = int(str((await control.do("get_task", taskId=accepted.task_id))["version"]))
    with pytest.raises(VersionMismatch):
        await control.do("retry_task", taskId=accepted.task_id, reason=WHY, version=version + 1)
    for repeated in (False, True):
        answer = await control.do("retry_task", "k-1", taskId=accepted.task_id, reason=WHY)
        assert answer["repeated"] is repeated
    await begin(harness, accepted)
    await harness.until(accepted, Status.COMPLETED)
    assert len(harness.peer.messages) == 2


@pytest.mark.requirement("CMD-10")
async def test_task_that_is_under_way_or_was_never_started_is_not_tried_again(
    control: ControlClient,
) -> None:
    harness = control.harness
    created = await control.create()
    with pytest.raises(UnsupportedOperation, match="never started"):
        await control.do("retry_task", taskId=created, reason=WHY)
    harness.peer.hold()
    accepted = await harness.send("go")
    await harness.until(accepted, Status.RUNNING)
    with pytest.raises(UnsupportedOperation, match="under way"):
        await control.do("retry_task", taskId=accepted.task_id, reason=WHY)
    with pytest.raises(InvalidInput):
        await control.do("retry_task", taskId=accepted.task_id, reason="")
    harness.peer.release_all()
    await harness.until(accepted, Status.COMPLETED)


@pytest.mark.requirement("CMD-10", "ATT-16")
async def test_rerun_goes_to_the_agent_that_is_named_if_its_caller_may_call_it(
    control: ControlClient,
) -> None:
    harness = control.harness
    accepted = await fail_visibly(harness)
    bound = replace(ADA, agents=frozenset({"echo"}))
    with pytest.raises(NotFound):
        await control.do(
            "retry_task", None, bound, taskId=accepted.task_id, reason=WHY, agent="other"
        )
    with pytest.raises(NotFound):
        await control.do("retry_task", taskId=accepted.task_id, reason=WHY, agent="nobody")
    await control.do("retry_task", taskId=accepted.task_id, reason=WHY, agent="other")
    await begin(harness, accepted)
    record = await harness.until(accepted, Status.COMPLETED)
    assert [one.worker.peer for one in record.attempts] == ["echo", "other"]
    assert state_of(await read(harness, f"{accepted.task_id}~2")) == "COMPLETED"


@pytest.mark.requirement("ATT-10", "CMD-10")
async def test_what_was_tried_before_a_rerun_does_not_count_in_it(control: ControlClient) -> None:
    harness = control.harness
    harness.policy = RetryPolicy(attempts=2, backoff_ms=1)
    harness.peer.next(fail, fail, fail)
    accepted = await harness.send("go", wait="stream")
    await harness.until(accepted, Status.RETRYING)
    await harness.run_due("retry", accepted.task_id, after_ms=10)
    await harness.until(accepted, Status.FAILED)
    await control.do("retry_task", taskId=accepted.task_id, reason=WHY)
    await begin(harness, accepted)

    async def owes_the_fourth() -> bool:
        record = await harness.record(accepted)
        return record.status is Status.RETRYING and len(record.attempts) == 3

    await wait_until(owes_the_fourth, 15, "the policy began anew")
    await harness.run_due("retry", accepted.task_id, after_ms=10)
    record = await harness.until(accepted, Status.COMPLETED)
    assert [one.asked_by for one in record.attempts] == [None, None, ADA.id, None]


@pytest.mark.requirement("CMD-10")
async def test_pause_before_the_next_attempt_is_cut_short_by_whoever_wants_it_now(
    control: ControlClient,
) -> None:
    harness = control.harness
    harness.policy = RetryPolicy(attempts=2, backoff_ms=30_000)
    harness.peer.next(fail)
    accepted = await harness.send("go", wait="stream")
    await harness.until(accepted, Status.RETRYING)
    await control.do("retry_task", taskId=accepted.task_id, reason="now")
    await begin(harness, accepted)
    record = await harness.until(accepted, Status.COMPLETED)
    assert record.exposure == 1
    assert [one.reason for one in record.attempts] == [None, "now"]


@pytest.mark.requirement("ATT-14", "CMD-10")
async def test_lost_task_is_tried_again_where_its_owner_says_so(control: ControlClient) -> None:
    harness = control.harness

    async def story(turn: Turn) -> None:
        await turn.status("WORKING")
        harness.peer.subscribes = False
        await turn.drop()

    harness.peer.next(story)
    accepted = await harness.send("go", wait="stream")
    await wait_until(lambda: harness.peer.count("GetTask"), 15, "it is asked")
    await harness.peer.stop()
    harness.clock.ahead_ms += 121_000
    await harness.until(accepted, Status.LOST)
    await control.do("retry_task", taskId=accepted.task_id, reason=WHY)
    await harness.peer.start()
    await begin(harness, accepted)
    record = await harness.until(accepted, Status.COMPLETED)
    assert [one.status for one in record.attempts] == [Status.LOST, Status.COMPLETED]
    assert record.exposure == 1
