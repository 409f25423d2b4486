"""A caller answers in the agent's own dialect: the same decision as in the gateway's form, under the same rules."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from typing import Final, cast

import pytest

from passerelle.a2a_mapping.extensions import APPROVAL
from passerelle.core.commands import GetAction, TurnAccepted
from passerelle.core.errors import ActionClosed, CallerError
from passerelle.core.payloads.approval import ActionResolved, AudienceStep, Quorum
from passerelle.core.principal import AccessScope, Principal
from passerelle.core.task.status import Status
from passerelle.core.wire.json import Json, JsonObject
from passerelle.permission_bridge.approvers import Tier
from passerelle.permission_bridge.rules import DEFAULT_POLICY, Policy
from tests.integration.delegation.test_framework_dialects import VECTORS, play
from tests.support.harness import ADA, BOB, Harness
from tests.support.scripted_tasks import Turn, TurnScript
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio

INPUT_REQUIRED: Final = "TASK_STATE_INPUT_REQUIRED"


def confirm(native_id: str, *, confirmed: Json = True, **response: Json) -> JsonObject:
    """An answer of google-adk, as its remote agent sends it."""
    return {
        "data": {
            "id": native_id,
            "name": "adk_request_confirmation",
            "response": {"confirmed": confirmed, **response},
        },
        "metadata": {"adk_type": "function_response"},
    }


def call(native_id: str, tool: str = "delete_rows", n: int = 42) -> JsonObject:
    """A request of google-adk."""
    wanted: JsonObject = {"id": f"of-{native_id}", "name": tool, "args": {"n": n}}
    args: JsonObject = {
        "originalFunctionCall": wanted,
        "toolConfirmation": {"hint": "Please approve or reject", "confirmed": False},
    }
    data: JsonObject = {"id": native_id, "name": "adk_request_confirmation", "args": args}
    return {"data": data, "metadata": {"adk_type": "function_call", "adk_is_long_running": True}}


def ask(*calls: JsonObject) -> TurnScript:
    """An agent that waits for these calls, and completes with any answer."""

    async def script(turn: Turn) -> None:
        await turn.status("INPUT_REQUIRED", None, [*deepcopy(calls)])

    return script


async def _park(harness: Harness, *calls: JsonObject) -> tuple[str, JsonObject]:
    harness.peer.next(ask(*calls))
    accepted, answer = await harness.talk("go")
    return accepted.facade, cast("JsonObject", answer["task"])


async def _send(
    harness: Harness, facade: str, *parts: JsonObject, who: Principal = ADA
) -> JsonObject:
    message: JsonObject = {**harness.message(""), "parts": [*parts], "taskId": facade}
    sent = await harness.send("", message=message, task=facade, who=who)
    return cast("JsonObject", (await harness.await_answer(sent, who=who))["task"])


def _name_approvers(quorum: Quorum) -> Policy:
    return replace(DEFAULT_POLICY, tiers=(Tier("low", quorum, (AudienceStep(("ada", "bob")),)),))


async def _find_other(harness: Harness, accepted: TurnAccepted, known: str) -> JsonObject | None:
    names = [name for name in (await harness.record(accepted)).open_actions if name != known]
    return await harness.service.read(ADA, GetAction(names[0])) if names else None


def _parts(task: JsonObject) -> list[JsonObject]:
    status = cast("JsonObject", task["status"])
    return cast("list[JsonObject]", cast("JsonObject", status["message"])["parts"])


def _state(task: JsonObject) -> object:
    return cast("JsonObject", task["status"])["state"]


@pytest.mark.requirement("DIA-3")
async def test_callers_see_the_agents_request_and_the_gateways_form(harness: Harness) -> None:
    _, task = await _park(harness, call("adk-1"))
    text, form, native = _parts(task)
    assert "asks for permission" in str(text["text"])
    assert "urn:passerelle:ext:permission:1" in cast("JsonObject", form["data"])
    assert native == call("adk-1")


@pytest.mark.requirement("DIA-3")
@pytest.mark.parametrize("in_words", [True, False])
async def test_agent_that_takes_one_form_gets_the_words_of_its_caller_in_it(
    harness: Harness, *, in_words: bool
) -> None:
    interrupt: JsonObject = {"interruptId": "s-1", "name": "colour", "reason": "Which one?"}
    facade, _ = await _park(harness, {"data": {"interrupts": [interrupt]}})
    words: JsonObject = {"text": "blue, and\nnothing else"}
    response: JsonObject = {"interruptId": "s-1", "response": words["text"]}
    typed: JsonObject = {"data": {"interruptResponse": response}}
    done = await _send(harness, facade, words if in_words else typed)
    assert _state(done) == "TASK_STATE_COMPLETED"
    assert harness.peer.messages[-1]["parts"] == [typed]
    assert cast("list[JsonObject]", done["history"])[-1]["parts"] == [words if in_words else typed]


@pytest.mark.requirement("DIA-3")
@pytest.mark.parametrize("confirmed", [True, False])
async def test_answer_in_the_agents_form_decides_and_is_sent_unchanged(
    harness: Harness, *, confirmed: bool
) -> None:
    facade, _ = await _park(harness, call("adk-1"))
    answer = confirm("adk-1", confirmed=confirmed, hint="Please approve or reject")
    done = await _send(harness, facade, answer)
    assert _state(done) == "TASK_STATE_COMPLETED"
    assert len(harness.peer.messages) == 2
    sent = harness.peer.messages[1]
    assert sent["parts"] == [answer]
    assert sent["taskId"] == next(iter(harness.peer.tasks))
    # The gateway sends its own message: its id is derived from the decision.
    assert not str(sent["messageId"]).startswith("m-")


@pytest.mark.requirement("DIA-3", "ANS-8")
@pytest.mark.parametrize("stores", [True, False])
async def test_request_is_in_the_history_once_before_the_kept_messages(
    harness: Harness, *, stores: bool
) -> None:
    async def script(turn: Turn) -> None:
        task = await turn.open()
        await turn.status("INPUT_REQUIRED", None, [call("adk-1")])
        if stores:
            question = cast("JsonObject", cast("JsonObject", task.record["status"])["message"])
            cast("list[Json]", task.record["history"]).append(question)
            task.tell({"task": deepcopy(task.record)})

    harness.peer.next(script)
    accepted, _ = await harness.talk("go")
    facade = accepted.facade
    for words in ("green", "blue"):
        await _send(harness, facade, {"text": words})
    await _send(harness, facade, confirm("adk-1"))
    await harness.until(accepted, Status.COMPLETED)
    task = await harness.read(accepted)
    history = cast("list[JsonObject]", task["history"])
    shown = [
        [part for part in cast("list[JsonObject]", one["parts"]) if part == call("adk-1")]
        for one in history
    ]
    assert [len(one) for one in shown].count(1) == 1
    kept = [one for one in history if "was kept and not sent" in str(one)]
    assert [len(cast("list[Json]", one["parts"])) for one in kept] == [1, 1]
    assert [one["role"] for one in kept] == ["ROLE_AGENT", "ROLE_AGENT"]


@pytest.mark.requirement("DIA-3")
async def test_two_requests_of_one_pause_are_answered_in_one_message(harness: Harness) -> None:
    facade, _ = await _park(harness, call("a"), call("b"))
    answers = confirm("b", confirmed=False), confirm("a")
    done = await _send(harness, facade, *answers)
    assert _state(done) == "TASK_STATE_COMPLETED"
    assert sorted(map(str, cast("list[Json]", harness.peer.messages[1]["parts"]))) == sorted(
        map(str, answers)
    )


async def test_one_of_two_requests_waits_for_the_other(harness: Harness) -> None:
    facade, _ = await _park(harness, call("a"), call("b"))
    waiting = await _send(harness, facade, confirm("a"))
    assert _state(waiting) == INPUT_REQUIRED
    assert "More answers are needed" in str(_parts(waiting)[0]["text"])
    assert len(harness.peer.messages) == 1
    done = await _send(harness, facade, confirm("b"))
    assert _state(done) == "TASK_STATE_COMPLETED"
    sent = cast("list[Json]", harness.peer.messages[1]["parts"])
    assert sorted(map(str, sent)) == sorted(map(str, (confirm("a"), confirm("b"))))


@pytest.mark.requirement("DIA-4")
@pytest.mark.parametrize(
    ("parts", "why"),
    [
        pytest.param(
            [confirm("other")], "matches no approval request", id="an id that was not asked"
        ),
        pytest.param(
            [confirm("adk-1", confirmed="true")],
            "neither an approval nor a rejection",
            id="no boolean",
        ),
        pytest.param(
            [confirm("adk-1", confirmed=1)], "neither an approval nor a rejection", id="a number"
        ),
        pytest.param(
            [confirm("adk-1", payload={"n": 1})],
            "neither an approval nor a rejection",
            id="an edit",
        ),
        pytest.param(
            [confirm("adk-1", tool="drop")],
            "neither an approval nor a rejection",
            id="an unknown member",
        ),
        pytest.param([confirm("adk-1"), {"text": "and hurry"}], "only content", id="with text"),
        pytest.param([{"data": {"x": 1}}, confirm("adk-1")], "only content", id="with data"),
        pytest.param([confirm("adk-1")] * 2, "twice", id="the same answer twice"),
        pytest.param(
            [confirm("adk-1"), confirm("adk-1", confirmed=False)], "twice", id="yes and no"
        ),
    ],
)
async def test_invalid_answer_is_rejected_and_the_status_contains_the_reason(
    harness: Harness, parts: list[JsonObject], why: str
) -> None:
    facade, before = await _park(harness, call("adk-1"))
    task = await _send(harness, facade, *parts)
    assert _state(task) == INPUT_REQUIRED
    reason, *question = _parts(task)
    assert why in str(reason["text"])
    assert question == _parts(before)
    # A second invalid answer replaces the reason.
    again = await _send(harness, facade, confirm("elsewhere"))
    assert [one for one in _parts(again) if "was not accepted" in str(one.get("text"))] == [
        _parts(again)[0]
    ]
    assert len(harness.peer.messages) == 1
    # The request is still open.
    assert _state(await _send(harness, facade, confirm("adk-1"))) == "TASK_STATE_COMPLETED"
    assert harness.peer.messages[1]["parts"] == [confirm("adk-1")]


@pytest.mark.requirement("DIA-4")
async def test_answer_to_a_closed_request_is_not_sent_to_the_agent(harness: Harness) -> None:
    harness.peer.next(ask(call("adk-1")), ask(call("adk-2")))
    accepted, _ = await harness.talk("go")
    view = await harness.question(accepted)
    await harness.respond(view, option_id="reject")
    second = await wait_until(
        lambda: _find_other(harness, accepted, str(view["actionId"])),
        10,
        "the second request is open",
    )
    assert second is not None
    # The agent still knows the first id, and would act on it.
    task = await _send(harness, accepted.facade, confirm("adk-1"))
    assert _state(task) == INPUT_REQUIRED
    assert "closed" in str(_parts(task)[0]["text"])
    assert len(harness.peer.messages) == 2
    await harness.respond(second, "dec_2", option_id="approve")
    await harness.until(accepted, Status.COMPLETED)


@pytest.mark.requirement("DIA-4")
async def test_credential_of_an_agent_decides_in_no_form(harness: Harness) -> None:
    facade, _ = await _park(harness, call("adk-1"))
    agent = Principal("ada", kind="agent", scopes=frozenset(AccessScope))
    task = await _send(harness, facade, confirm("adk-1"), who=agent)
    assert _state(task) == INPUT_REQUIRED
    assert "never decides" in str(_parts(task)[0]["text"])
    unfit = Principal("ada", kind="person", scopes=frozenset({AccessScope.CALL}))
    task = await _send(harness, facade, confirm("adk-1"), who=unfit)
    assert "the credential lacks" in str(_parts(task)[0]["text"])
    assert len(harness.peer.messages) == 1


@pytest.mark.requirement("DIA-4")
async def test_caller_that_may_not_approve_itself_cannot_in_the_agents_form(
    harness: Harness,
) -> None:
    harness.rules = _name_approvers(Quorum(allow_self=False))
    facade, _ = await _park(harness, call("adk-1"))
    task = await _send(harness, facade, confirm("adk-1"))
    assert _state(task) == INPUT_REQUIRED
    assert "others to decide" in str(_parts(task)[0]["text"])
    assert len(harness.peer.messages) == 1


@pytest.mark.requirement("DIA-4")
async def test_approval_in_the_agents_form_is_one_vote_of_a_quorum(harness: Harness) -> None:
    harness.rules = _name_approvers(Quorum(need=2))
    harness.peer.next(ask(call("adk-1")))
    accepted, _ = await harness.talk("go")
    task = await _send(harness, accepted.facade, confirm("adk-1"))
    assert _state(task) == INPUT_REQUIRED
    assert "More answers are needed" in str(_parts(task)[0]["text"])
    assert len(harness.peer.messages) == 1
    # A repeated vote of one person counts once.
    await _send(harness, accepted.facade, confirm("adk-1"))
    assert len(harness.peer.messages) == 1
    await harness.respond(await harness.question(accepted, BOB), option_id="approve", who=BOB)
    await harness.until(accepted, Status.COMPLETED)
    [sent] = harness.peer.messages[1:]
    assert sent["parts"] == [confirm("adk-1", payload=None)]


@pytest.mark.requirement("DIA-4")
async def test_approval_that_needs_a_signature_is_refused_in_the_agents_form(
    harness: Harness,
) -> None:
    harness.tags = frozenset({"payments"})
    actions = harness.parts.actions
    actions.assurance = replace(actions.assurance, demand="always")
    facade, _ = await _park(harness, call("adk-1", "exec_shell"))
    task = await _send(harness, facade, confirm("adk-1"))
    assert _state(task) == INPUT_REQUIRED
    assert "requires the signature" in str(_parts(task)[0]["text"])
    assert len(harness.peer.messages) == 1
    # A rejection needs no signature.
    assert _state(await _send(harness, facade, confirm("adk-1", confirmed=False))) != INPUT_REQUIRED


async def test_answer_of_another_caller_does_not_find_the_task(harness: Harness) -> None:
    facade, _ = await _park(harness, call("adk-1"))
    with pytest.raises(CallerError):
        await _send(harness, facade, confirm("adk-1"), who=BOB)
    assert len(harness.peer.messages) == 1


async def test_confirmation_without_an_approval_request_is_rejected(harness: Harness) -> None:
    """A request that the gateway could not parse whole is a request for input: text approves nothing."""
    other: JsonObject = {
        "data": {"id": "x", "name": "adk_request_dance", "args": {}},
        "metadata": {"adk_type": "function_call"},
    }
    facade, _ = await _park(harness, call("adk-1"), other)
    task = await _send(harness, facade, confirm("adk-1"))
    assert _state(task) == INPUT_REQUIRED
    assert "matches no approval request" in str(_parts(task)[0]["text"])
    assert len(harness.peer.messages) == 1


async def test_decision_records_the_answer_and_its_author(harness: Harness) -> None:
    harness.peer.next(ask(call("adk-1")))
    accepted, _ = await harness.talk("go")
    view = await harness.question(accepted)
    await _send(harness, accepted.facade, confirm("adk-1"))
    closed = await harness.service.read(ADA, GetAction(str(view["actionId"])))
    decision = cast("JsonObject", closed["decision"])
    assert (closed["state"], closed["returnState"]) == ("allowed", "returned")
    assert (decision["decidedBy"], decision["optionId"]) == ("ada", "approve")
    payloads = [event.fact.payload for event in await harness.events(accepted)]
    [resolved] = [one for one in payloads if isinstance(one, ActionResolved)]
    assert resolved.decision.native == {"part": confirm("adk-1")}


@pytest.mark.requirement("DIA-3")
@pytest.mark.parametrize("decided", ["yes", "no"])
@pytest.mark.parametrize(
    "vector",
    [
        pytest.param(vector, id=f"{vector['dialect']}: {vector['says']}")
        for vector in VECTORS
        if vector["dialect"] in {"adk", "agentstack", "kagent", "langgraph", "mastra", "strands"}
        and vector.get("yes")
        and vector.get("no")
    ],
)
async def test_each_dialect_is_answered_in_its_own_form(
    harness: Harness, vector: JsonObject, decided: str
) -> None:
    given = cast("JsonObject", vector[decided])
    harness.peer.next(play(vector))
    accepted, _ = await harness.talk("go")
    message = {**harness.message(""), **given, "taskId": accepted.facade}
    del message["contextId"]
    sent = await harness.send("", message=message, task=accepted.facade)
    await harness.await_answer(sent)
    await harness.until(accepted, Status.COMPLETED)
    [answer] = harness.peer.messages[1:]
    assert {name: answer.get(name) for name in ("metadata", "extensions")} == {
        name: given.get(name) for name in ("metadata", "extensions")
    }
    assert [part.get("data") for part in cast("list[JsonObject]", answer["parts"])] == [
        part.get("data") for part in cast("list[JsonObject]", given["parts"])
    ]


@pytest.mark.requirement("DIA-4")
async def test_answer_without_an_id_does_not_answer_a_newer_request(
    harness: Harness,
) -> None:
    """The first request was decided by another device, and the caller has not seen the second one."""

    def approval(title: str) -> TurnScript:
        async def script(turn: Turn) -> None:
            task = await turn.open()
            form: JsonObject = {"action": "tool-call", "title": title, "name": "delete_rows"}
            message: JsonObject = {
                "messageId": f"of-{title}",
                "role": "ROLE_AGENT",
                "parts": [],
                "metadata": {APPROVAL: form},
            }
            status: JsonObject = {"state": INPUT_REQUIRED, "message": message}
            task.record["status"] = status
            update: JsonObject = {"taskId": task.id, "contextId": task.context_id, "status": status}
            task.tell({"statusUpdate": update})

        return script

    async def approve() -> JsonObject:
        own: JsonObject = {"parts": [], "metadata": {APPROVAL: {"decision": "approve"}}}
        message: JsonObject = {**harness.message(""), **own, "taskId": accepted.facade}
        sent = await harness.send("", message=message, task=accepted.facade)
        return cast("JsonObject", (await harness.await_answer(sent))["task"])

    harness.peer.next(approval("first"), approval("second"))
    accepted, _ = await harness.talk("go")
    view = await harness.question(accepted)
    await harness.respond(view, option_id="reject")
    assert await wait_until(
        lambda: _find_other(harness, accepted, str(view["actionId"])),
        10,
        "the second request is open",
    )
    task = await approve()
    assert _state(task) == INPUT_REQUIRED
    assert "was not accepted" in str(_parts(task)[0]["text"])
    assert len(harness.peer.messages) == 2
    # The second request was shown to the caller, so the answer can only refer to it.
    assert _state(await approve()) == "TASK_STATE_COMPLETED"
    assert harness.peer.messages[2]["metadata"] == {APPROVAL: {"decision": "approve"}}


@pytest.mark.requirement("DIA-4")
async def test_repeated_answer_is_refused_while_the_agent_works(harness: Harness) -> None:
    async def work(turn: Turn) -> None:
        await turn.status("WORKING")

    harness.peer.next(ask(call("adk-1")), work)
    accepted, _ = await harness.talk("go")
    message: JsonObject = {
        **harness.message(""),
        "parts": [confirm("adk-1")],
        "taskId": accepted.facade,
    }
    await harness.send("", message=message, task=accepted.facade)
    await harness.until(accepted, Status.RUNNING)
    with pytest.raises(ActionClosed):
        await harness.send("", message={**message, "messageId": "again"}, task=accepted.facade)
    await wait_until(lambda: len(harness.peer.messages) == 2, 10, "the agent has the one answer")
    assert [one["parts"] for one in harness.peer.messages[1:]] == [[confirm("adk-1")]]
