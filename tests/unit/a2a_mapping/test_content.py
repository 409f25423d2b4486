"""Folding frames into a Task, and the history rule."""

from __future__ import annotations

from functools import reduce
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from passerelle.a2a_mapping.content import (
    find_warning,
    fold,
    leave_out_artifacts,
    make_remark,
    settle_status,
)
from passerelle.a2a_mapping.extensions import PERMISSION
from passerelle.a2a_mapping.frames import artifact_frame, note_status, status_frame
from passerelle.a2a_mapping.history import (
    complete_history,
    cut_history,
    merge_history,
    same_message,
)
from passerelle.a2a_mapping.members import as_list, objects_at
from passerelle.core.wire.json import Json, JsonObject
from tests.unit.a2a_mapping.samples import combine, reply, say

IDS = ("t", "c")
OPEN: JsonObject = {"id": "t", "contextId": "c", "status": {"state": "TASK_STATE_SUBMITTED"}}


def _text(text: str) -> JsonObject:
    return {"text": text}


def _piece(name: str, *texts: str, append: bool = False) -> JsonObject:
    parts: list[Json] = [_text(text) for text in texts]
    return artifact_frame(*IDS, {"artifactId": name, "parts": parts}, append=append)


def _piece_of(name: str, texts: list[str], append: bool) -> JsonObject:  # noqa: FBT001 - drawn
    return _piece(name, *texts, append=append)


def _status(state: str, message: JsonObject | None = None) -> JsonObject:
    status: JsonObject = {"state": state}
    return status_frame(*IDS, combine(status, {"message": message} if message else {}))


def _fold(*frames: JsonObject, task: JsonObject | None = OPEN) -> JsonObject:
    folded = reduce(fold, frames, task)
    assert folded is not None
    return folded


_chunks = st.lists(st.text(max_size=4), min_size=1, max_size=8)
_names = st.sampled_from(["a", "b"])
_TASK_FRAME: JsonObject = {"task": OPEN}
_MESSAGE_FRAME: JsonObject = {"message": say("m9")}
_frames = st.one_of(
    st.builds(_piece_of, _names, _chunks, st.booleans()),
    st.builds(
        _status,
        st.sampled_from(["TASK_STATE_WORKING", "TASK_STATE_COMPLETED"]),
        st.builds(reply, st.sampled_from(["m1", "m2"]), st.text(max_size=3)),
    ),
    st.sampled_from([_TASK_FRAME, _MESSAGE_FRAME]),
)


@given(st.lists(_frames, max_size=8), st.integers(0, 8))
def test_folding_in_two_goes_is_folding_in_one(frames: list[JsonObject], at: int) -> None:
    first = reduce(fold, frames[:at], None)
    assert reduce(fold, frames[at:], first) == reduce(fold, frames, None)


@pytest.mark.requirement("A2A-10")
@given(_chunks, st.lists(st.integers(0, 8), max_size=4))
def test_any_split_of_an_artifact_folds_to_the_whole(chunks: list[str], cuts: list[int]) -> None:
    edges = sorted({0, len(chunks), *(cut for cut in cuts if cut < len(chunks))})
    pieces = [chunks[low:high] for low, high in pairwise(edges)]
    frames = [_piece("a", *piece, append=index > 0) for index, piece in enumerate(pieces)]
    assert _fold(*frames) == _fold(_piece("a", *chunks))


@given(st.lists(_frames, max_size=6))
def test_folding_changes_no_frame_and_no_task(frames: list[JsonObject]) -> None:
    before = repr(frames)
    states: list[tuple[JsonObject | None, str]] = []
    task: JsonObject | None = None
    for frame in frames:
        states.append((task, repr(task)))
        task = fold(task, frame)
    assert repr(frames) == before
    assert all(repr(state) == text for state, text in states)


def test_a_message_makes_no_task() -> None:
    assert fold(None, {"message": say("m")}) is None


def test_an_update_before_its_task_opens_one() -> None:
    task = _fold(_piece("a", "x"), task=None)
    assert (task["id"], task["contextId"]) == IDS
    assert _fold(_status("TASK_STATE_WORKING"), task=None)["status"] == {
        "state": "TASK_STATE_WORKING"
    }


def test_an_artifact_that_is_sent_again_replaces_the_first() -> None:
    task = _fold(_piece("a", "x"), _piece("b", "y"), _piece("a", "z"))
    assert [artifact["parts"] for artifact in objects_at(task, "artifacts")] == [
        [_text("z")],
        [_text("y")],
    ]


def test_an_append_to_an_unknown_artifact_opens_it_with_a_warning() -> None:
    frame = _piece("a", "x", append=True)
    assert find_warning(OPEN, frame) is not None
    assert find_warning(None, frame) is not None
    assert _fold(frame)["artifacts"] == [{"artifactId": "a", "parts": [_text("x")]}]
    assert find_warning(_fold(frame), frame) is None
    assert find_warning(OPEN, _piece("a", "x")) is None


