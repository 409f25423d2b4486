"""Every event of a run belongs to its caller's trace, under any driver and however the run ends (ENV-8)."""

from __future__ import annotations

import pytest

from passerelle.core.commands import SubmitTurn, TurnAccepted
from passerelle.core.task.status import Status
from tests.support.house import ADA, House
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio
TRACE = "0af7651916cd43dd8448eb211c80319c"
SPAN = "b7ad6b7169203331"


async def send(
    house: House, text: str, parent: str | None, task: TurnAccepted | None = None
) -> TurnAccepted:
    command = SubmitTurn(
        agent="echo",
        message=house.message(text),
        source="a2a",
        wait="stream",
        task=task.facade if task else None,
        traceparent=parent,
        tracestate="vendor=1",
    )
    accepted = await house.service.execute(ADA, command, None)
    assert isinstance(accepted, TurnAccepted)
    return accepted


async def list_spans(house: House, accepted: TurnAccepted) -> set[tuple[str | None, str | None]]:
    events = await house.events(accepted)
    return {(event.fact.scope.trace_id, event.fact.scope.span_id) for event in events}


def list_sent(house: House) -> list[tuple[str, str | None]]:
    return [
        (request.headers.get("traceparent", ""), request.headers.get("tracestate"))
        for request in house.peer.requests
    ]


@pytest.mark.requirement("ENV-8")
async def test_every_event_of_a_run_has_the_callers_trace_and_the_gateways_span(
    house: House,
) -> None:
    accepted = await send(house, "hello", f"00-{TRACE}-{SPAN}-01")
    await house.until(accepted, Status.COMPLETED)
    ((trace, span),) = await list_spans(house, accepted)
    assert trace == TRACE
    assert span not in {None, SPAN}
    assert set(list_sent(house)) == {(f"00-{TRACE}-{span}-01", "vendor=1")}
    await house.prove()


@pytest.mark.requirement("ENV-8")
async def test_run_taken_over_by_another_instance_keeps_its_trace(house: House) -> None:
    house.peer.hold()
    accepted = await send(house, "hello", f"00-{TRACE}-{SPAN}-00")
    house.peer.release(2)
    await house.until(accepted, Status.RUNNING)
    ((_, span),) = await list_spans(house, accepted)
    await house.restart()
    before = len(house.peer.requests)
    await house.adopt(accepted)
    house.peer.release_all()
    await house.until(accepted, Status.COMPLETED)
    assert await list_spans(house, accepted) == {(TRACE, span)}
    later = list_sent(house)[before:]
    assert later
    assert set(later) == {(f"00-{TRACE}-{span}-00", "vendor=1")}


@pytest.mark.requirement("ENV-8")
async def test_cancel_of_a_run_is_recorded_in_the_trace_of_the_run(house: House) -> None:
    house.peer.hold()
    accepted = await send(house, "hello", f"00-{TRACE}-{SPAN}-01")
    house.peer.release(2)

    async def is_shown() -> bool:
        return (await house.record(accepted)).shown

    await wait_until(is_shown, 15, "callers see the task")
    await house.cancel(accepted)
    await house.until(accepted, Status.CANCELLED)
    assert {trace for trace, _ in await list_spans(house, accepted)} == {TRACE}


async def test_run_of_a_caller_without_a_trace_has_none(house: House) -> None:
    accepted = await send(house, "hello", "no trace")
    await house.until(accepted, Status.COMPLETED)
    assert await list_spans(house, accepted) == {(None, None)}
    assert set(list_sent(house)) == {("", None)}
