"""How agents ask and are answered: the permission extension, plain text, and what callers see."""

from __future__ import annotations

import re
import uuid
from dataclasses import replace
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from passerelle.a2a_mapping.dialects.display import escape_text, escape_value
from passerelle.a2a_mapping.dialects.pause import DecidedQuestion, derive_message_id, is_lossy
from passerelle.a2a_mapping.dialects.permission import choose_option
from passerelle.a2a_mapping.dialects.plain_text import NO_CONSENT
from passerelle.a2a_mapping.dialects.presentation import (
    list_request_parts,
    read_decision,
    relabel_prompt,
    show_parts,
)
from passerelle.a2a_mapping.dialects.registry import detect, encode
from passerelle.a2a_mapping.extensions import PERMISSION
from passerelle.a2a_mapping.identity import make_relabel
from passerelle.core.approval.prompt import PeerAnswer
from passerelle.core.errors import InvalidInput
from passerelle.core.payloads.approval import ApprovalRequest, Option, OptionKind, Origin
from passerelle.core.wire.json import Json, JsonObject
from tests.unit.a2a_mapping.samples import combine

OPTIONS: list[Json] = [
    {"option_id": "yes", "name": "Allow", "kind": "allow_once"},
    {"option_id": "ever", "name": "Always", "kind": "allow_always"},
    {"option_id": "no", "name": "Reject", "kind": "reject_once"},
]
FORM: JsonObject = {
    "action_id": "pay-1",
    "rev": 2,
    "digest": "sha256:ab",
    "kind": "permission",
    "title": "Pay 40 EUR",
    "subject": {"type": "tool_call", "name": "pay", "amount": 40},
    "options": OPTIONS,
    "expires_at": "1970-01-01T00:00:02Z",
    "risk": "high",
}


def _task(
    *parts: JsonObject, state: str = "TASK_STATE_INPUT_REQUIRED", message_id: str = "m1"
) -> JsonObject:
    message: JsonObject = {"messageId": message_id, "role": "ROLE_AGENT", "parts": list(parts)}
    status: JsonObject = {"state": state, "message": message}
    return {"id": "RT", "contextId": "RC", "status": status}


def _ask(form: JsonObject, text: str = "May I?") -> JsonObject:
    return _task({"text": text}, {"data": {PERMISSION: form}})


def _parts(message: JsonObject | None) -> list[JsonObject]:
    assert message is not None
    return cast("list[JsonObject]", message["parts"])


def test_a_typed_question_is_read_whole() -> None:
    (prompt,) = detect("payments", _ask(FORM))
    assert (prompt.dialect, prompt.kind, prompt.action_type) == (
        "permission",
        "permission",
        "tool_call",
    )
    assert prompt.options == (
        Option("yes", "Allow", "allow_once"),
        Option("ever", "Always", "allow_always"),
        Option("no", "Reject", "reject_once"),
    )
    assert (prompt.native_status, prompt.message_id) == ("TASK_STATE_INPUT_REQUIRED", "m1")
    assert prompt.text == "Pay 40 EUR\nMay I?"
    assert prompt.subject == FORM["subject"]
    assert (prompt.risk, prompt.expires_ms, prompt.lossy) == ("high", 2000, False)


def test_a_question_that_went_through_protobuf_is_the_same_question() -> None:
    floats = combine(
        FORM, {"rev": 2.0, "subject": {"type": "tool_call", "name": "pay", "amount": 40.0}}
    )
    (sent,), (seen,) = detect("p", _ask(FORM)), detect("p", _ask(floats))
    assert seen == sent
    assert repr(seen.subject) == repr(FORM["subject"])


@pytest.mark.parametrize(
    "state", ["TASK_STATE_WORKING", "TASK_STATE_COMPLETED", "TASK_STATE_UNSPECIFIED", "x"]
)
def test_a_task_that_does_not_wait_asks_nothing(state: str) -> None:
    assert detect("p", _task({"data": {PERMISSION: FORM}}, state=state)) == []