def test_metadata_of_events_is_gathered() -> None:
    first = status_frame(*IDS, {"state": "TASK_STATE_WORKING"}, {"a": 1, "b": 1})
    second = status_frame(*IDS, {"state": "TASK_STATE_WORKING"}, {"b": 2})
    assert _fold(first, second)["metadata"] == {"a": 1, "b": 2}


def test_note_of_a_status_goes_with_that_status() -> None:
    busy: JsonObject = {**note_status("agent_busy", peer="echo"), "a": 1}
    waits: JsonObject = {
        "statusUpdate": {"status": {"state": "TASK_STATE_WORKING"}, "metadata": busy}
    }
    done: JsonObject = {"statusUpdate": {"status": {"state": "TASK_STATE_COMPLETED"}}}
    assert _fold(waits)["metadata"] == busy
    assert _fold(waits, done)["metadata"] == {"a": 1}
    only: JsonObject = {
        "statusUpdate": {"status": {}, "metadata": note_status("agent_busy", peer="echo")}
    }
    assert "metadata" not in _fold(only, done)


def test_metadata_of_appended_pieces_is_gathered() -> None:
    piece: JsonObject = {"artifactId": "a", "parts": [], "metadata": {"n": 1}}
    task = _fold(_piece("a", "x"), artifact_frame(*IDS, piece, append=True))
    assert objects_at(task, "artifacts")[0]["metadata"] == {"n": 1}


@pytest.mark.requirement("A2A-9")
def test_a_status_message_becomes_history_and_never_an_artifact() -> None:
    asked = reply("q", "which?")
    task = _fold(_status("TASK_STATE_INPUT_REQUIRED", asked), _status("TASK_STATE_WORKING"))
    assert task["history"] == [asked]
    assert "artifacts" not in task


def test_a_status_message_that_is_sent_twice_is_in_the_history_once() -> None:
    asked = reply("q", "which?")
    waiting = _status("TASK_STATE_INPUT_REQUIRED", asked)
    assert "history" not in _fold(waiting, waiting)
    task = _fold(waiting, _status("TASK_STATE_WORKING"), waiting, _status("TASK_STATE_WORKING"))
    assert task["history"] == [asked]


def test_a_task_frame_replaces_but_loses_no_artifact_and_no_history() -> None:
    known = combine(_fold(_piece("a", "x"), _piece("b", "y")), {"history": [say("m")]})
    fresh: JsonObject = {**OPEN, "artifacts": [{"artifactId": "b", "parts": [_text("new")]}]}
    task = _fold({"task": fresh}, task=known)
    assert task["artifacts"] == [
        {"artifactId": "a", "parts": [_text("x")]},
        {"artifactId": "b", "parts": [_text("new")]},
    ]
    assert task["history"] == [say("m")]


def test_artifacts_can_be_left_out() -> None:
    assert leave_out_artifacts(_fold(_piece("a", "x"))) == OPEN


def test_a_message_that_an_agent_dropped_is_merged_before_the_next_one_it_kept() -> None:
    first, second, third = (say(f"m{number}") for number in (1, 2, 3))
    answer = reply("a", "yes")
    assert merge_history([first, answer, third], [first, second, third]) == [
        first,
        answer,
        second,
        third,
    ]
    assert merge_history([first, answer], [first, second]) == [first, answer, second]
    assert merge_history([answer], [first, second]) == [answer, first, second]
    assert merge_history([], [first, second]) == [first, second]


def test_one_id_with_other_words_is_another_message() -> None:
    first, again = say("m", "one"), say("m", "two")
    assert merge_history([first], [first, again]) == [first, again]
    assert merge_history([first], [first, first]) == [first, first]


def test_a_shortened_copy_of_an_agent_gives_way_to_the_whole_message() -> None:
    # As LangGraph keeps the text of a message alone, and the last one of several.
    whole: JsonObject = {**say("m", "one"), "parts": [_text("one"), {"data": {"a": 1}}, _text("2")]}
    texts: list[list[Json]] = [[_text("one")], [_text("2")], [{"data": {"a": 1}}, _text("2")]]
    for kept in texts:
        copy: JsonObject = {**say("m"), "parts": kept}
        assert merge_history([copy, reply("a", "yes")], [whole]) == [whole, reply("a", "yes")]
    for other in (say("m", "two"), {**say("m"), "parts": []}, say("n", "one"), reply("m", "one")):
        assert merge_history([other], [whole]) == [other, whole]


@pytest.mark.parametrize("further", [_text("Good morning"), _text("Good")])
def test_a_status_message_that_goes_on_is_one_message(further: JsonObject) -> None:
    begun: JsonObject = {"messageId": "m", "role": "ROLE_AGENT", "parts": [_text("Good")]}
    whole: JsonObject = {**begun, "parts": [further]}
    working = _status("TASK_STATE_WORKING", begun)
    assert "history" not in _fold(working, _status("TASK_STATE_COMPLETED", whole))
    others: list[JsonObject] = [{**whole, "messageId": "n"}, {**whole, "parts": [_text("Bad")]}]
    for other in others:
        assert _fold(working, _status("TASK_STATE_COMPLETED", other))["history"] == [begun]


