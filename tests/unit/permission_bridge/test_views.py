"""The form of a question, the same for every edge."""

import orjson
import pytest

from passerelle.core.approval.commands import BeginReturn, FailReturn, FinishReturn, SupersedeAction
from passerelle.core.errors import InvalidInput
from passerelle.permission_bridge.views import compute_digest, render_decision, render_view
from tests.support.approvals import HOUR_MS, NOW_MS, PAUSE, SCOPE, Stream, make_answer, make_id


@pytest.mark.requirement("CHN-8")
def test_an_open_question_shows_everything_that_an_answer_needs() -> None:
    stream = Stream()
    view = render_view(stream.open())
    assert (view["actionId"], view["rev"], view["state"]) == (make_id("act"), 1, "pending")
    assert view["options"] == [
        {"optionId": "allow", "name": "Allow", "kind": "allow_once"},
        {"optionId": "reject", "name": "Reject", "kind": "reject_once"},
    ]
    assert view["expiresAt"] == "2027-01-15T09:00:00.000Z"
    assert stream.now.request.expires_ms == NOW_MS + HOUR_MS
    assert (view["taskId"], view["runId"]) == (SCOPE.task_id, SCOPE.run_id)
    assert "decision" not in view
    assert None not in view.values()


@pytest.mark.requirement("CHN-8", "I7")
def test_a_closed_question_names_its_decider() -> None:
    stream = Stream()
    stream.open()
    stream.tell(make_answer(stream.now, comment="go"))
    view = render_view(stream.now)
    assert (view["rev"], view["state"], view["returnState"]) == (2, "allowed", "owed")
    assert view["delivery"] == "pending"
    assert stream.now.decision is not None
    assert view["decision"] == render_decision(stream.now.decision)
    assert render_decision(stream.now.decision) == {
        "decisionId": make_id("dec"),
        "outcome": "allowed",
        "optionId": "allow",
        "cause": "human",
        "source": "answer",
        "decidedBy": "ada",
        "decidedKind": "person",
        "deviceName": "phone",
        "decidedAt": "2027-01-15T08:00:00.000Z",
        "comment": "go",
        "assurance": ["bearer"],
    }


def test_return_state_is_also_shown_as_delivery() -> None:
    stream = Stream()
    stream.open()
    seen = [(render_view(stream.now)["returnState"], render_view(stream.now)["delivery"])]
    for command in (make_answer(stream.now), BeginReturn(), FinishReturn("TASK_STATE_WORKING")):
        stream.tell(command)
        view = render_view(stream.now)
        seen.append((view["returnState"], view["delivery"]))
    assert seen == [
        ("none", "none"),
        ("owed", "pending"),
        ("returning", "delivering"),
        ("returned", "delivered"),
    ]


def test_an_undeliverable_answer_shows_it() -> None:
    stream = Stream()
    stream.open()
    for command in (make_answer(stream.now), BeginReturn(), FailReturn("stale")):
        stream.tell(command)
    view = render_view(stream.now)
    assert (view["returnState"], view["returnAttempts"], view["returnError"]) == (
        "undeliverable",
        1,
        "stale",
    )


def test_a_superseded_question_names_its_successor() -> None:
    stream = Stream()
    stream.open()
    stream.tell(SupersedeAction(make_id("act", 2)))
    assert render_view(stream.now)["supersededBy"] == make_id("act", 2)


def test_ids_of_the_peer_stay_inside() -> None:
    view = orjson.dumps(render_view(Stream().open())).decode()
    assert PAUSE.native_id is not None
    assert PAUSE.native_id not in view
    assert '"m1"' not in view


def test_an_absent_member_counts_as_null() -> None:
    assert compute_digest({"actionId": "a"}) == compute_digest({"actionId": "a", "peer": None})
    assert compute_digest({"actionId": "a"}) != compute_digest({"actionId": "b"})


def test_a_number_that_readers_disagree_about_has_no_digest() -> None:
    with pytest.raises(InvalidInput):
        compute_digest({"subject": {"n": 2**53 + 1}})
