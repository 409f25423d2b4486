"""The record of a run: its id, inputs, outputs, times, and the agent's own status (ATT, ST-21)."""

from __future__ import annotations

import pytest

from passerelle.core.commands import TurnAccepted
from passerelle.core.errors import NotFound
from passerelle.core.event_type import EventType
from passerelle.core.task.record import Attempt
from passerelle.core.task.status import Status
from tests.support.house import House
from tests.support.scripted_tasks import Turn
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio


async def run_of(house: House, accepted: TurnAccepted) -> Attempt:
    (attempt,) = (await house.record(accepted)).attempts
    return attempt


@pytest.mark.requirement("ATT-2", "ATT-5", "ATT-6", "ATT-8", "ATT-12")
async def test_run_keeps_its_id_under_a_new_driver_and_records_inputs_and_outputs(
    house: House,
) -> None:
    house.peer.hold()
    accepted = await house.send("chunks 2", wait="stream")
    house.peer.release(2)
    await house.until(accepted, Status.RUNNING)
    before = await run_of(house, accepted)
    assert (before.ended_at, before.output_refs, before.completion_summary) == (None, (), None)
    await house.restart()
    await house.adopt(accepted)
    house.peer.release_all()
    record = await house.until(accepted, Status.COMPLETED)
    run = await run_of(house, accepted)
    assert (run.run_id, run.ordinal, run.started_at) == (before.run_id, 1, before.started_at)

    events = {event.type: event for event in await house.events(accepted)}
    (put_in,) = run.input_refs
    assert put_in.sequence == events[EventType.TURN_SUBMITTED].sequence
    assert run.output_refs == tuple(one.artifact_id for one in record.artifacts)
    assert len(run.output_refs) == 1
    assert run.started_at == events[EventType.TASK_ATTEMPT_STARTED].timestamp
    assert run.ended_at == events[EventType.TASK_ATTEMPT_COMPLETED].timestamp
    named = {
        event.fact.scope.run_id
        for event in await house.events(accepted)
        if event.type.startswith("task.attempt.")
    }
    assert named == {run.run_id}


@pytest.mark.requirement("ATT-12")
async def test_final_message_of_an_agent_is_a_summary_and_decides_nothing(house: House) -> None:
    async def fail_with_praise(turn: Turn) -> None:
        await turn.status("WORKING", "all done, everything is finished")
        await turn.status("FAILED", "completed with great success")

    house.peer.next(fail_with_praise)
    accepted, _ = await house.talk("go")
    record = await house.until(accepted, Status.FAILED)
    assert record.attempts[-1].status is Status.FAILED

    async def finish(turn: Turn) -> None:
        await turn.status("COMPLETED", "it did not work at all")

    house.peer.next(finish)
    accepted, _ = await house.talk("go")
    record = await house.until(accepted, Status.COMPLETED)
    assert record.attempts[-1].completion_summary == "it did not work at all"


@pytest.mark.requirement("ST-21", "A2A-7")
async def test_native_status_is_recorded_with_each_status(house: House) -> None:
    async def story(turn: Turn) -> None:
        await turn.open()
        for state in ("WORKING", "DREAMING", "WORKING", "INPUT_REQUIRED"):
            await turn.status(f"TASK_STATE_{state}")

    house.peer.hold()
    house.peer.next(story)
    accepted = await house.send("go", wait="stream")
    for native, status in (
        ("SUBMITTED", Status.QUEUED),
        ("WORKING", Status.RUNNING),
        ("DREAMING", Status.UNKNOWN),
        ("WORKING", Status.RUNNING),
        ("INPUT_REQUIRED", Status.WAITING_INPUT),
    ):
        house.peer.release(1)
        record = await house.until(accepted, status)
        run = record.attempts[-1]
        assert (run.native_status, run.status) == (f"TASK_STATE_{native}", run_status(status))


def run_status(status: Status) -> Status:
    """The status of the run: a queued task of the agent counts as a running run."""
    return Status.RUNNING if status is Status.QUEUED else status


@pytest.mark.requirement("TEV-2")
async def test_message_to_an_unknown_agent_creates_no_task(house: House) -> None:
    with pytest.raises(NotFound):
        await house.send("go", agent="nobody")
    assert house.log.stored == []
    accepted, _ = await house.talk("go")
    types = await house.types(accepted)
    assert types.index("task.created") < types.index("task.accepted")
    await wait_until(lambda: len(house.peer.messages) == 1, 15, "the agent has one message")