@pytest.mark.requirement("A2A-9")
@pytest.mark.parametrize(
    "broken",
    [
        {"action_id": ""},
        {"action_id": "a b"},
        {"rev": "2"},
        {"rev": True},
        {"rev": 2.5},
        {"rev": 1e30},
        {"rev": -1e300},
        {"rev": 2**64},
        {"digest": None},
        {"kind": "favour"},
        {"options": []},
        {"options": [{"option_id": "x", "name": "X", "kind": "maybe"}]},
        {"options": [{"name": "X", "kind": "allow_once"}]},
        {"options": [OPTIONS[0], OPTIONS[0]]},
    ],
)
def test_a_question_that_is_not_well_formed_can_only_be_replied_to(broken: JsonObject) -> None:
    (prompt,) = detect("p", _ask(combine(FORM, broken)))
    assert (prompt.dialect, prompt.kind) == ("plain_text", "input")
    assert [option.kind for option in prompt.options] == ["answer", "cancel"]


def test_plain_text_offers_no_approval() -> None:
    (prompt,) = detect("p", _task({"text": "Do you approve?"}))
    assert (prompt.kind, prompt.action_type, prompt.text) == (
        "input",
        "free_input",
        "Do you approve?",
    )
    assert not [option for option in prompt.options if option.kind.startswith("allow")]


def test_words_that_wait_for_authorization_are_a_matter_of_credentials() -> None:
    (prompt,) = detect("p", _task({"text": "log in"}, state="TASK_STATE_AUTH_REQUIRED"))
    assert (prompt.kind, prompt.action_type) == ("auth", "credential")


def test_a_pause_without_any_message_still_asks() -> None:
    task: JsonObject = {"id": "RT", "status": {"state": "TASK_STATE_INPUT_REQUIRED"}}
    (prompt,) = detect("p", task)
    assert (prompt.text, prompt.message_id) == (None, None)
    assert detect("p", task)[0].occurrence == prompt.occurrence


@pytest.mark.parametrize("number", [1, 2**70])
def test_a_message_without_an_id_is_known_by_its_content(number: int) -> None:
    part: JsonObject = {"data": {"n": number}}
    (one,) = detect("p", _task(part, message_id=""))
    (same,) = detect("p", _task(part, message_id=""))
    (other,) = detect("p", _task(part, part, message_id=""))
    assert one.occurrence == same.occurrence != other.occurrence


def test_one_question_has_one_key_wherever_it_is_seen() -> None:
    (first,) = detect("p", _ask(FORM))
    (again,) = detect("p", combine(_ask(FORM, text="other words"), {"history": [{}]}))
    assert first.occurrence == again.occurrence
    assert re.fullmatch(r"[0-9a-f]{64}", first.occurrence)


@pytest.mark.parametrize(
    "other",
    [
        ("q", _ask(FORM)),
        ("p", combine(_ask(FORM), {"id": "RT2"})),
        ("p", _ask(combine(FORM, {"action_id": "pay-2"}))),
        ("p", _ask(combine(FORM, {"rev": 3}))),
        ("p", _task({"text": "May I?"})),
    ],
)
def test_another_question_has_another_key(other: tuple[str, JsonObject]) -> None:
    (first,) = detect("p", _ask(FORM))
    (second,) = detect(*other)
    assert first.occurrence != second.occurrence


def test_a_new_message_is_a_new_question_in_words() -> None:
    one = detect("p", _task({"text": "which?"}))
    two = detect("p", _task({"text": "which?"}, message_id="m2"))
    assert one[0].occurrence != two[0].occurrence


def test_several_questions_in_one_pause_are_answered_by_one_message() -> None:
    second = combine(FORM, {"action_id": "pay-2"})
    task = _task({"data": {PERMISSION: FORM}}, {"data": {PERMISSION: second}})
    first_prompt, second_prompt = detect("p", task)
    message = encode(
        [
            DecidedQuestion(first_prompt, PeerAnswer(allowed=True, option_id="yes"), "dec_1"),
            DecidedQuestion(second_prompt, PeerAnswer(allowed=False, option_id="no"), "dec_2"),
        ],
        "RT",
        "RC",
    )
    forms = [cast("JsonObject", part["data"])[PERMISSION] for part in _parts(message)]
    answers = [cast("JsonObject", form) for form in forms]
    assert [(form["action_id"], form["option_id"]) for form in answers] == [
        ("pay-1", "yes"),
        ("pay-2", "no"),
    ]


