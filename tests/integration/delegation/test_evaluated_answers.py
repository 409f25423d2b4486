"""Text answers are sent to the agent, so they are evaluated like any message to it, in whichever form they arrive."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final, cast

import pytest

from passerelle.core.errors import Forbidden, UnknownOption
from passerelle.core.payloads.approval import AudienceStep, PermissionEvaluated, Quorum
from passerelle.core.task.status import Status
from passerelle.delegation.verification.walk import verify_store
from passerelle.permission_bridge.approvers import Tier
from passerelle.permission_bridge.hook_terms import HookTerms
from passerelle.permission_bridge.rules import Rule, make_policy
from tests.integration.delegation.test_policy import asks
from tests.support.harness import ADA

if TYPE_CHECKING:
    from passerelle.core.commands import TurnAccepted
    from passerelle.core.wire.json import JsonObject
    from passerelle.permission_bridge.rules import Policy
    from tests.support.harness import Harness

pytestmark = pytest.mark.anyio

HERE: Final = "tests.integration.delegation.test_evaluated_answers"
SECRET: Final = "the number of the safe"
ASKED: Final[list[JsonObject]] = []


def keep_secret(given: JsonObject) -> JsonObject:
    ASKED.append(given)
    if SECRET in str(given["message"]):
        return {"verdict": "deny", "reason": "it stays here"}
    return {"verdict": "allow"}


def shout(given: JsonObject) -> JsonObject:
    return {"message": {**cast("JsonObject", given["message"]), "parts": [{"text": "BLUE"}]}}


def make_hook(name: str) -> Policy:
    ASKED.clear()
    return make_policy(
        hooks=(HookTerms(name, frozenset({"before_delegate"}), call=f"{HERE}:{name}"),)
    )


async def answer(
    harness: Harness, accepted: TurnAccepted, view: JsonObject, way: str, text: str
) -> None:
    """Answers with ``text``: by a device, as a decision in a message, or as a plain text message."""
    if way == "device":
        await harness.respond(view, option_id="reply", content={"text": text})
    elif way == "comment":
        await harness.respond(view, option_id="yes", comment=text)
    else:
        form: JsonObject = {
            "action_id": view["actionId"],
            "rev": view["rev"],
            "digest": view["digest"],
            "decision_id": "dec_m",
            "option_id": "reply",
            "content": {"text": text},
        }
        part: JsonObject = {"data": {"urn:passerelle:ext:permission:1": form}}
        message: JsonObject = {
            "messageId": f"m-{text}",
            "role": "ROLE_USER",
            "parts": [part if way == "decision" else {"text": text}],
        }
        await harness.send("", task=accepted.facade, message=message)


async def ask(harness: Harness, way: str) -> tuple[TurnAccepted, JsonObject]:
    """Makes the agent ask; returns the turn and the approval."""
    accepted, _ = await harness.talk(asks("pay") if way == "comment" else "ask Which colour?")
    return accepted, await harness.question(accepted)


@pytest.mark.requirement("EXT-3", "PRS-4")
@pytest.mark.parametrize("way", ["device", "decision", "message", "comment"])
async def test_hook_evaluates_text_answers_in_every_form(harness: Harness, way: str) -> None:
    accepted, view = await ask(harness, way)
    harness.rules = make_hook("keep_secret")
    with pytest.raises(Forbidden, match="it stays here"):
        await answer(harness, accepted, view, way, SECRET)
    record = await harness.record(accepted)
    assert (record.status in {Status.WAITING_INPUT, Status.WAITING_PERMISSION}) is True
    assert record.open_actions == (view["actionId"],)
    assert len(harness.peer.messages) == 1
    await answer(harness, accepted, view, way, "blue")
    await harness.until(accepted, Status.COMPLETED)
    assert "blue" in str(harness.peer.messages[1:])
    assert SECRET not in str(harness.peer.messages)
    assert [SECRET in str(one["message"]) for one in ASKED] == [True, False]
    judged = [one.fact.payload for one in await harness.events(accepted)]
    decisions = [one.decision for one in judged if isinstance(one, PermissionEvaluated)]
    assert decisions[-2:] == ["deny", "allow"]
    assert (await verify_store(harness.store)).ok


@pytest.mark.requirement("PRS-3")
@pytest.mark.parametrize("way", ["device", "decision", "message"])
async def test_rule_evaluates_text_answers_in_every_form(harness: Harness, way: str) -> None:
    accepted, view = await ask(harness, way)
    harness.rules = make_policy((Rule("nothing-leaves", "deny", about=frozenset({"delegations"})),))
    with pytest.raises(Forbidden, match="policy forbids it"):
        await answer(harness, accepted, view, way, "blue")
    assert len(harness.peer.messages) == 1
    assert (await harness.record(accepted)).open_actions == (view["actionId"],)


async def test_text_of_a_decision_that_a_hook_rewrites_is_not_sent(harness: Harness) -> None:
    accepted, view = await ask(harness, "device")
    harness.rules = make_hook("shout")
    with pytest.raises(Forbidden, match="send them as a message"):
        await answer(harness, accepted, view, "device", "blue")
    assert len(harness.peer.messages) == 1
    await answer(harness, accepted, view, "message", "blue")
    await harness.until(accepted, Status.COMPLETED)
    assert harness.peer.texts[1:] == ["BLUE"]


async def test_option_without_text_is_a_decision_and_calls_no_hook(harness: Harness) -> None:
    accepted, view = await ask(harness, "comment")
    harness.rules = make_hook("keep_secret")
    await harness.respond(view, option_id="yes")
    await harness.until(accepted, Status.COMPLETED)
    assert ASKED == []


def keep_from_metadata(given: JsonObject) -> JsonObject:
    ASKED.append(given)
    return {"verdict": "deny" if SECRET in str(given["case"]) else "silent"}


@pytest.mark.requirement("EXT-3", "PRS-4")
async def test_metadata_beside_a_decision_is_evaluated(harness: Harness) -> None:
    accepted, view = await ask(harness, "comment")
    harness.rules = make_hook("keep_from_metadata")
    form: JsonObject = {
        "action_id": view["actionId"],
        "rev": view["rev"],
        "digest": view["digest"],
        "decision_id": "dec_m",
        "option_id": "yes",
    }
    message: JsonObject = {
        "messageId": "m-decision",
        "role": "ROLE_USER",
        "parts": [{"data": {"urn:passerelle:ext:permission:1": form}}],
    }
    noted: JsonObject = {"metadata": {"note": SECRET}}
    with pytest.raises(Forbidden, match="policy forbids it"):
        await harness.send("", task=accepted.facade, message=message, params=noted)
    assert (await harness.record(accepted)).open_actions == (view["actionId"],)
    plain: JsonObject = {"metadata": {"note": "fast"}}
    await harness.send("", task=accepted.facade, message=message, params=plain)
    await harness.until(accepted, Status.COMPLETED)
    assert SECRET not in str(harness.peer.requests)
    assert len(ASKED) == 2


async def test_invalid_or_repeated_answer_calls_no_hook(harness: Harness) -> None:
    accepted, view = await ask(harness, "device")
    harness.rules = make_hook("keep_secret")
    with pytest.raises(UnknownOption):
        await harness.respond(view, option_id="none", content={"text": "blue"})
    assert ASKED == []
    await answer(harness, accepted, view, "device", "blue")
    await harness.until(accepted, Status.COMPLETED)
    await answer(harness, accepted, view, "device", "blue")
    assert len(ASKED) == 1


@pytest.mark.requirement("PRS-3")
async def test_asking_rule_is_satisfied_by_the_decision_of_a_person(harness: Harness) -> None:
    accepted, view = await ask(harness, "device")
    harness.rules = make_policy((Rule("ask-first", "ask", about=frozenset({"delegations"})),))
    with pytest.raises(Forbidden, match="needs an approval first"):
        await answer(harness, accepted, view, "message", "blue")
    await answer(harness, accepted, view, "device", "blue")
    await harness.until(accepted, Status.COMPLETED)
    assert harness.peer.texts[1:] == ["blue"]


@pytest.mark.parametrize("also_a_rule", [True, False])
async def test_hook_that_fails_closed_is_not_satisfied_by_a_person(
    harness: Harness, *, also_a_rule: bool
) -> None:
    accepted, view = await ask(harness, "device")
    rule = Rule("ask-first", "ask", about=frozenset({"delegations"}))
    hooks = make_hook("nowhere").hooks
    harness.rules = make_policy((rule,) if also_a_rule else (), hooks=hooks)
    with pytest.raises(Forbidden, match="needs an approval first"):
        await answer(harness, accepted, view, "device", "blue")
    assert len(harness.peer.messages) == 1


@pytest.mark.requirement("PRS-3")
@pytest.mark.parametrize("why", ["tier", "service"])
async def test_rule_with_approvers_is_satisfied_only_by_them(harness: Harness, why: str) -> None:
    _, view = await ask(harness, "device")
    tier = Tier("low", Quorum(), (AudienceStep(("boss",)),)) if why == "tier" else None
    harness.rules = make_policy(
        (Rule("ask-first", "ask", about=frozenset({"delegations"}), tier=tier),)
    )
    who = ADA if why == "tier" else replace(ADA, kind="service")
    with pytest.raises(Forbidden, match="needs an approval first"):
        await harness.respond(view, who=who, option_id="reply", content={"text": "blue"})
    assert len(harness.peer.messages) == 1