def test_a_message_is_the_same_after_a_trip_through_protobuf() -> None:
    sent: JsonObject = {"messageId": "m", "parts": [{"data": {"n": 42}}], "metadata": {"a": 1}}
    back: JsonObject = {
        "messageId": "m",
        "taskId": "t",
        "parts": [{"data": {"n": 42.0}, "mediaType": ""}],
    }
    assert same_message(sent, back)
    assert not same_message(sent, {"messageId": "m", "parts": [{"data": {"n": 43}}]})


_messages = st.builds(say, st.sampled_from("xyz"), st.sampled_from("12"))


@given(st.lists(_messages, max_size=6), st.lists(_messages, max_size=6))
def test_the_history_has_all_of_the_peers_and_all_that_was_accepted(
    native: list[JsonObject], accepted: list[JsonObject]
) -> None:
    merged = merge_history(native, accepted)
    assert _is_within(native, merged)
    assert _is_within(accepted, merged)
    assert merge_history(merged, accepted) == merged


def _is_within(some: list[JsonObject], whole: list[JsonObject]) -> bool:
    rest = iter(whole)
    return all(any(item == other for other in rest) for item in some)


def test_a_history_gets_only_the_messages_that_it_lacks() -> None:
    assert complete_history(OPEN, []) == OPEN
    mine: JsonObject = {"taskId": "t", "contextId": "c"}
    assert complete_history(OPEN, [say("m")])["history"] == [say("m") | mine]
    whole: JsonObject = {**OPEN, "history": [say("m"), say("r")]}
    assert complete_history(whole, [say("m")]) == whole
    assert complete_history(whole, [say("r")]) == whole
    assert complete_history(whole, [say("r", "else")])["history"] == [
        say("m"),
        say("r"),
        say("r", "else") | mine,
    ]


@pytest.mark.parametrize("before", [[], [say("x")]])
def test_a_message_in_a_history_refers_to_the_tasks_that_its_caller_named(
    before: list[JsonObject],
) -> None:
    sent: JsonObject = {**say("m"), "referenceTaskIds": ["one", "two"]}
    partly: JsonObject = {**say("m"), "referenceTaskIds": ["one"]}
    for copy in (say("m"), partly, sent):
        task: JsonObject = {**OPEN, "history": as_list([*before, copy, say("r")])}
        assert complete_history(task, [sent])["history"] == [*before, sent, say("r")]
    task = {**OPEN, "history": as_list([*before, sent])}
    assert complete_history(task, [say("m")])["history"] == [*before, say("m")]


@pytest.mark.parametrize(
    ("length", "cap", "kept"),
    [(None, None, 3), (None, 2, 2), (0, None, 0), (1, None, 1), (9, None, 3), (9, 2, 2), (1, 2, 1)],
)
def test_a_history_is_cut_from_its_end(length: int | None, cap: int | None, kept: int) -> None:
    history: list[Json] = [say(name) for name in "abc"]
    task = cut_history({**OPEN, "history": history}, length, cap)
    assert task.get("history", []) == history[3 - kept :]
    assert ("history" in task) == (kept > 0)


def test_a_question_in_the_history_is_not_added_again_in_the_gateways_form() -> None:
    native: JsonObject = {"messageId": "q1", "role": "ROLE_AGENT", "parts": [{"data": {"id": 1}}]}
    form: JsonObject = {
        "messageId": "q1",
        "role": "ROLE_AGENT",
        "parts": [{"data": {PERMISSION: {}}}],
    }
    asked: JsonObject = {
        "id": "T",
        "status": {"state": "TASK_STATE_INPUT_REQUIRED", "message": form},
        "history": [native],
    }
    assert settle_status(asked)["history"] == [native]
    assert settle_status({**asked, "history": []})["history"] == [form]
    other: JsonObject = {**form, "messageId": "q2"}
    status: JsonObject = {"state": "TASK_STATE_INPUT_REQUIRED", "message": other}
    assert settle_status({**asked, "status": status})["history"] == [native, other]


def test_a_remark_enters_the_history_without_the_question_that_followed_it() -> None:
    native: JsonObject = {"messageId": "q1", "role": "ROLE_AGENT", "parts": [{"data": {"id": 1}}]}
    asks: JsonObject = {"data": {PERMISSION: {}}}
    form: JsonObject = {**native, "parts": [asks], "metadata": {"own": 1}}
    own = make_remark("not sent")
    remark: JsonObject = {**form, "messageId": "remark-1", "parts": [own, asks]}
    waits = "TASK_STATE_INPUT_REQUIRED"

    def show(task: JsonObject, message: JsonObject) -> JsonObject:
        status: JsonObject = {"state": waits, "message": message}
        folded = fold(task, {"statusUpdate": {"taskId": "T", "contextId": "C", "status": status}})
        assert folded is not None
        return folded

    kept = {"messageId": "remark-1", "role": "ROLE_AGENT", "parts": [own]}
    for history, question in ([native], native), ([], form):
        task: JsonObject = {"id": "T", "history": as_list(history)}
        asked = show(task, form)
        assert settle_status(show(asked, remark))["history"] == [question, kept]