def test_one_bad_question_in_a_group_makes_all_of_them_words() -> None:
    bad = combine(FORM, {"rev": None})
    task = _task({"data": {PERMISSION: FORM}}, {"data": {PERMISSION: bad}})
    assert [prompt.dialect for prompt in detect("p", task)] == ["plain_text"]


def test_an_answer_names_exactly_what_was_asked() -> None:
    (prompt,) = detect("p", _ask(FORM))
    message = encode(
        [DecidedQuestion(prompt, PeerAnswer(allowed=True, option_id="yes", text="go"), "dec_1")],
        "RT",
        "RC",
    )
    assert message == {
        "messageId": derive_message_id(["dec_1"]),
        "role": "ROLE_USER",
        "taskId": "RT",
        "contextId": "RC",
        "parts": [
            {
                "data": {
                    PERMISSION: {
                        "action_id": "pay-1",
                        "rev": 2,
                        "digest": "sha256:ab",
                        "decision_id": "dec_1",
                        "option_id": "yes",
                        "comment": "go",
                    }
                }
            }
        ],
        "extensions": [PERMISSION],
    }


def test_content_goes_along_with_a_yes_only() -> None:
    (prompt,) = detect("p", _ask(FORM))
    for allowed in (True, False):
        answer = PeerAnswer(allowed=allowed, content={"n": 1})
        (part,) = _parts(encode([DecidedQuestion(prompt, answer, "dec_1")], "RT", ""))
        form = cast("JsonObject", cast("JsonObject", part["data"])[PERMISSION])
        assert ("content" in form) == allowed


def _options(*kinds: OptionKind) -> tuple[Option, ...]:
    return tuple(Option(kind, kind, kind) for kind in kinds)


@pytest.mark.parametrize(
    ("options", "answer", "chosen"),
    [
        (_options("allow_once", "allow_always"), PeerAnswer(True, "allow_always"), "allow_once"),
        (_options("allow_always"), PeerAnswer(True, "allow_always"), "allow_always"),
        (_options("allow_once", "answer"), PeerAnswer(True, "answer"), "answer"),
        (_options("allow_once", "reject_once"), PeerAnswer(False, "gone"), "reject_once"),
        (_options("reject_always"), PeerAnswer(False), "reject_always"),
        (_options("allow_once"), PeerAnswer(False, "allow_once"), None),
        (_options("reject_once", "cancel"), PeerAnswer(True, "reject_once"), None),
    ],
)
def test_an_answer_chooses_the_narrowest_option_that_matches_it(
    options: tuple[Option, ...], answer: PeerAnswer, chosen: str | None
) -> None:
    option = choose_option(options, answer)
    assert (option.option_id if option else None) == chosen


def test_a_no_that_was_not_offered_cancels_the_task() -> None:
    (prompt,) = detect("p", _ask(combine(FORM, {"options": [OPTIONS[0]]})))
    assert encode([DecidedQuestion(prompt, PeerAnswer(allowed=False), "dec_1")], "RT", "RC") is None


def test_an_expired_question_is_answered_no_with_a_warning_not_to_work_around() -> None:
    expired = PeerAnswer(allowed=False, reason="timeout")
    (typed,) = detect("p", _ask(FORM))
    (part,) = _parts(encode([DecidedQuestion(typed, expired, "d")], "RT", "RC"))
    form = cast("JsonObject", cast("JsonObject", part["data"])[PERMISSION])
    assert (form["option_id"], form["comment"]) == ("no", NO_CONSENT)
    (words,) = detect("p", _task({"text": "which?"}))
    assert _parts(encode([DecidedQuestion(words, expired, "d")], "RT", "RC")) == [
        {"text": NO_CONSENT}
    ]


def test_words_are_answered_in_words() -> None:
    (prompt,) = detect("p", _task({"text": "which?"}))
    answer = PeerAnswer(allowed=True, option_id="reply", text="the blue one")
    message = encode([DecidedQuestion(prompt, answer, "dec_1")], "RT", "RC")
    assert _parts(message) == [{"text": "the blue one"}]


@pytest.mark.parametrize(
    "answer", [PeerAnswer(False, "cancel"), PeerAnswer(True, "cancel"), PeerAnswer(True, "reply")]
)
def test_cancel_and_silence_have_no_words(answer: PeerAnswer) -> None:
    (prompt,) = detect("p", _task({"text": "which?"}))
    assert encode([DecidedQuestion(prompt, answer, "dec_1")], "RT", "RC") is None


