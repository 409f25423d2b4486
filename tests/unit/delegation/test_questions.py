"""A waiting agent: one question per occurrence, stored in the append that makes the task wait, and its expiry row."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import pytest

from passerelle.a2a_mapping.extensions import PERMISSION
from passerelle.core.approval import machine as approval
from passerelle.core.approval.commands import AnswerAction
from passerelle.core.principal import AccessScope, Principal
from passerelle.core.task.status import Status
from passerelle.core.wire.json import Json, JsonObject
from tests.unit.delegation.pump import REMOTE, Pump, make_running, status, task


def asks(text: str, at: int = 4) -> JsonObject:
    return status("INPUT_REQUIRED", text, at=at)


def asks_permission(at: int = 4) -> JsonObject:
    """A question in the dialect of our own extension, with an id of the peer in its words."""
    form: JsonObject = {
        "action_id": "native-1",
        "rev": 1,
        "digest": "sha256:00",
        "kind": "permission",
        "title": "Pay",
        "subject": {"type": "tool_call", "tool": "pay", "for": REMOTE},
        "options": [
            {"option_id": "yes", "name": "Allow", "kind": "allow_once"},
            {"option_id": "no", "name": "Reject", "kind": "reject_once"},
        ],
        "expires_at": "2026-01-02T00:00:00.000Z",
        "risk": "high",
    }
    frame = status("AUTH_REQUIRED", "May I pay?", at=at)
    update = cast("JsonObject", frame["statusUpdate"])
    message = cast("JsonObject", cast("JsonObject", update["status"])["message"])
    cast("list[Json]", message["parts"]).append({"data": {PERMISSION: form}})
    return frame


@pytest.mark.requirement("EVC-10", "ID-9")
def test_question_and_wait_are_one_append_and_the_turn_has_its_answer() -> None:
    pump = make_running()
    events = pump.receive(asks("Which one?"))
    types = [event.type for event in events]
    assert types.index("permission.evaluated") < types.index("action.required")
    assert types.index("action.required") < types.index("task.waiting")
    assert types[-3:] == ["turn.completed", "thread.updated", "snapshot.updated"]
    (action,) = pump.actions
    assert pump.record.open_actions == (action.request.action_id,)
    assert pump.record.status is Status.WAITING_INPUT
    assert action.scope.task_id == pump.record.task_id
    assert pump.thread.active_turns == ()


@pytest.mark.requirement("EVC-10")
def test_question_that_is_seen_again_is_not_asked_again() -> None:
    pump = make_running()
    pump.receive(asks("Which one?"))
    shown = len(pump.shown)
    waiting = cast("JsonObject", cast("JsonObject", asks("Which one?")["statusUpdate"])["status"])
    fresh = task("INPUT_REQUIRED")
    cast("JsonObject", fresh["task"])["status"] = waiting
    assert pump.receive(fresh) == []
    assert pump.receive(asks("Which one?")) == []
    assert len(pump.actions) == 1
    assert len(pump.shown) == shown


def test_next_question_of_the_same_pause_takes_the_place_of_the_first() -> None:
    pump = make_running()
    pump.receive(asks("Which one?"))
    pump.receive(asks("Or rather: which two?", at=6))
    first, second = pump.actions
    assert (first.state, first.superseded_by) == ("superseded", second.request.action_id)
    assert second.is_open
    assert pump.record.open_actions == (second.request.action_id,)


def test_peer_that_goes_on_alone_closes_its_question() -> None:
    pump = make_running()
    pump.receive(asks("Which one?"))
    pump.receive(status("WORKING", "never mind", at=6))
    (action,) = pump.actions
    assert action.state == "cancelled"
    assert pump.record.status is Status.RUNNING
    assert pump.record.open_actions == ()


def test_question_is_waited_for_again_when_the_peer_comes_back_to_it() -> None:
    pump = make_running()
    pump.receive(asks("Which one?"))
    pump.receive(status("SUBMITTED", at=5))
    between = pump.record
    pump.receive(asks("Which one?"))
    assert [between.status, pump.record.status] == ["queued", "waiting_input"]
    assert len(pump.actions) == 1


def test_peer_that_still_waits_while_its_answer_is_under_way_is_no_news() -> None:
    pump = make_running()
    pump.receive(asks("Which one?"))
    (action,) = pump.actions
    who = Principal("ada", kind="person", scopes=frozenset({AccessScope.DECIDE}))
    request = replace(action.request, owner=who.key, tenant=who.tenant)
    answer = AnswerAction(who, action.rev, request.digest, "dec_1", "reply", {"text": "the first"})
    for fact in approval.decide(replace(action, request=request), answer, pump.now_ms):
        pump.add(fact)
    assert pump.record.open_actions == ()
    assert pump.receive(asks("Which one?")) == []
    assert len(pump.actions) == 1


def test_peer_that_waits_again_without_a_word_asks_again() -> None:
    pump = make_running()
    pump.receive(status("INPUT_REQUIRED", at=4))
    assert pump.receive(status("INPUT_REQUIRED", at=4)) == []
    (action,) = pump.actions
    who = Principal("ada", kind="person", scopes=frozenset({AccessScope.DECIDE}))
    request = replace(action.request, owner=who.key, tenant=who.tenant)
    answer = AnswerAction(who, action.rev, request.digest, "dec_1", "reply", {"text": "the first"})
    for fact in approval.decide(replace(action, request=request), answer, pump.now_ms):
        pump.add(fact)
    pump.receive(status("INPUT_REQUIRED", at=6))
    assert len(pump.actions) == 2
    assert pump.record.status is Status.WAITING_INPUT


def test_typed_question_is_shown_in_the_gateways_form_without_the_agents_ids() -> None:
    pump = make_running()
    pump.receive(asks_permission())
    (action,) = pump.actions
    assert pump.record.status is Status.WAITING_PERMISSION
    assert [option.option_id for option in action.request.options] == ["yes", "no"]
    shown = str(pump.shown[-1])
    assert action.request.action_id in shown
    assert action.request.digest in shown
    assert "native-1" not in shown
    assert REMOTE not in shown


@pytest.mark.parametrize("end", ["COMPLETED", "FAILED", "CANCELED"])
def test_end_of_the_task_closes_what_was_asked(end: str) -> None:
    pump = make_running()
    pump.receive(asks("Which one?"))
    pump.receive(status(end, at=7))
    (action,) = pump.actions
    assert not action.is_open
    assert pump.record.open_actions == ()


def test_first_frame_may_be_the_question() -> None:
    pump = Pump()
    pump.receive(task("INPUT_REQUIRED"))
    assert pump.record.status is Status.WAITING_INPUT
    assert pump.record.shown
    assert len(pump.actions) == 1
