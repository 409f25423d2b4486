"""What a thread says of the work in it."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from passerelle.core.batch import EntityKind, EntityRef
from passerelle.core.errors import InvalidInput
from passerelle.core.facts import RetryPolicy
from passerelle.core.payloads.run import ArtifactChanged
from passerelle.core.task.status import Status
from passerelle.core.wire.times import parse_ms
from tests.support.control_client import ControlClient
from tests.support.scripted_tasks import Turn
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio


async def read_thread(control: ControlClient, task_id: str) -> Any:  # noqa: ANN401  a JSON object, read by its members
    record = await control.record(task_id)
    return await control.do("get_thread", threadId=str(record.thread_id))


@pytest.mark.requirement("CF-5", "ST-6")
async def test_question_stands_in_its_thread_until_it_has_an_answer(control: ControlClient) -> None:
    task_id = await control.start("ask which")
    record = await control.until(task_id, Status.WAITING_INPUT)
    (action,) = record.open_actions
    (pending,) = (await read_thread(control, task_id))["pending"]
    assert (pending["taskId"], action in str(pending)) == (task_id, True)
    view = await control.do("get_action", actionId=action)
    with pytest.raises(InvalidInput):
        await control.harness.respond(view, option_id="reply", content={"text": ""})
    assert [one["taskId"] for one in (await read_thread(control, task_id))["pending"]] == [task_id]
    assert (await control.record(task_id)).status is Status.WAITING_INPUT
    await control.harness.send("this one", task=task_id)
    await control.until(task_id, Status.COMPLETED)
    thread = await read_thread(control, task_id)
    assert (thread["pending"], thread["lastOutcome"]) == ([], "completed")
    kinds = await control.types(task_id)
    assert kinds.index("task.waiting") < kinds.index("task.resumed")


@pytest.mark.requirement("CF-9")
async def test_thread_is_streaming_between_the_first_and_the_last_chunk(
    control: ControlClient,
) -> None:
    peer = control.harness.peer
    peer.hold()
    task_id = await control.start("chunks 3")

    async def wait_for(activity: str, *, streaming: bool, told_of: int = 0) -> None:
        async def is_told() -> bool:
            if (await control.types(task_id)).count("task.progress") < told_of:
                return False
            line: Any = await control.do("get_task_summary", taskId=task_id)
            told = (await read_thread(control, task_id)).get("activity"), line["streaming"]
            return told == (activity, streaming)

        await wait_until(is_told, 15, f"the thread is {activity}")

    peer.release(2)
    await wait_for("running", streaming=False)
    for told_of in (3, 4):  # the first two are of what came before the chunks
        peer.release(1)
        await wait_for("streaming", streaming=True, told_of=told_of)
    peer.release(1)
    await wait_for("running", streaming=False)
    peer.release_all()
    await control.until(task_id, Status.COMPLETED)
    thread = await read_thread(control, task_id)
    assert "activity" not in thread
    assert thread["marks"]["activity"]["state"] == "not_applicable"


@pytest.mark.requirement("CF-10", "ST-11")
async def test_thread_says_that_a_task_is_tried_again_until_it_is_at_work(
    control: ControlClient,
) -> None:
    harness = control.harness
    harness.policy = RetryPolicy(attempts=2, backoff_ms=60_000, backoff_max_ms=60_000)

    async def fail(turn: Turn) -> None:
        await turn.status("FAILED", "no luck")

    harness.peer.next(fail)
    task_id = await control.start("silent")
    await control.until(task_id, Status.RETRYING)
    assert (await read_thread(control, task_id))["activity"] == "retrying"
    await harness.run_due("retry", task_id, after_ms=120_000)
    await control.until(task_id, Status.QUEUED)
    assert (await read_thread(control, task_id))["activity"] == "queued"


@pytest.mark.requirement("PO-1", "PO-4")
async def test_what_can_be_counted_is_known_of_an_agent_that_sends_only_prose(
    control: ControlClient,
) -> None:
    async def chat(turn: Turn) -> None:
        await turn.status("WORKING", "I have done nearly everything, 99 percent")
        await turn.artifact("a part", artifact_id="one")
        await turn.artifact("another", artifact_id="two")
        await turn.status("INPUT_REQUIRED", "And now?")

    control.harness.peer.next(chat)
    task_id = await control.start()
    await control.until(task_id, Status.WAITING_INPUT)
    await control.create("a part of it", parentTaskId=task_id)
    await control.do("append_task_progress", taskId=task_id, counters={"tests": 3, "artifacts": 99})
    line: Any = await control.do("get_task_summary", taskId=task_id)
    events = await control.events(task_id)
    counted = line["progress"]["counters"]
    assert counted["artifacts"] == len(
        {
            one.fact.payload.artifact_id
            for one in events
            if isinstance(one.fact.payload, ArtifactChanged)
        }
    )
    kinds = [event.type for event in events]
    assert counted["childTasks"] == kinds.count("task.delegated") == 1
    assert counted["attempts"] == kinds.count("task.attempt.started")
    assert counted["inputs"] == kinds.count("turn.submitted")
    assert counted["tests"] == 3
    assert line["progress"]["phase"] == "waiting"
    for name in ("percent", "step"):
        assert line["marks"][f"progress.{name}"]["state"] == "unknown"


@pytest.mark.requirement("MK-31")
async def test_duration_is_from_the_first_run_to_the_end_over_all_attempts(
    control: ControlClient,
) -> None:
    harness = control.harness
    harness.policy = RetryPolicy(attempts=2, backoff_ms=60_000, backoff_max_ms=60_000)

    async def fail(turn: Turn) -> None:
        await turn.status("FAILED", "no luck")

    harness.peer.next(fail)
    task_id = await control.start()
    await control.until(task_id, Status.RETRYING)
    line: Any = await control.do("get_task_summary", taskId=task_id)
    assert line["marks"]["durationMs"]["state"] == "not_applicable"
    await harness.run_due("retry", task_id, after_ms=120_000)
    record = await control.until(task_id, Status.COMPLETED)
    line = await control.do("get_task_summary", taskId=task_id)
    assert record.started_at is not None
    assert record.ended_at is not None
    lasted = parse_ms(record.ended_at) - parse_ms(record.started_at)
    assert (line["durationMs"], line["attempts"]) == (lasted, 2)
    assert lasted >= 120_000


@pytest.mark.requirement("ATT-7", "SNAP-17")
async def test_run_that_is_taken_up_goes_on_from_its_checkpoint(control: ControlClient) -> None:
    harness = control.harness
    harness.peer.hold()
    task_id = await control.start("chunks 4")
    harness.peer.release(4)

    async def has_two() -> bool:
        return (await control.record(task_id)).progress.counters.get("chunks") == 2

    await wait_until(has_two, 15, "two chunks are stored")
    model: Any = await control.do("get_attempts", taskId=task_id)
    ((checkpoint,),) = [one["checkpointRefs"] for one in model["attempts"]]
    await harness.restart()
    harness.peer.release_all()
    await harness.parts.dispatch.adopt(EntityRef(EntityKind.TASK, task_id))
    await control.until(task_id, Status.COMPLETED)
    texts = {"before": "", "after": ""}
    for event in await control.events(task_id):
        side = "before" if event.sequence <= checkpoint["sequence"] else "after"
        frame: Any = orjson.loads(event.fact.frame or b"{}")
        parts = frame.get("artifactUpdate", {}).get("artifact", {}).get("parts", ())
        texts[side] += "".join(part["text"] for part in parts)
    assert texts == {"before": "chunk-1 chunk-2 ", "after": "chunk-3 chunk-4 "}
    model = await control.do("get_attempts", taskId=task_id)
    (run,) = model["attempts"]
    assert model["marks"][f"{run['runId']}.checkpointRefs"]["state"] == "not_applicable"
