"""An agent asks in the form of its framework, a person decides, and the agent gets the exact answer that it expects."""

from __future__ import annotations

import json
from copy import deepcopy
from pathlib import Path
from typing import Final, cast

import pytest

from passerelle.core.batch import Batch
from passerelle.core.payloads.approval import ActionResolved
from passerelle.core.task.status import Status
from passerelle.core.wire.json import JsonObject
from passerelle.gateway.settings.section import OutputSettings, read_output_terms
from tests.support.asking import ask_leave
from tests.support.harness import Harness
from tests.support.scripted_tasks import Turn, TurnScript
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio

VECTORS: Final = [
    vector
    for vector in cast(
        "list[JsonObject]",
        json.loads((Path(__file__).parents[2] / "vectors" / "dialects.json").read_text("utf-8")),
    )
    if len(cast("list[object]", vector["asks"])) == 1
]


def play(vector: JsonObject) -> TurnScript:
    """An agent whose task waits like the recorded one, and completes with any answer."""
    recorded = cast("JsonObject", vector["task"])

    async def ask(turn: Turn) -> None:
        task = await turn.open()
        for message in cast("list[JsonObject]", recorded.get("history", [])):
            if message["role"] == "ROLE_AGENT":
                said: JsonObject = {"state": "TASK_STATE_WORKING", "message": deepcopy(message)}
                task.remember(deepcopy(message))
                task.tell(
                    {
                        "statusUpdate": {
                            "taskId": task.id,
                            "contextId": task.context_id,
                            "status": said,
                        }
                    }
                )
        for artifact in cast("list[JsonObject]", recorded.get("artifacts", [])):
            parts = cast("list[object]", artifact["parts"])
            task.artifact(
                deepcopy(parts),  # type: ignore[arg-type]  # as recorded
                artifact_id=str(artifact["artifactId"]),
                name=str(artifact["name"]),
            )
        status = deepcopy(cast("JsonObject", recorded["status"])) | {
            "timestamp": "2026-01-01T00:00:09Z"
        }
        task.record["status"] = status
        update: JsonObject = {"taskId": task.id, "contextId": task.context_id, "status": status}
        task.tell({"statusUpdate": update})

    return ask


@pytest.mark.requirement("EVC-10", "CMD-14", "EXT-10")
@pytest.mark.parametrize("redacts", ["nothing", "what looks like ids"])
@pytest.mark.parametrize("decided", ["yes", "no"])
@pytest.mark.parametrize(
    "vector",
    [pytest.param(vector, id=f"{vector['dialect']}: {vector['says']}") for vector in VECTORS],
)
async def test_decision_reaches_the_agent_in_its_own_form(
    harness: Harness, vector: JsonObject, decided: str, redacts: str
) -> None:
    if redacts != "nothing":
        # As the digits of a card number, or the 40 letters of a key, are found in a digest.
        rule = {"name": "id", "pattern": r"^(adk-\d|[sia]\d?|c-1|q-1|approval-1|child-1)$"}
        harness.outputs.reload(read_output_terms(OutputSettings.model_validate({"redact": [rule]})))
    if decided not in vector:
        decided = "words" if "words" in vector else "no"
    harness.peer.next(play(vector))
    accepted, _ = await harness.talk("go")
    view = await harness.question(accepted)
    [asked] = cast("list[JsonObject]", vector["asks"])
    offered = [str(one["optionId"]) for one in cast("list[JsonObject]", view["options"])]
    assert offered == asked["options"]
    wanted = cast("JsonObject | None", vector[decided])
    if wanted is None:
        await harness.respond(view, option_id="cancel")
        await harness.until(accepted, Status.CANCELLED)
        assert len(harness.peer.messages) == 1
        return
    content = {"text": "blue"} if decided == "words" else None
    option = {"yes": "approve", "no": "reject", "words": "reply"}[decided]
    await harness.respond(view, option_id=option, content=content)
    await harness.until(accepted, Status.COMPLETED)
    assert len(harness.peer.messages) == 2
    sent = harness.peer.messages[1]
    assert sent["parts"] == wanted["parts"]
    assert sent.get("metadata") == wanted.get("metadata")


