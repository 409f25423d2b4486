"""Which listed task is the sent one: found by history, by a key, or because it is the only one."""

from __future__ import annotations

from passerelle.a2a_mapping.extensions import CORRELATION
from passerelle.a2a_mapping.send_match import Sent, count_message, find_task
from passerelle.core.wire.json import JsonObject

OURS: JsonObject = {"messageId": "m-1", "role": "ROLE_USER", "parts": [{"text": "go"}]}


def task(name: str, *history: JsonObject) -> JsonObject:
    return {"id": name, "contextId": "rctx_1", "history": [*history]}


def test_task_with_the_message_in_its_history_is_found_among_several() -> None:
    found = find_task([task("new"), task("mine", OURS), task("old")], Sent(OURS, is_alone=False))
    assert found is not None
    assert (found.task["id"], found.rivals) == ("mine", 0)


def test_same_id_with_other_words_is_another_message() -> None:
    other: JsonObject = {**OURS, "parts": [{"text": "stop"}]}
    assert find_task([task("one", other), task("two")], Sent(OURS, is_alone=True)) is None


def test_answer_of_the_agent_with_our_id_is_no_match() -> None:
    said: JsonObject = {**OURS, "role": "ROLE_AGENT"}
    assert count_message([said], OURS) == 0


def test_newest_of_several_matches_is_used_and_the_others_are_counted() -> None:
    found = find_task([task("new", OURS), task("old", OURS)], Sent(OURS, is_alone=False))
    assert found is not None
    assert (found.task["id"], found.rivals) == ("new", 1)


def test_only_task_of_an_own_context_needs_no_history() -> None:
    assert find_task([task("one")], Sent(OURS, is_alone=True)) is not None
    assert find_task([task("one")], Sent(OURS, is_alone=False)) is None
    assert find_task([task("one"), task("two")], Sent(OURS, is_alone=True)) is None
    assert find_task([], Sent(OURS, is_alone=True)) is None


def test_correlation_key_distinguishes_two_tasks_with_the_same_message() -> None:
    keyed: JsonObject = {**OURS, "metadata": {CORRELATION: "k-2"}}
    other: JsonObject = {**OURS, "metadata": {CORRELATION: "k-1"}}
    found = find_task([task("one", other), task("two", keyed)], Sent(OURS, False, "k-2"))
    assert found is not None
    assert (found.task["id"], found.rivals) == ("two", 0)