def test_the_message_id_is_a_uuid_made_of_the_decisions() -> None:
    one = derive_message_id(["dec_a", "dec_b"])
    assert uuid.UUID(one).version == 5
    assert uuid.UUID(one).variant == uuid.RFC_4122
    assert one == derive_message_id(["dec_b", "dec_a"]) != derive_message_id(["dec_a"])


@pytest.mark.parametrize("number", [2**53, -(2**53), 2.0**60, 2**70])
def test_lost_digits_take_the_allowing_options_away(number: float) -> None:
    subject: JsonObject = {"type": "network", "deep": [{"n": number}]}
    (prompt,) = detect("p", _ask(combine(FORM, {"subject": subject})))
    assert prompt.lossy
    assert prompt.action_type == "network"
    assert [option.kind for option in prompt.options] == ["reject_once"]


def test_ordinary_numbers_and_texts_are_not_lossy() -> None:
    assert not is_lossy({"a": [1, 2.5, 2**53 - 1, str(2**70), True, None]})


def test_a_subject_of_an_unknown_type_is_a_tool_call() -> None:
    (prompt,) = detect("p", _ask(combine(FORM, {"subject": {"type": "spell"}, "risk": "mild"})))
    assert (prompt.action_type, prompt.risk) == ("tool_call", None)


@pytest.mark.parametrize("expires_at", [None, "", "soon", "2026-01-01T00:00:00"])
def test_an_expiry_that_is_no_time_is_none(expires_at: Json) -> None:
    (prompt,) = detect("p", _ask(combine(FORM, {"expires_at": expires_at})))
    assert prompt.expires_ms is None


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain\nand\ttab", "plain\nand\ttab"),
        ("\x1b[31mred", "\\u{1b}[31mred"),
        ("a\u202eb", "a\\u{202e}b"),
        ("zero\u200bwidth", "zero\\u{200b}width"),
        ("line\u2028end", "line\\u{2028}end"),
        ("bell\x07\r", "bell\\u{7}\\u{d}"),
        ("\ud800", "\\u{d800}"),
        ("\U000e0041", "\\u{e0041}"),
        ("déjà 日本 😀", "déjà 日本 😀"),
    ],
)
def test_control_characters_are_escaped(text: str, shown: str) -> None:
    assert escape_text(text) == shown


@given(st.text())
def test_an_escaped_text_is_safe_and_stays_so(text: str) -> None:
    shown = escape_text(text)
    assert escape_text(shown) == shown
    shown.encode()


def test_cut_text_states_how_many_characters_are_missing() -> None:
    assert escape_text("abcdef", 4) == "abcd [2 more characters]"


def test_a_hostile_question_is_shown_escaped_everywhere() -> None:
    evil = "\u202e"
    hostile: JsonObject = {
        "title": evil,
        "subject": {evil: [evil]},
        "options": [{"option_id": "no", "name": f"{evil}\n", "kind": "reject_once"}],
    }
    form = combine(FORM, hostile)
    (prompt,) = detect("p", _ask(form, text=evil))
    assert evil not in f"{prompt.text}{prompt.subject}{prompt.options[0].name}"
    assert escape_value([1, None, True, 1.5, 2.0**60]) == [1, None, True, 1.5, 2.0**60]


REQUEST = ApprovalRequest(
    action_id="act_1",
    kind="permission",
    action_type="tool_call",
    title="payments wants to call pay",
    owner="pr_1",
    tenant="default",
    principal="owner",
    origin=Origin("outbound", "peer"),
    options=(Option("yes", "Allow", "allow_once"), Option("no", "Reject", "reject_once")),
    digest="sha256:cd",
    risk="high",
    on_timeout="reject",
    created_ms=0,
    expires_ms=2000,
    policy_version="1",
    evaluation_id="ev_1",
    peer_message="May I?",
)


