"""Long histories: the cost of a message does not depend on how many came before it."""

from __future__ import annotations

from functools import partial, reduce

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from passerelle.a2a_mapping import history as histories
from passerelle.a2a_mapping.content import fold
from passerelle.a2a_mapping.difference import list_differences
from passerelle.a2a_mapping.frames import status_frame
from passerelle.a2a_mapping.history import (
    MOST_BYTES,
    LongHistory,
    add_to_history,
    complete_history,
    count_left_out,
    list_history,
    merge_history,
    put_history,
    same_message,
)
from passerelle.a2a_mapping.long_task import measure_artifact
from passerelle.core.wire.json import Json, JsonObject
from tests.support.counting import count_calls
from tests.unit.a2a_mapping.samples import reply, say

ACCEPTED = [say("m-1"), say("m-2")]
OPEN: JsonObject = {"id": "t", "contextId": "c", "status": {"state": "TASK_STATE_SUBMITTED"}}


def make_update(number: int, message_id: str | None = None) -> JsonObject:
    message = reply(message_id or f"r-{number}", f"word {number}")
    return status_frame("t", "c", {"state": "TASK_STATE_WORKING", "message": message})


def take(task: JsonObject, frame: JsonObject) -> JsonObject:
    folded = fold(task, frame)
    assert folded is not None
    return complete_history(folded, ACCEPTED)


@pytest.mark.parametrize("message_id", [None, "always-the-same", ""])
def test_a_status_costs_the_same_after_a_hundred_and_after_two_thousand(
    message_id: str | None,
) -> None:
    counted: dict[int, int] = {}
    task = OPEN
    for number in range(2_001):
        frame = make_update(number, message_id)
        if number in {100, 2_000}:
            counted[number] = count_calls(partial(take, task, frame))
        task = take(task, frame)
    assert counted[2_000] < counted[100] * 1.2
    assert len(list_history(task)) == 2_000 + len(ACCEPTED)


def test_a_task_is_compared_message_by_message_and_not_each_with_all() -> None:
    def count(number: int) -> int:
        known = reduce(take, map(make_update, range(number)), OPEN)
        fresh: JsonObject = {**known, "history": list[Json](list_history(known))}
        assert list_differences(known, fresh) == []
        return count_calls(lambda: list_differences(known, fresh))

    assert count(1_600) < count(400) * 5


def _write(name: str, parts: list[Json]) -> JsonObject:
    return {"messageId": name, "parts": parts}


def _show(text: str) -> JsonObject:
    return {"text": text}


def _attach(number: Json) -> JsonObject:
    return {"data": {"n": [number]}}


_ids = st.sampled_from(["a", "b", ""])
_numbers = st.sampled_from([1, 1.0, 2, True, "", None])
_parts = st.lists(
    st.one_of(
        st.sampled_from(["", "x", "y"]).map(_show),
        _numbers.map(_attach),
    ),
    max_size=2,
)
_messages = st.builds(_write, _ids, _parts)


@given(st.lists(_messages, max_size=12), st.lists(_messages, max_size=12))
def test_a_long_history_finds_the_same_messages_as_a_full_scan(
    first: list[JsonObject], others: list[JsonObject]
) -> None:
    long, plain = LongHistory(first), list(first)
    for message in others:
        known = any(same_message(one, message) for one in plain)
        assert long.has(message) == known
        # Whatever grew from it besides is not in it.
        long.add({**message, "messageId": "elsewhere"})
        if not known:
            long, plain = long.add(message), [*plain, message]
        assert list(long) == plain


@given(st.lists(_messages, max_size=6), st.lists(_messages, min_size=1, max_size=4))
def test_completed_history_stays_complete_as_it_grows(
    native: list[JsonObject], accepted: list[JsonObject]
) -> None:
    merged = LongHistory(merge_history(native, accepted), accepted)
    grown = merged.add(say("later"))
    assert merged.is_complete(accepted)
    assert grown.is_complete(accepted)
    assert merge_history(grown, accepted) == grown
    assert not grown.is_complete([*accepted, say("later")])


_turns = st.builds(
    _write, st.sampled_from(["a", "b"]), st.sampled_from([[_show("x")], [_show("x"), _show("y")]])
)


@given(st.lists(st.tuples(st.booleans(), _turns), max_size=10))
def test_later_messages_of_callers_are_placed_as_if_all_were_placed_anew(
    steps: list[tuple[bool, JsonObject]],
) -> None:
    accepted = [say("m-1")]
    task = put_history(OPEN, LongHistory(accepted, [*accepted]))
    for is_accepted, message in steps:
        if is_accepted:
            accepted.append(message)
        else:
            task = put_history(task, add_to_history(list_history(task), message))
        placed = [one | {"taskId": "t", "contextId": "c"} for one in accepted]
        expected = merge_history(list_history(task), placed)
        task = complete_history(task, accepted)
        assert list_history(task) == expected


