"""The inbox of a terminal: what each key does, and what it never does."""

import pytest

from passerelle.cli.watch.inbox import Act, Decide, Inbox, Quit
from passerelle.core.wire.json import JsonObject


def question(number: int = 1, risk: str = "medium", kind: str = "permission") -> JsonObject:
    options: list[JsonObject] = [
        {"optionId": "yes", "name": "Yes", "kind": "allow_once"},
        {"optionId": "no", "name": "No", "kind": "reject_once"},
    ]
    if kind == "input":
        options = [{"optionId": "answer", "name": "Reply", "kind": "answer"}]
    return {
        "actionId": f"act_{number}",
        "state": "pending",
        "risk": risk,
        "title": f"question {number}",
        "createdAt": f"2027-01-15T08:00:0{number}.000Z",
        "options": [*options],
    }


def make(*views: JsonObject) -> Inbox:
    inbox = Inbox()
    inbox.replace(views)
    return inbox


def press(inbox: Inbox, keys: str) -> Act | None:
    act = None
    for key in keys:
        act = inbox.press(key)
    return act


def test_an_approval_is_confirmed_and_names_the_shown_question() -> None:
    view = question()
    inbox = make(view)
    assert press(inbox, "a") is None
    assert inbox.is_open
    assert press(inbox, "y") == Decide(view, "yes")
    assert press(make(view), "an") is None
    assert press(make(view), "dy") == Decide(view, "no")


@pytest.mark.parametrize("risk", ["high", "critical"])
def test_at_high_risk_the_word_is_spelled_out(risk: str) -> None:
    view = question(risk=risk)
    assert press(make(view), "ay") is None
    assert press(make(view), "ay\r") is None
    assert press(make(view), "ayex\x7fs\r") == Decide(view, "yes")
    assert press(make(view), "dy") == Decide(view, "no")


def test_a_started_answer_is_dropped_when_its_question_closes() -> None:
    inbox = make(question(1), question(2))
    press(inbox, "a")
    inbox.close("act_1", {"outcome": "rejected", "decidedBy": "bob"})
    assert (inbox.selected, inbox.choice) == ("act_2", None)
    assert press(inbox, "y") is None
    assert list(inbox.notes) == ["rejected by bob: question 1"]


def test_while_an_answer_is_on_its_way_no_key_does_anything_to_its_question() -> None:
    inbox = make(question())
    press(inbox, "ay")
    assert press(inbox, "dy") is None
    inbox.put(question())
    assert press(inbox, "dy") is not None


def test_text_is_typed_and_an_empty_reply_is_not_sent() -> None:
    view = question(kind="input")
    assert press(make(view), "r\r") is None
    assert press(make(view), "rblue\r") == Decide(view, "answer", "blue")
    inbox = make(view)
    assert press(inbox, "a") is None
    assert list(inbox.notes) == ["this approval has no option to allow"]


def test_the_selection_moves_within_the_list_and_stays_with_its_question() -> None:
    inbox = make(question(2), question(3))
    inbox.press("down")
    assert inbox.selected == "act_3"
    inbox.press("j")
    assert inbox.selected == "act_3"
    inbox.put(question(1))
    assert inbox.selected == "act_3"
    inbox.press("k")
    inbox.press("up")
    assert inbox.selected == "act_1"


def test_a_question_that_is_not_pending_any_more_is_not_shown() -> None:
    inbox = make(question())
    inbox.put({**question(), "state": "expired"})
    assert inbox.list_all() == []
    assert press(inbox, "ay") is None
    assert press(inbox, "q") == Quit()
