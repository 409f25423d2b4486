"""The facts of each exchange with an agent: requested, then completed or failed; none changes a task (EVC-6)."""

from __future__ import annotations

import pytest

from passerelle.core.commands import TurnAccepted
from passerelle.core.errors import PasserelleError
from passerelle.core.facts import ErrorCategory
from passerelle.core.payloads.run import ModelCompleted, ModelFailed, ModelRequested
from passerelle.core.task.status import Status
from tests.support.harness import Harness

pytestmark = pytest.mark.anyio

STARTED, ASKED = "task.attempt.started", "model.requested"


async def list_exchanges(harness: Harness, accepted: TurnAccepted) -> list[str]:
    """The exchange events of a run, from its start."""
    types = [str(kind) for kind in await harness.types(accepted)]
    return [kind for kind in types if kind.startswith("model.") or kind == STARTED]


async def list_requests(harness: Harness, accepted: TurnAccepted) -> list[ModelRequested]:
    return [
        event.fact.payload
        for event in await harness.events(accepted)
        if isinstance(event.fact.payload, ModelRequested)
    ]


@pytest.mark.requirement("EVC-6")
@pytest.mark.parametrize("wait", ["unary", "stream"])
async def test_exchange_completes_with_the_response_of_the_agent(
    harness: Harness, wait: str
) -> None:
    accepted = await harness.send("chunks 3", wait="unary" if wait == "unary" else "stream")
    await harness.until(accepted, Status.COMPLETED)
    types = await harness.types(accepted)
    assert await list_exchanges(harness, accepted) == [STARTED, ASKED, "model.completed"]
    record = await harness.record(accepted)
    method = "SendMessage" if wait == "unary" else "SendStreamingMessage"
    assert await list_requests(harness, accepted) == [
        ModelRequested("echo", method, record.attempts[-1].message_id)
    ]
    assert types.index("model.completed") < types.index("task.completed")
    (completed,) = [
        event.fact
        for event in await harness.events(accepted)
        if isinstance(event.fact.payload, ModelCompleted)
    ]
    assert completed.scope.run_id == record.attempts[-1].run_id
    assert isinstance(completed.payload, ModelCompleted)
    assert (completed.payload.peer, completed.payload.frames <= record.attempts[-1].steps) == (
        "echo",
        True,
    )


@pytest.mark.requirement("EVC-6")
async def test_request_for_input_completes_an_exchange_and_its_answer_begins_another(
    harness: Harness,
) -> None:
    accepted = await harness.send("ask which")
    await harness.until(accepted, Status.WAITING_INPUT)
    assert await list_exchanges(harness, accepted) == [STARTED, ASKED, "model.completed"]
    await harness.respond(
        await harness.question(accepted), option_id="reply", content={"text": "b"}
    )
    await harness.until(accepted, Status.COMPLETED)
    exchanges = await list_exchanges(harness, accepted)
    assert exchanges == [STARTED, ASKED, "model.completed", ASKED, "model.completed"]
    asked, answered = await list_requests(harness, accepted)
    sent = [message["messageId"] for message in harness.peer.messages]
    assert sent == [asked.message_id, answered.message_id]


@pytest.mark.requirement("EVC-6")
async def test_reported_failure_completes_the_exchange(harness: Harness) -> None:
    accepted = await harness.send("fail badly")
    await harness.until(accepted, Status.FAILED)
    assert await list_exchanges(harness, accepted) == [STARTED, ASKED, "model.completed"]


@pytest.mark.requirement("EVC-6")
@pytest.mark.parametrize(
    ("text", "category"),
    [("refuse", ErrorCategory.PEER), ("close", None), ("drop", ErrorCategory.TRANSPORT)],
)
async def test_failed_exchange_records_the_category_of_its_error(
    harness: Harness, text: str, category: ErrorCategory | None
) -> None:
    accepted = await harness.send(text, wait="stream")
    await harness.until(accepted, Status.FAILED if text == "refuse" else Status.RUNNING)
    if text != "refuse":
        await harness.cancel(accepted)
        await harness.until(accepted, Status.CANCELLED)
    failures = [
        event.fact.payload.error
        for event in await harness.events(accepted)
        if isinstance(event.fact.payload, ModelFailed)
    ]
    assert [error.category for error in failures[:1]] == ([category] if category else [])
    # Text from the agent is not part of the error.
    assert "scripted-task-secret" not in str(failures)


@pytest.mark.requirement("EVC-6", "I6")
async def test_exchange_with_an_unreachable_agent_fails(harness: Harness) -> None:
    await harness.talk("echo its card is known now")
    await harness.peer.stop()
    accepted = await harness.send("echo hello")
    with pytest.raises(PasserelleError):
        await harness.await_answer(accepted)
    exchanges = await list_exchanges(harness, accepted)
    assert exchanges == [STARTED, ASKED, "model.failed"]
