"""Messages that refer to tasks, over several attempts: where the new task leads, what each agent is told (GR-4)."""

from __future__ import annotations

from typing import Any

import pytest

from passerelle.a2a_mapping.members import objects_at
from passerelle.core.facts import RetryPolicy
from passerelle.core.payloads.context import ContextItem, ContextResolved
from passerelle.core.task.status import Status
from passerelle.core.wire.json import JsonObject
from tests.support.control_client import ControlClient
from tests.support.scripted_tasks import Turn

pytestmark = pytest.mark.anyio


@pytest.mark.requirement("GR-4")
async def test_refinement_leads_to_the_attempt_that_produced_what_it_refines(
    control: ControlClient,
) -> None:
    harness = control.harness
    harness.policy = RetryPolicy(attempts=2, backoff_ms=1_000, backoff_max_ms=1_000)

    async def fail(turn: Turn) -> None:
        await turn.artifact("half of it", artifact_id="draft")
        await turn.status("FAILED", "no luck")

    async def succeed(turn: Turn) -> None:
        await turn.artifact("all of it", artifact_id="draft")
        await turn.status("COMPLETED")

    harness.peer.next(fail, succeed)
    first = await harness.send("go", wait="stream")
    await harness.until(first, Status.RETRYING)
    await harness.run_due("retry", first.task_id, after_ms=60_000)
    record = await harness.until(first, Status.COMPLETED)
    one, two = (attempt.run_id for attempt in record.attempts)
    message = harness.message("shorter, please")
    message["referenceTaskIds"] = [first.facade]
    second = await harness.send("", context_id=first.context_id, message=message)
    await harness.until(second, Status.COMPLETED)
    graph: Any = await control.do("get_task_graph", taskId=second.task_id)
    edges = {(edge["edge"]["kind"], edge["edge"]["target"]) for edge in graph["edges"]}
    assert ("source_task", first.task_id) in edges
    assert ("source_attempt", two) in edges
    assert ("source_attempt", one) not in edges


async def list_resolved(control: ControlClient, task_id: str) -> list[ContextResolved]:
    """What went along with the turns and attempts of a task."""
    payloads = [event.fact.payload for event in await control.events(task_id)]
    return [one for one in payloads if isinstance(one, ContextResolved)]


def list_texts(control: ControlClient) -> list[str]:
    """The texts in the only message that the other agent got."""
    (message,) = control.harness.peers["other"].messages
    return [str(part["text"]) for part in objects_at(message, "parts")]


@pytest.mark.requirement("EVC-12", "LT-10")
async def test_agent_that_takes_over_is_told_in_its_own_way(control: ControlClient) -> None:
    harness = control.harness
    first, _ = await harness.talk("draft it")
    artifact = (await control.record(first.task_id)).artifacts[0]
    harness.policy = RetryPolicy(
        attempts=1, backoff_ms=1_000, backoff_max_ms=1_000, fallback=("other",)
    )

    async def fail(turn: Turn) -> None:
        await turn.status("FAILED", "no luck")

    harness.peer.next(fail)
    message = harness.message("shorter, please")
    message["referenceTaskIds"] = [first.facade]
    second = await harness.send("", context_id=first.context_id, message=message, wait="stream")
    await harness.until(second, Status.RETRYING)
    await harness.run_due("retry", second.task_id, after_ms=60_000)
    await harness.until(second, Status.COMPLETED)
    own, taken_over = await list_resolved(control, second.task_id)
    assert (own.peer, own.selected) == ("echo", (ContextItem("task", first.task_id),))
    assert (taken_over.peer, taken_over.selected) == (
        "other",
        (ContextItem("artifact", artifact.artifact_id, artifact.size),),
    )
    assert list_texts(control) == ["shorter, please", "draft it"]


@pytest.mark.requirement("EVC-12", "GR-3")
async def test_task_that_is_started_with_a_message_leads_to_what_it_refers_to(
    control: ControlClient,
) -> None:
    first, _ = await control.harness.talk("draft it")
    task_id = await control.create("build it", agent="other")
    message: JsonObject = {
        **control.harness.message("build it"),
        "referenceTaskIds": [first.facade, "nobody"],
    }
    await control.do("start_task", taskId=task_id, message=message)
    record = await control.until(task_id, Status.COMPLETED)
    targets = {edge.target for edge in record.relationships if edge.kind == "source_task"}
    assert targets == {first.task_id}
    (said,) = await list_resolved(control, task_id)
    assert [one.kind for one in said.selected] == ["artifact"]
    assert (said.omitted[0].ref, said.omitted[0].reason) == ("nobody", "missing")
    assert list_texts(control) == ["build it", "draft it"]