@pytest.mark.requirement("EVC-10", "VAL-4")
@pytest.mark.parametrize("dialect", ["langgraph", "gemini_cli"])
async def test_request_shown_once_stays_open_when_the_task_is_polled(
    harness: Harness, dialect: str
) -> None:
    """LangGraph agents show an interrupt in the stream, and omit it from GetTask, as gemini-cli does its history."""
    vector = next(one for one in VECTORS if one["dialect"] == dialect)

    async def ask_once(turn: Turn) -> None:
        await play(vector)(turn)
        task = await turn.open()
        earlier: JsonObject = {
            "state": "TASK_STATE_INPUT_REQUIRED",
            "timestamp": "2026-01-01T00:00:08.990Z",
        }
        task.record = {**task.record, "status": earlier, "artifacts": [], "history": []}

    harness.peer.next(ask_once)
    accepted = await harness.send("go", wait="stream")
    await harness.until(accepted, Status.WAITING_INPUT)
    view = await harness.question(accepted)
    polls = harness.peer.count("GetTask")
    await wait_until(
        lambda: harness.peer.count("GetTask") > polls + 2, 10, "the agent was polled again"
    )
    await harness.send("", task=accepted.facade, message=harness.message("yes, approved"))
    assert await harness.question(accepted) == view
    await harness.respond(view, option_id="approve")
    await harness.until(accepted, Status.COMPLETED)
    assert [one["parts"] for one in harness.peer.messages[1:]] == [
        cast("JsonObject", vector["yes"])["parts"]
    ]
    types = await harness.types(accepted)
    assert (types.count("action.required"), types.count("action.resolved")) == (1, 1)


async def test_request_in_an_artifact_is_shown_to_callers_as_a_complete_message(
    harness: Harness,
) -> None:
    """LangGraph agents ask in an artifact, with a status that has no message to add the request to."""
    vector = next(one for one in VECTORS if one["dialect"] == "langgraph")
    harness.peer.next(play(vector))
    accepted, _ = await harness.talk("go")
    task = await harness.read(accepted)
    shown = cast("JsonObject", cast("JsonObject", task["status"])["message"])
    assert {name: shown.get(name) for name in ("role", "taskId", "contextId")} == {
        "role": "ROLE_AGENT",
        "taskId": task["id"],
        "contextId": task["contextId"],
    }
    assert shown["messageId"]
    await harness.respond(await harness.question(accepted), option_id="approve")
    await harness.until(accepted, Status.COMPLETED)
    history = cast("list[JsonObject]", (await harness.read(accepted))["history"])
    assert [one["messageId"] for one in history].count(shown["messageId"]) == 1


@pytest.mark.requirement("EVC-10")
async def test_replacing_request_stays_open_whatever_the_history_contains(
    harness: Harness,
) -> None:
    """The agent keeps the old request in its history in its own form, which is not the form that callers read."""

    async def ask_twice(turn: Turn) -> None:
        await ask_leave("first")(turn)
        await ask_leave("second", {"name": "second"})(turn)

    harness.peer.next(ask_twice)
    accepted = await harness.send("go", wait="stream")

    async def asks_second() -> JsonObject | None:
        view = await harness.question(accepted)
        return view if "second" in str(view["subject"]) else None

    await harness.until(accepted, Status.WAITING_INPUT)
    view = await wait_until(asks_second, 15, "the second request is open")
    polls = harness.peer.count("GetTask")
    await wait_until(
        lambda: harness.peer.count("GetTask") > polls + 2, 15, "the agent was polled again"
    )
    assert await harness.question(accepted) == view
    types = await harness.types(accepted)
    assert (types.count("action.required"), types.count("action.resolved")) == (2, 1)
    assert view is not None
    await harness.respond(view, option_id="pay")
    await harness.until(accepted, Status.COMPLETED)


