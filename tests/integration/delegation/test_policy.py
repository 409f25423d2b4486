"""Rules answer an agent's request without a person: nothing is asked, the answer is sent, the rule is recorded."""

from __future__ import annotations

from typing import Final, cast

import orjson
import pytest

from passerelle.a2a_mapping.extensions import PERMISSION
from passerelle.core.payloads.approval import ActionResolved, PermissionEvaluated
from passerelle.core.task.status import Status
from passerelle.core.wire.json import Json, JsonObject
from passerelle.permission_bridge.conditions import read_condition
from passerelle.permission_bridge.rules import Effect, Rule, make_policy
from tests.support.harness import Harness
from tests.support.scripted_tasks import Turn
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio

OPTIONS: Final[list[Json]] = [
    {"option_id": "yes", "name": "Allow", "kind": "allow_once"},
    {"option_id": "no", "name": "Reject", "kind": "reject_once"},
]


def form(tool: str, action: str = "pay-1") -> JsonObject:
    subject: JsonObject = {"type": "tool_call", "name": tool, "arguments": {"amount": 40}}
    return {
        "action_id": action,
        "rev": 1,
        "digest": "sha256:ab",
        "kind": "permission",
        "title": "Pay 40 EUR",
        "subject": subject,
        "options": OPTIONS,
        "risk": "medium",
    }


def asks(tool: str) -> str:
    return f"ask-data {orjson.dumps({PERMISSION: form(tool)}).decode()}"


def rule(tool: str, effect: Effect) -> Rule:
    return Rule(f"{effect}-{tool}", effect, read_condition(f"action.tool == '{tool}'"))


def read_answer(message: JsonObject) -> JsonObject:
    [part] = cast("list[JsonObject]", message["parts"])
    return cast("JsonObject", cast("JsonObject", part["data"])[PERMISSION])


@pytest.mark.requirement("EXT-1", "CHN-14")
@pytest.mark.parametrize(
    ("effect", "option", "state"), [("allow", "yes", "allowed"), ("deny", "no", "rejected")]
)
async def test_rule_answers_the_agent_without_a_person(
    harness: Harness, effect: Effect, option: str, state: str
) -> None:
    harness.rules = make_policy((rule("pay", effect),))
    accepted = await harness.send(asks("pay"))
    await harness.until(accepted, Status.COMPLETED)
    assert len(harness.peer.messages) == 2
    assert read_answer(harness.peer.messages[1])["option_id"] == option
    events = await harness.events(accepted)
    payloads = [event.fact.payload for event in events]
    [evaluated] = [one for one in payloads if isinstance(one, PermissionEvaluated) and one.rules]
    [resolved] = [one for one in payloads if isinstance(one, ActionResolved)]
    assert (evaluated.decision, evaluated.rules) == (effect, (f"{effect}-pay",))
    decision = resolved.decision
    assert (decision.outcome, decision.cause, decision.decided_by) == (state, "rule", "gateway")
    assert "task.waiting" not in [event.type for event in events]


async def test_asking_rule_or_no_rule_leaves_the_decision_to_a_person(harness: Harness) -> None:
    harness.rules = make_policy((rule("pay", "allow"), rule("pay", "ask"), rule("look", "allow")))
    accepted, _ = await harness.talk(asks("pay"))
    record = await harness.record(accepted)
    assert (record.status, len(record.open_actions)) == (Status.WAITING_INPUT, 1)
    assert len(harness.peer.messages) == 1


async def test_rule_does_not_choose_an_option_that_is_not_offered(harness: Harness) -> None:
    """A truncated list of options would mislead, so a request with too many options can only be cancelled."""
    harness.rules = make_policy((rule("pay", "allow"),))
    many = [{"option_id": f"o{n}", "name": "Allow", "kind": "allow_once"} for n in range(7)]
    asked = orjson.dumps({PERMISSION: form("pay") | {"options": many}}).decode()
    accepted, _ = await harness.talk(f"ask-data {asked}")
    assert (await harness.record(accepted)).status is Status.WAITING_INPUT
    options = cast("list[JsonObject]", (await harness.question(accepted))["options"])
    assert [option["kind"] for option in options] == ["cancel"]


async def test_changed_rules_apply_to_later_requests_only(
    harness: Harness,
) -> None:
    first, _ = await harness.talk(asks("pay"))
    view = await harness.question(first)
    harness.rules = make_policy((rule("pay", "deny"),))
    second = await harness.send(asks("pay"))
    await harness.until(second, Status.COMPLETED)
    assert read_answer(harness.peer.messages[-1])["option_id"] == "no"
    again = await harness.question(first)
    assert (again["state"], again["digest"]) == ("pending", view["digest"])
    await harness.respond(again, option_id="yes")
    await harness.until(first, Status.COMPLETED)
    assert read_answer(harness.peer.messages[-1])["option_id"] == "yes"


async def test_of_two_requests_in_one_pause_a_person_decides_the_one_without_a_rule(
    harness: Harness,
) -> None:
    """One message answers the pause, so the decision of the rule waits for the person's."""
    harness.rules = make_policy((rule("look", "allow"),))
    both = [{"data": {PERMISSION: form("look", "a-1")}}, {"data": {PERMISSION: form("pay", "a-2")}}]

    async def ask_both(turn: Turn) -> None:
        await turn.status("INPUT_REQUIRED", "Two things.", cast("list[Json]", both))

    harness.peer.next(ask_both)
    accepted, _ = await harness.talk("both")
    record = await harness.record(accepted)
    assert len(record.open_actions) == 1
    view = await harness.question(accepted)
    await harness.respond(view, option_id="no")
    await harness.until(accepted, Status.COMPLETED)
    parts = cast("list[JsonObject]", harness.peer.messages[1]["parts"])
    forms = [cast("JsonObject", cast("JsonObject", part["data"])[PERMISSION]) for part in parts]
    assert {str(one["action_id"]): one["option_id"] for one in forms} == {"a-1": "yes", "a-2": "no"}


async def test_unattended_mode_rejects_permissions_and_cancels_requests_for_input(
    harness: Harness,
) -> None:
    harness.rules = make_policy(mode="no_ask")
    permission = await harness.send(asks("pay"))
    await harness.until(permission, Status.COMPLETED)
    assert read_answer(harness.peer.messages[-1])["option_id"] == "no"
    input_request = await harness.send("ask Which colour?")
    await harness.until(input_request, Status.CANCELLED)


@pytest.mark.requirement("DLV-2")
@pytest.mark.parametrize("effect", ["allow", "deny"])
async def test_refused_answer_of_a_rule_is_not_repeated(harness: Harness, effect: Effect) -> None:
    """The rule would decide the same again, so the task fails with the agent's message and is cancelled there."""
    harness.rules = make_policy((rule("pay", effect),))
    asked = asks("pay")

    async def ask(turn: Turn) -> None:
        data = cast("JsonObject", orjson.loads(asked.removeprefix("ask-data ")))
        await turn.status("INPUT_REQUIRED", "May I?", [{"data": data}])

    async def refuse(turn: Turn) -> None:
        await turn.refuse(-32602, "that is no answer")

    harness.peer.next(ask, refuse)
    accepted = await harness.send(asked)
    record = await harness.until(accepted, Status.FAILED)
    assert len(harness.peer.messages) == 2
    error = record.attempts[-1].last_error
    assert error is not None
    assert error.message.endswith("that is no answer")
    assert record.open_actions == ()
    await wait_until(lambda: harness.peer.count("CancelTask") == 1, 15, "the agent has the cancel")
