"""Rules answer a peer in nobody's place: nobody is asked, the peer is told, and the record says who decided."""

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
async def test_rule_answers_the_peer_and_nobody_is_asked(
    harness: Harness, effect: Effect, option: str, state: str
) -> None:
    harness.rules = make_policy((rule("pay", effect),))
    accepted = await harness.send(asks("pay"))
    await harness.until(accepted, Status.COMPLETED)
    assert len(harness.peer.messages) == 2
    assert read_answer(harness.peer.messages[1])["option_id"] == option
    events = await harness.events(accepted)
    said = [event.fact.payload for event in events]
    [evaluated] = [one for one in said if isinstance(one, PermissionEvaluated) and one.rules]
    [resolved] = [one for one in said if isinstance(one, ActionResolved)]
    assert (evaluated.decision, evaluated.rules) == (effect, (f"{effect}-pay",))
    decision = resolved.decision
    assert (decision.outcome, decision.cause, decision.decided_by) == (state, "rule", "gateway")
    assert "task.waiting" not in [event.type for event in events]


async def test_rule_that_asks_or_none_at_all_leaves_it_to_a_person(harness: Harness) -> None:
    harness.rules = make_policy((rule("pay", "allow"), rule("pay", "ask"), rule("look", "allow")))
    accepted, _ = await harness.talk(asks("pay"))
    record = await harness.record(accepted)
    assert (record.status, len(record.open_actions)) == (Status.WAITING_INPUT, 1)
    assert len(harness.peer.messages) == 1


async def test_yes_that_people_are_not_offered_is_not_given_by_rule_either(
    harness: Harness,
) -> None:
    """Half a list of choices would mislead, so of too many none is offered but to say no."""
    harness.rules = make_policy((rule("pay", "allow"),))
    many = [{"option_id": f"o{n}", "name": "Allow", "kind": "allow_once"} for n in range(7)]
    asked = orjson.dumps({PERMISSION: form("pay") | {"options": many}}).decode()
    accepted, _ = await harness.talk(f"ask-data {asked}")
    assert (await harness.record(accepted)).status is Status.WAITING_INPUT
    options = cast("list[JsonObject]", (await harness.question(accepted))["options"])
    assert [option["kind"] for option in options] == ["cancel"]


async def test_changed_rules_count_for_the_next_question_and_leave_an_open_one_alone(
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


async def test_of_two_questions_in_one_pause_a_person_answers_the_one_that_no_rule_does(
    harness: Harness,
) -> None:
    """One message answers the pause, so what a rule has decided waits for the person."""
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


async def test_nobody_to_ask_means_no_and_a_question_for_words_ends_the_task(
    harness: Harness,
) -> None:
    harness.rules = make_policy(mode="no_ask")
    permission = await harness.send(asks("pay"))
    await harness.until(permission, Status.COMPLETED)
    assert read_answer(harness.peer.messages[-1])["option_id"] == "no"
    words = await harness.send("ask Which colour?")
    await harness.until(words, Status.CANCELLED)


@pytest.mark.requirement("DLV-2")
@pytest.mark.parametrize("effect", ["allow", "deny"])
async def test_answer_of_a_rule_that_the_peer_refuses_is_not_given_again(
    harness: Harness, effect: Effect
) -> None:
    """The rule would say the same for ever, so the task fails with the words of the peer, which is told to stop."""
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
    await wait_until(lambda: harness.peer.count("CancelTask") == 1, 15, "the agent is told to stop")
