"""Every event of a run belongs to its caller's trace, under any driver and however the run ends (ENV-8)."""

from __future__ import annotations

import pytest

from passerelle.core.commands import SubmitTurn, TurnAccepted
from passerelle.core.task.status import Status
from tests.support.harness import ADA, Harness
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio
TRACE = "0af7651916cd43dd8448eb211c80319c"
SPAN = "b7ad6b7169203331"


async def send(
    harness: Harness, text: str, parent: str | None, task: TurnAccepted | None = None
) -> TurnAccepted:
    command = SubmitTurn(
        agent="echo",
        message=harness.message(text),
        source="a2a",
        wait="stream",
        task=task.facade if task else None,
        traceparent=parent,
        tracestate="vendor=1",
    )
    accepted = await harness.service.execute(ADA, command, None)
    assert isinstance(accepted, TurnAccepted)
    return accepted


async def list_spans(
    harness: Harness, accepted: TurnAccepted
) -> set[tuple[str | None, str | None]]:
    events = await harness.events(accepted)
    return {(event.fact.scope.trace_id, event.fact.scope.span_id) for event in events}


def list_sent(harness: Harness) -> list[tuple[str, str | None]]:
    return [
        (request.headers.get("traceparent", ""), request.headers.get("tracestate"))
        for request in harness.peer.requests
    ]


@pytest.mark.requirement("ENV-8")
async def test_every_event_of_a_run_has_the_callers_trace_and_the_gateways_span(
    harness: Harness,
) -> None:
    accepted = await send(harness, "hello", f"00-{TRACE}-{SPAN}-01")
    await harness.until(accepted, Status.COMPLETED)
    ((trace, span),) = await list_spans(harness, accepted)
    assert trace == TRACE
    assert span not in {None, SPAN}
    assert set(list_sent(harness)) == {(f"00-{TRACE}-{span}-01", "vendor=1")}
    await harness.prove()


@pytest.mark.requirement("ENV-8")
async def test_run_taken_over_by_another_instance_keeps_its_trace(harness: Harness) -> None:
    harness.peer.hold()
    accepted = await send(harness, "hello", f"00-{TRACE}-{SPAN}-00")
    harness.peer.release(2)
    await harness.until(accepted, Status.RUNNING)
    ((_, span),) = await list_spans(harness, accepted)
    await harness.restart()
    before = len(harness.peer.requests)
    await harness.adopt(accepted)
    harness.peer.release_all()
    await harness.until(accepted, Status.COMPLETED)
    assert await list_spans(harness, accepted) == {(TRACE, span)}
    later = list_sent(harness)[before:]
    assert later
    assert set(later) == {(f"00-{TRACE}-{span}-00", "vendor=1")}


@pytest.mark.requirement("ENV-8")
async def test_cancel_of_a_run_is_recorded_in_the_trace_of_the_run(harness: Harness) -> None:
    harness.peer.hold()
    accepted = await send(harness, "hello", f"00-{TRACE}-{SPAN}-01")
    harness.peer.release(2)

    async def is_shown() -> bool:
        return (await harness.record(accepted)).shown

    await wait_until(is_shown, 15, "callers see the task")
    await harness.cancel(accepted)
    await harness.until(accepted, Status.CANCELLED)
    assert {trace for trace, _ in await list_spans(harness, accepted)} == {TRACE}


async def test_run_of_a_caller_without_a_trace_has_none(harness: Harness) -> None:
    accepted = await send(harness, "hello", "no trace")
    await harness.until(accepted, Status.COMPLETED)
    assert await list_spans(harness, accepted) == {(None, None)}
    assert set(list_sent(harness)) == {("", None)}
