"""The record of a delegated task: phases, outputs by run, and all required members."""

from __future__ import annotations

import pytest

from passerelle.core import machine
from passerelle.core.batch import EntityKind
from passerelle.core.events import Event
from passerelle.core.task.record import TaskRecord
from passerelle.core.task.status import Phase, Status
from tests.support.control_client import ControlClient
from tests.support.harness import ADA, Harness
from tests.support.scripted_tasks import Turn

pytestmark = pytest.mark.anyio


@pytest.fixture
def control(harness: Harness) -> ControlClient:
    return ControlClient(harness)


def list_phases(events: list[Event]) -> list[str]:
    """The phases of a task in order, without repeats."""
    record: machine.Record | None = None
    phases: list[str] = []
    for event in events:
        record = machine.evolve(EntityKind.TASK, record, event)
        phase = record.progress.phase if isinstance(record, TaskRecord) else None
        if phase is not None and phases[-1:] != [phase]:
            phases.append(phase)
    return phases


@pytest.mark.requirement("PO-2")
async def test_phases_follow_the_task_from_start_to_delivery(harness: Harness) -> None:
    harness.acceptance = ({"review": "Is it good?"},)
    accepted, _ = await harness.talk("chunks 2")
    await harness.respond(await harness.question(accepted), option_id="accept")
    await harness.until(accepted, Status.COMPLETED)
    events = [
        event
        for event in await harness.events(accepted)
        if event.fact.scope.task_id == accepted.task_id
    ]
    assert list_phases(events) == [
        Phase.WORKING,
        Phase.VERIFYING,
        Phase.WAITING,
        Phase.WORKING,
        Phase.VERIFYING,
        Phase.DELIVERING,
    ]


@pytest.mark.requirement("GR-7")
async def test_each_artifact_has_one_edge_of_its_run(harness: Harness) -> None:
    accepted = await harness.send("two-artifacts", wait="stream")
    await harness.watch(accepted)
    record = await harness.until(accepted, Status.COMPLETED)
    (run,) = record.attempts
    edges = [edge for edge in record.relationships if edge.kind == "produced_artifact"]
    assert len(edges) == 2
    assert {edge.target for edge in edges} == {one.artifact_id for one in record.artifacts}
    assert {edge.edge_id.partition(":")[0] for edge in edges} == {run.run_id}


@pytest.mark.requirement("PRS-7")
async def test_record_of_a_delegated_task_is_complete(control: ControlClient) -> None:
    async def work(turn: Turn) -> None:
        await turn.status("WORKING", "counting")
        await turn.artifact("seven boats")
        await turn.status("COMPLETED")

    control.harness.peer.next(work)
    harbour = await control.create("look after the harbour")
    task_id = await control.create("count the boats", parentTaskId=harbour)
    await control.do("start_task", "s", taskId=task_id)
    record = await control.until(task_id, Status.COMPLETED)
    assert (record.objective, record.owner) == ("count the boats", ADA.key)
    assert [one.status for one in record.attempts] == [Status.COMPLETED]
    assert ("parent", harbour) in {(edge.kind, edge.target) for edge in record.relationships}
    assert record.progress.phase is Phase.DELIVERING
    assert [one.stored for one in record.artifacts] == [True]
    assert record.delivery == {"parent": "delivered", "facade": "delivered"}
