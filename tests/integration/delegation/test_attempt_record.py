"""The record of a run: its id, inputs, outputs, times, and the agent's own status (ATT, ST-21)."""

from __future__ import annotations

import pytest

from passerelle.core.commands import TurnAccepted
from passerelle.core.errors import NotFound
from passerelle.core.event_type import EventType
from passerelle.core.task.record import Attempt
from passerelle.core.task.status import Status
from tests.support.harness import Harness
from tests.support.scripted_tasks import Turn
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio


async def run_of(harness: Harness, accepted: TurnAccepted) -> Attempt:
    (attempt,) = (await harness.record(accepted)).attempts
    return attempt


@pytest.mark.requirement("ATT-2", "ATT-5", "ATT-6", "ATT-8", "ATT-12")
async def test_run_keeps_its_id_under_a_new_driver_and_records_inputs_and_outputs(
    harness: Harness,
) -> None:
    harness.peer.hold()
    accepted = await harness.send("chunks 2", wait="stream")
    harness.peer.release(2)
    await harness.until(accepted, Status.RUNNING)
    before = await run_of(harness, accepted)
    assert (before.ended_at, before.output_refs, before.completion_summary) == (None, (), None)
    await harness.restart()
    await harness.adopt(accepted)
    harness.peer.release_all()
    record = await harness.until(accepted, Status.COMPLETED)
    run = await run_of(harness, accepted)
    assert (run.run_id, run.ordinal, run.started_at) == (before.run_id, 1, before.started_at)

    events = {event.type: event for event in await harness.events(accepted)}
    (put_in,) = run.input_refs
    assert put_in.sequence == events[EventType.TURN_SUBMITTED].sequence
    assert run.output_refs == tuple(one.artifact_id for one in record.artifacts)
    assert len(run.output_refs) == 1
    assert run.started_at == events[EventType.TASK_ATTEMPT_STARTED].timestamp
    assert run.ended_at == events[EventType.TASK_ATTEMPT_COMPLETED].timestamp
    named = {
        event.fact.scope.run_id
        for event in await harness.events(accepted)
        if event.type.startswith("task.attempt.")
    }
    assert named == {run.run_id}


@pytest.mark.requirement("ATT-12")
async def test_final_message_of_an_agent_is_a_summary_and_decides_nothing(harness: Harness) -> None:
    async def fail_with_praise(turn: Turn) -> None:
        await turn.status("WORKING", "all done, everything is finished")
        await turn.status("FAILED", "completed with great success")

    harness.peer.next(fail_with_praise)
    accepted, _ = await harness.talk("go")
    record = await harness.until(accepted, Status.FAILED)
    assert record.attempts[-1].status is Status.FAILED

    async def finish(turn: Turn) -> None:
        await turn.status("COMPLETED", "it did not work at all")

    harness.peer.next(finish)
    accepted, _ = await harness.talk("go")
    record = await harness.until(accepted, Status.COMPLETED)
    assert record.attempts[-1].completion_summary == "it did not work at all"


@pytest.mark.requirement("ST-21", "A2A-7")
async def test_native_status_is_recorded_with_each_status(harness: Harness) -> None:
    async def story(turn: Turn) -> None:
        await turn.open()
        for state in ("WORKING", "DREAMING", "WORKING", "INPUT_REQUIRED"):
            await turn.status(f"TASK_STATE_{state}")

    harness.peer.hold()
    harness.peer.next(story)
    accepted = await harness.send("go", wait="stream")
    for native, status in (
        ("SUBMITTED", Status.QUEUED),
        ("WORKING", Status.RUNNING),
        ("DREAMING", Status.UNKNOWN),
        ("WORKING", Status.RUNNING),
        ("INPUT_REQUIRED", Status.WAITING_INPUT),
    ):
        harness.peer.release(1)
        record = await harness.until(accepted, status)
        run = record.attempts[-1]
        assert (run.native_status, run.status) == (f"TASK_STATE_{native}", run_status(status))


def run_status(status: Status) -> Status:
    """The status of the run: a queued task of the agent counts as a running run."""
    return Status.RUNNING if status is Status.QUEUED else status


@pytest.mark.requirement("TEV-2")
async def test_message_to_an_unknown_agent_creates_no_task(harness: Harness) -> None:
    with pytest.raises(NotFound):
        await harness.send("go", agent="nobody")
    assert harness.log.stored == []
    accepted, _ = await harness.talk("go")
    types = await harness.types(accepted)
    assert types.index("task.created") < types.index("task.accepted")
    await wait_until(lambda: len(harness.peer.messages) == 1, 15, "the agent has one message")
