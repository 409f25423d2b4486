"""What is stored of each exchange with an agent: asked, and answered or broken; nothing of it moves a task (EVC-6)."""

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
    """What a run says of its exchanges, from its start on."""
    told = [str(kind) for kind in await harness.types(accepted)]
    return [kind for kind in told if kind.startswith("model.") or kind == STARTED]


async def list_requests(harness: Harness, accepted: TurnAccepted) -> list[ModelRequested]:
    return [
        event.fact.payload
        for event in await harness.events(accepted)
        if isinstance(event.fact.payload, ModelRequested)
    ]


@pytest.mark.requirement("EVC-6")
@pytest.mark.parametrize("wait", ["unary", "stream"])
async def test_an_exchange_ends_with_the_answer_of_the_agent(harness: Harness, wait: str) -> None:
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
    (said,) = [
        event.fact
        for event in await harness.events(accepted)
        if isinstance(event.fact.payload, ModelCompleted)
    ]
    assert said.scope.run_id == record.attempts[-1].run_id
    assert isinstance(said.payload, ModelCompleted)
    assert (said.payload.peer, said.payload.frames <= record.attempts[-1].steps) == ("echo", True)


@pytest.mark.requirement("EVC-6")
async def test_a_question_is_an_answer_and_what_is_sent_on_it_is_an_exchange_of_its_own(
    harness: Harness,
) -> None:
    accepted = await harness.send("ask which")
    await harness.until(accepted, Status.WAITING_INPUT)
    assert await list_exchanges(harness, accepted) == [STARTED, ASKED, "model.completed"]
    await harness.respond(
        await harness.question(accepted), option_id="reply", content={"text": "b"}
    )
    await harness.until(accepted, Status.COMPLETED)
    told = await list_exchanges(harness, accepted)
    assert told == [STARTED, ASKED, "model.completed", ASKED, "model.completed"]
    asked, answered = await list_requests(harness, accepted)
    sent = [message["messageId"] for message in harness.peer.messages]
    assert sent == [asked.message_id, answered.message_id]


@pytest.mark.requirement("EVC-6")
async def test_an_agent_that_says_that_it_failed_has_answered(harness: Harness) -> None:
    accepted = await harness.send("fail badly")
    await harness.until(accepted, Status.FAILED)
    assert await list_exchanges(harness, accepted) == [STARTED, ASKED, "model.completed"]


@pytest.mark.requirement("EVC-6")
@pytest.mark.parametrize(
    ("text", "category"),
    [("refuse", ErrorCategory.PEER), ("close", None), ("drop", ErrorCategory.TRANSPORT)],
)
async def test_an_exchange_that_broke_says_where(
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
    # The peer's own words stay behind the door.
    assert "scripted-task-secret" not in str(failures)


@pytest.mark.requirement("EVC-6", "I6")
async def test_an_agent_that_is_away_is_asked_in_vain(harness: Harness) -> None:
    await harness.talk("echo its card is known now")
    await harness.peer.stop()
    accepted = await harness.send("echo hello")
    with pytest.raises(PasserelleError):
        await harness.await_answer(accepted)
    told = await list_exchanges(harness, accepted)
    assert told == [STARTED, ASKED, "model.failed"]
