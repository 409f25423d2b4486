"""The record of a delegated task: phases, outputs by run, and all required members."""

from __future__ import annotations

import pytest

from passerelle.core import machine
from passerelle.core.batch import EntityKind
from passerelle.core.events import Event
from passerelle.core.task.record import TaskRecord
from passerelle.core.task.status import Phase, Status
from tests.support.desk import Desk
from tests.support.house import ADA, House
from tests.support.scripted_tasks import Turn

pytestmark = pytest.mark.anyio


@pytest.fixture
def desk(house: House) -> Desk:
    return Desk(house)


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
async def test_phases_follow_the_task_from_start_to_delivery(house: House) -> None:
    house.acceptance = ({"review": "Is it good?"},)
    accepted, _ = await house.talk("chunks 2")
    await house.respond(await house.question(accepted), option_id="accept")
    await house.until(accepted, Status.COMPLETED)
    events = [
        event
        for event in await house.events(accepted)
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
async def test_each_artifact_has_one_edge_of_its_run(house: House) -> None:
    accepted = await house.send("two-artifacts", wait="stream")
    await house.watch(accepted)
    record = await house.until(accepted, Status.COMPLETED)
    (run,) = record.attempts
    edges = [edge for edge in record.relationships if edge.kind == "produced_artifact"]
    assert len(edges) == 2
    assert {edge.target for edge in edges} == {one.artifact_id for one in record.artifacts}
    assert {edge.edge_id.partition(":")[0] for edge in edges} == {run.run_id}


@pytest.mark.requirement("PRS-7")
async def test_record_of_a_delegated_task_is_complete(desk: Desk) -> None:
    async def work(turn: Turn) -> None:
        await turn.status("WORKING", "counting")
        await turn.artifact("seven boats")
        await turn.status("COMPLETED")

    desk.house.peer.next(work)
    harbour = await desk.create("look after the harbour")
    task_id = await desk.create("count the boats", parentTaskId=harbour)
    await desk.do("start_task", "s", taskId=task_id)
    record = await desk.until(task_id, Status.COMPLETED)
    assert (record.objective, record.owner) == ("count the boats", ADA.key)
    assert [one.status for one in record.attempts] == [Status.COMPLETED]
    assert ("parent", harbour) in {(edge.kind, edge.target) for edge in record.relationships}
    assert record.progress.phase is Phase.DELIVERING
    assert [one.stored for one in record.artifacts] == [True]
    assert record.delivery == {"parent": "delivered", "facade": "delivered"}
