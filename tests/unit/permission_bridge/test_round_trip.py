"""From an agent's waiting task to the message that answers it: both dialects, with only the pure parts."""

import pytest

from passerelle.a2a_mapping.dialects.pause import DecidedQuestion
from passerelle.a2a_mapping.dialects.registry import detect, encode
from passerelle.a2a_mapping.extensions import PERMISSION
from passerelle.core.approval.commands import Expire
from passerelle.core.approval.prompt import PeerPrompt, read_answer
from passerelle.core.approval.record import ActionRecord
from passerelle.core.wire.json import Json, JsonObject
from passerelle.permission_bridge.cases import PeerAsks
from passerelle.permission_bridge.policy import PolicyFacts, evaluate
from passerelle.permission_bridge.requests import Asking, make_request
from tests.support.approvals import HOUR_MS, NOW_MS, OWNER, SCOPE, Stream, make_answer, make_id

FORM: JsonObject = {
    "action_id": "theirs-1",
    "rev": 3,
    "digest": "sha256:theirs",
    "kind": "permission",
    "title": "Pay 42",
    "subject": {"type": "tool_call", "name": "pay", "args": {"amount": 42.0}},
    "options": [
        {"option_id": "yes", "name": "Pay", "kind": "allow_once"},
        {"option_id": "no", "name": "Do not pay", "kind": "reject_once"},
    ],
}


def wait_with(*parts: Json) -> JsonObject:
    message: JsonObject = {"messageId": "m1", "role": "ROLE_AGENT", "parts": list(parts)}
    status: JsonObject = {"state": "TASK_STATE_INPUT_REQUIRED", "message": message}
    return {"id": "T", "contextId": "C", "status": status}


def ask(task: JsonObject) -> tuple[Stream, PeerPrompt]:
    [prompt] = detect("payments", task)
    asks = PeerAsks("payments", prompt.action_type, prompt.destructive, prompt.risk)
    evaluation = evaluate(asks, PolicyFacts(make_id("eval")), NOW_MS)
    asking = Asking(
        make_id("act"), OWNER.key, OWNER.tenant, OWNER.id, "payments", SCOPE, "sha256:card"
    )
    stream = Stream()
    stream.open(make_request(prompt, asking, evaluation, NOW_MS))
    return stream, prompt


def answer_peer(record: ActionRecord, prompt: PeerPrompt) -> JsonObject | None:
    assert record.decision is not None
    reply = DecidedQuestion(prompt, read_answer(record.decision), record.decision.decision_id)
    return encode([reply], "T", "C")


@pytest.mark.requirement("CMD-14")
@pytest.mark.parametrize("option", ["yes", "no"])
def test_a_typed_question_is_answered_with_the_option_that_was_chosen(option: str) -> None:
    stream, prompt = ask(wait_with({"data": {PERMISSION: FORM}}))
    stream.tell(make_answer(stream.now, option))
    assert stream.now.return_state == "owed"
    message = answer_peer(stream.now, prompt)
    assert message is not None
    [part] = message["parts"] if isinstance(message["parts"], list) else []
    assert part == {
        "data": {
            PERMISSION: {
                "action_id": "theirs-1",
                "rev": 3,
                "digest": "sha256:theirs",
                "decision_id": make_id("dec"),
                "option_id": option,
                "comment": None,
            }
        }
    }


def test_a_timeout_goes_back_as_a_no() -> None:
    stream, prompt = ask(wait_with({"data": {PERMISSION: FORM}}))
    stream.now_ms += HOUR_MS
    stream.tell(Expire())
    assert not stream.now.cancels_task
    message = answer_peer(stream.now, prompt)
    assert message is not None
    assert '"option_id": "no"' in str(message).replace("'", '"')


def test_words_are_answered_with_words() -> None:
    stream, prompt = ask(wait_with({"text": "Which account?"}))
    assert stream.now.request.peer_message == "Which account?"
    stream.tell(make_answer(stream.now, None, content={"text": "The second"}))
    message = answer_peer(stream.now, prompt)
    assert message is not None
    assert message["parts"] == [{"text": "The second"}]
    assert message["taskId"] == "T"


def test_cancel_in_place_of_an_answer_cancels_the_task() -> None:
    stream, prompt = ask(wait_with({"text": "Which account?"}))
    stream.tell(make_answer(stream.now, "cancel"))
    assert (stream.now.return_state, stream.now.cancels_task) == ("owed", True)
    assert answer_peer(stream.now, prompt) is None


def test_the_same_pause_seen_again_is_the_same_occurrence() -> None:
    task = wait_with({"data": {PERMISSION: FORM}})
    (first, _), (second, _) = ask(task), ask(task)
    assert first.now.request.remote == second.now.request.remote