async def test_message_before_a_request_is_shown_and_does_not_close_it(harness: Harness) -> None:
    """A message sent between two polls is in the history only: the agent worked then, and waits now."""

    async def ask_late(turn: Turn) -> None:
        await ask_leave("first")(turn)
        task = await turn.open()
        task.remember(task.message([{"text": "let me think again"}]))
        task.record["status"] = {
            **cast("JsonObject", task.record["status"]),
            "message": task.message([{"text": "And now?"}]),
        }

    harness.peer.next(ask_late)
    accepted = await harness.send("go", wait="stream")

    async def is_superseded() -> bool:
        return (await harness.types(accepted)).count("action.resolved") == 1

    await wait_until(is_superseded, 15, "the first request is closed")
    closings = [
        event.fact.payload
        for event in await harness.events(accepted)
        if isinstance(event.fact.payload, ActionResolved)
    ]
    assert [closing.decision.cause for closing in closings] == ["superseded"]
    assert "let me think again" in str(await harness.read(accepted))
    assert (await harness.record(accepted)).status is Status.WAITING_INPUT


@pytest.mark.requirement("VAL-4")
async def test_text_that_races_with_a_request_is_not_sent_to_the_agent(harness: Harness) -> None:
    """The text was written to a working agent, which asks before the text is stored: the text does not answer."""

    async def ask_later(turn: Turn) -> None:
        await turn.status("WORKING")
        await ask_leave("first")(turn)

    harness.peer.next(ask_later)
    harness.peer.hold()
    accepted = await harness.send("go", wait="stream")
    harness.peer.release(2)

    async def is_shown() -> bool:
        return (await harness.record(accepted)).shown

    await wait_until(is_shown, 10, "the task of the agent is shown")
    raced: list[str] = []

    async def ask_before_append(batch: Batch) -> None:
        if not raced and any(b'"turn.submitted"' in event.body for event in batch.events):
            raced.append(batch.op)
            harness.peer.release_all()
            await harness.until(accepted, Status.WAITING_INPUT)

    harness.log.before_append = ask_before_append
    second = await harness.send("yes, do it", task=accepted.facade)
    task = cast("JsonObject", (await harness.await_answer(second))["task"])
    assert cast("JsonObject", task["status"])["state"] == "TASK_STATE_INPUT_REQUIRED"
    assert (len(raced), harness.peer.texts) == (1, ["go"])
    assert (await harness.question(accepted))["state"] == "pending"


@pytest.mark.requirement("EVC-10", "EXT-10")
async def test_question_in_words_that_are_redacted_gets_its_answer(harness: Harness) -> None:
    """A status message without an id is known by its words."""
    rule = {"name": "key", "pattern": "AKIA[0-9]{4}"}
    harness.outputs.reload(read_output_terms(OutputSettings.model_validate({"redact": [rule]})))

    async def ask(turn: Turn) -> None:
        task = await turn.open()
        message: JsonObject = {"role": "ROLE_AGENT", "parts": [{"text": "Is AKIA1234 the key?"}]}
        status: JsonObject = {
            "state": "TASK_STATE_INPUT_REQUIRED",
            "message": message,
            "timestamp": "2026-01-01T00:00:09Z",
        }
        task.record["status"] = status
        update: JsonObject = {"taskId": task.id, "contextId": task.context_id, "status": status}
        task.tell({"statusUpdate": update})

    harness.peer.next(ask)
    accepted, _ = await harness.talk("go")
    view = await harness.question(accepted)
    assert "Is [redacted: key] the key?" in str(view)
    await harness.respond(view, option_id="reply", content={"text": "yes"})
    await harness.until(accepted, Status.COMPLETED)
    assert harness.peer.texts == ["go", "yes"]