def test_history_that_was_completed_with_other_messages_is_completed_anew() -> None:
    task = put_history(OPEN, LongHistory([say("m-1")], [say("m-1")]))
    completed = complete_history(task, [say("m-2"), say("m-3")])
    assert [one["messageId"] for one in list_history(completed)] == ["m-1", "m-2", "m-3"]


def test_a_further_turn_costs_the_same_after_a_hundred_and_after_a_thousand() -> None:
    counted: dict[int, int] = {}
    task, accepted = OPEN, list[JsonObject]()

    def take_turn(number: int) -> JsonObject:
        folded = fold(task, make_update(number))
        assert folded is not None
        return complete_history(folded, accepted)

    for number in range(1_001):
        accepted.append(say(f"m-{number}"))
        if number in {100, 1_000}:
            counted[number] = count_calls(partial(take_turn, number))
        task = take_turn(number)
    assert counted[1_000] < counted[100] * 1.2
    assert len(list_history(task)) == 1_001 + 1_000


def test_two_that_grew_from_one_do_not_have_what_the_other_has() -> None:
    one = reduce(add_to_history, [say(f"m-{number}") for number in range(40)], list[JsonObject]())
    assert isinstance(one, LongHistory)
    left, right = add_to_history(one, say("left")), add_to_history(one, say("right"))
    assert len(one) == 40
    assert add_to_history(right, say("left")) == [*one, say("right"), say("left")]
    assert add_to_history(left, say("left")) is left
    assert orjson.loads(orjson.dumps(right)) == list(right)


def test_a_short_history_stays_a_plain_list() -> None:
    assert histories.sort([say("m")]) == [say("m")]
    assert type(add_to_history([say("m")], say("n"))) is list


def test_the_oldest_messages_of_an_agent_are_left_out_and_count_as_known() -> None:
    asked = say("asked")
    told = [reply(f"r-{number}", f"{number}" + "x" * 200_000) for number in range(60)]
    history = reduce(add_to_history, told, [asked])
    assert history[0] == asked, "what a caller said stays"
    kept = history[1:]
    assert kept == told[-len(kept) :], "the last ones, in their order"
    assert MOST_BYTES / 4 < sum(map(measure_artifact, kept)) <= MOST_BYTES
    assert add_to_history(history, told[0]) is history, "said again it is no news"
    known = put_history(OPEN, history)
    fresh: JsonObject = {**OPEN, "history": [asked, *told]}
    assert list_differences(known, fresh) == []
    assert count_left_out(known) == 60 - len(kept)
    assert count_left_out(complete_history(known, [asked, say("more")])) == 60 - len(kept)


def test_a_few_long_messages_are_bounded_as_many_short_ones_are() -> None:
    few = [reply(f"r-{number}", "x" * 3_000_000) for number in range(5)]
    history = reduce(add_to_history, few, list[JsonObject]())
    assert sum(map(measure_artifact, history)) <= MOST_BYTES
    assert history[-1] == few[-1]


def test_a_message_without_words_weighs_something_too() -> None:
    empty = (reply(f"r-{number}", "") for number in range(2 * MOST_BYTES // 512))
    history = reduce(add_to_history, empty, list[JsonObject]())
    assert len(history) <= MOST_BYTES // 512


def test_memory_of_left_out_messages_is_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(histories, "_MOST_LEFT_OUT", 10)
    told = [reply(f"r-{number}", "x" * 200_000) for number in range(60)]
    history = reduce(add_to_history, told, list[JsonObject]())
    assert isinstance(history, LongHistory)
    assert history.left_out == 10
    latest = told[-len(history) - 10]
    assert add_to_history(history, latest) is history, "the last of those that are left out"
    assert add_to_history(history, told[0]) is not history, "an older one is said anew"


@given(st.lists(st.integers(0, 3_000_000), max_size=20), st.integers(0, 20))
def test_messages_of_callers_do_not_change_which_replies_are_left_out(
    sizes: list[int], place: int
) -> None:
    told = [reply(f"r-{number}", "x" * size) for number, size in enumerate(sizes)]
    mixed = [*told[:place], say("asked"), *told[place:]]
    alone = reduce(add_to_history, told, list[JsonObject]())
    among = reduce(add_to_history, mixed, list[JsonObject]())
    assert [one for one in among if one != say("asked")] == list(alone)
