"""How a conversation through the gateway is compared: no row may allow a relevant difference."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.conversations.axes import find_case
from tests.conversations.compare import MOST_ROWS, compare, load_rows
from tests.conversations.play import Outcome, Record
from tests.conversations.tap import Received

CASE = find_case("sdk_1/streams/updates/forgets/words/text/unary/JSONRPC/1.0/first/stays")
NAMES = ("SendMessage", "SendMessage")


def _receive(operation: str, **members: object) -> Received:
    message = {"messageId": "c-direct-ask", "role": "ROLE_USER", "parts": [{"text": "hi"}]}
    return Received(operation, {"message": {**message, **members}}, {})


def _record(state: str = "COMPLETED", **changes: object) -> Record:
    said = [
        ("user", [{"text": "hi"}]),
        ("agent", [{"text": "which?"}]),
        ("user", [{"text": "blue"}]),
    ]
    made = Record(
        outcomes=[
            Outcome("ask", "INPUT_REQUIRED", [{"text": "which?"}], 0.1),
            Outcome("answer", state),
        ],
        end={"state": state, "words": [], "artifacts": []},
        history=list(said),
        received=[_receive(name) for name in NAMES],
        said=said,
    )
    return replace(made, **changes)  # type: ignore[arg-type]  # by name


def test_equal_conversations_are_equal() -> None:
    assert compare(CASE, _record(), _record()) == []


@pytest.mark.parametrize(
    "through",
    [
        _record("WORKING"),
        _record(outcomes=[Outcome("ask", "no answer in 6 s"), Outcome("answer", "COMPLETED")]),
        _record(history=_record().history[::-1]),
        _record(history=_record().history[:1] + _record().history[2:] + _record().history[1:2]),
        _record(received=[_receive("SendMessage")]),
        _record(received=[_receive("SendMessage"), _receive("SendStreamingMessage")]),
        _record(received=[_receive("SendMessage"), _receive("SendMessage", parts=[{"text": "x"}])]),
        _record(received=[_receive("SendMessage"), _receive("SendMessage", metadata={"more": 1})]),
    ],
    ids=["end", "answer", "order", "question last", "lost", "streamed", "parts", "metadata"],
)
def test_relevant_difference_is_never_allowed(through: Record) -> None:
    found = compare(CASE, _record(), through)
    assert found
    assert any(not one.row for one in found)


def test_slow_answer_is_different() -> None:
    slow = [replace(one, took_s=one.took_s + 1.5) for one in _record().outcomes]
    assert [one.row for one in compare(CASE, _record(), _record(outcomes=slow))] == ["", ""]


def test_history_that_the_agent_does_not_keep_is_in_the_table() -> None:
    forgetful = _record(history=_record().history[:1])
    assert [one.row for one in compare(CASE, forgetful, _record())] == ["kept"]


def test_table_is_short_and_every_row_has_its_reason() -> None:
    rows = load_rows()
    assert len(rows) <= MOST_ROWS
    assert all(
        row[name] for row in rows.values() for name in ("what", "direct", "through", "reason")
    )


def test_stream_that_breaks_off_through_the_gateway_is_never_allowed() -> None:
    assert [one.where for one in compare(CASE, _record(), _record(breaks=1))] == [
        "streams that broke off"
    ]
    assert compare(CASE, _record(breaks=1), _record()) == []


def _raise(said: str, state: str, words: list[dict[str, str]]) -> Record:
    answer = Outcome("answer", said, "the tool broke" if said.startswith("error") else [])
    end = {"state": state, "words": words, "artifacts": []}
    return _record(outcomes=[_record().outcomes[0], answer], end=end)


def test_task_that_is_left_at_work_after_an_internal_error_has_failed_with_its_words() -> None:
    failed = _raise("error INTERNAL", "FAILED", [{"text": "the tool broke"}])
    # The SDK of 1.0 fails its task without a message, that of 0.3 leaves it as it is.
    assert compare(CASE, _raise("error INTERNAL", "FAILED", []), failed) == []
    direct = _raise("error INTERNAL", "WORKING", [])
    assert compare(CASE, direct, failed) == []
    others: list[tuple[str, list[dict[str, str]]]] = [
        ("COMPLETED", failed.end["words"]),
        ("FAILED", []),
        ("WORKING", []),
    ]
    for state, words in others:
        assert any(
            not one.row for one in compare(CASE, direct, _raise("error INTERNAL", state, words))
        )
    # A refusal of anything else leaves a task as it was.
    other = _raise("error INVALID_PARAMS", "WORKING", [])
    assert any(not one.row for one in compare(CASE, other, failed))


@pytest.mark.parametrize(("caller", "rows"), [("immediately", ["waiting"]), ("unary", [""])])
def test_only_a_caller_that_does_not_wait_may_get_an_error_as_a_state(
    caller: str, rows: list[str]
) -> None:
    case = replace(CASE, caller=caller)
    words = [{"text": "the tool broke"}]
    direct, through = _raise("error INTERNAL", "FAILED", []), _raise("FAILED", "FAILED", words)
    assert [one.row for one in compare(case, direct, through)] == rows
    wrong = _raise("COMPLETED", "FAILED", words)
    assert [one.row for one in compare(case, direct, wrong)] == [""]