@pytest.mark.requirement("A2A-12")
def test_a_question_that_is_shown_names_our_task_and_is_answered_with_the_peers() -> None:
    remote = "0b9c-remote-task"
    options: list[Json] = [{"option_id": remote, "name": f"Pay {remote}", "kind": "allow_once"}]
    changes: JsonObject = {"action_id": remote, "subject": {"task": remote}, "options": options}
    (prompt,) = detect("p", _ask(combine(FORM, changes), text=f"for {remote}"))
    shown = relabel_prompt(prompt, make_relabel("task_here", "ctx_here", {remote: "task_here"}))
    assert (shown.subject, shown.text) == ({"task": "task_here"}, "Pay 40 EUR\nfor task_here")
    assert shown.options == (Option(remote, "Pay task_here", "allow_once"),)
    assert (shown.native_id, shown.occurrence) == (prompt.native_id, prompt.occurrence)
    words = detect("p", {"id": "RT", "status": {"state": "TASK_STATE_INPUT_REQUIRED"}})[0]
    assert relabel_prompt(words, make_relabel("t", "c", {remote: "t"})) == words


def test_a_caller_sees_our_question_and_never_the_peers_ids() -> None:
    parts = list_request_parts(REQUEST, rev=1)
    own: JsonObject = {"messageId": "msg_1", "role": "ROLE_AGENT", "parts": []}
    frame = show_parts({"statusUpdate": _ask(FORM)}, parts, None, own)
    status = cast("JsonObject", cast("JsonObject", frame["statusUpdate"])["status"])
    shown = cast("JsonObject", status["message"])["parts"]
    assert shown == parts
    assert "pay-1" not in repr(frame)
    assert show_parts({"task": _ask(FORM)}, parts, None, own)["task"]
    assert show_parts({"message": {}}, parts, None, own) == {"message": {}}
    silent: JsonObject = {"statusUpdate": {"status": {"state": "TASK_STATE_INPUT_REQUIRED"}}}
    update = cast("JsonObject", show_parts(silent, parts, None, own)["statusUpdate"])
    assert cast("JsonObject", update["status"])["message"] == {**own, "parts": parts}


def test_our_question_can_be_detected_by_a_gateway_in_front() -> None:
    parts = cast("list[JsonObject]", list_request_parts(REQUEST, rev=1))
    (prompt,) = detect("gateway", _task(*parts, state="TASK_STATE_AUTH_REQUIRED"))
    assert (prompt.dialect, prompt.native_id) == ("permission", "act_1 1 sha256:cd")
    message = encode([DecidedQuestion(prompt, PeerAnswer(True, "yes"), "dec_9")], "RT", "RC")
    assert message is not None
    answer = read_decision(message)
    assert answer is not None
    assert (answer.action_id, answer.rev, answer.digest) == ("act_1", 1, "sha256:cd")
    assert (answer.option_id, answer.decision_id, answer.comment) == ("yes", "dec_9", None)


def test_words_of_a_caller_are_no_decision() -> None:
    assert read_decision({"parts": [{"text": "yes, approved"}, {"data": {"rev": 1}}]}) is None
    silent = list_request_parts(REQUEST, rev=1)[0]
    assert silent == {"text": "payments wants to call pay\n\nThe agent says:\nMay I?"}
    quiet = list_request_parts(replace(REQUEST, peer_message=None), rev=1)[0]
    assert quiet == {"text": "payments wants to call pay"}


@pytest.mark.parametrize(
    ("broken", "field"),
    [
        ({"rev": "1"}, "rev"),
        ({"action_id": None}, "action_id"),
        ({"digest": 5}, "digest"),
        ({"decision_id": ""}, "decision_id"),
        ({"content": "x"}, "content"),
        ({"comment": 1}, "comment"),
    ],
)
def test_a_malformed_decision_is_refused_with_the_field_named(
    broken: JsonObject, field: str
) -> None:
    form: JsonObject = {"action_id": "a", "rev": 1.0, "digest": "d", "decision_id": "x"}
    with pytest.raises(InvalidInput) as caught:
        read_decision({"parts": [{"data": {PERMISSION: combine(form, broken)}}]})
    assert caught.value.field == f"message.parts[0].data.{PERMISSION}.{field}"


def test_two_decisions_in_one_message_are_refused() -> None:
    part: JsonObject = {"data": {PERMISSION: {"rev": 1}}}
    with pytest.raises(InvalidInput):
        read_decision({"parts": [part, part]})
