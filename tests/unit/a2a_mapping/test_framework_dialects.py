"""How frameworks ask and are answered: recorded forms in both directions, and answers that are never allowed."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from passerelle.a2a_mapping.dialects.pause import DecidedQuestion, derive_message_id
from passerelle.a2a_mapping.dialects.registry import DIALECTS, detect, encode
from passerelle.core.approval.prompt import PeerAnswer, PeerPrompt
from passerelle.core.wire.json import Json, JsonObject

VECTORS: Final = cast(
    "list[JsonObject]",
    json.loads((Path(__file__).parents[2] / "vectors" / "dialects.json").read_text("utf-8")),
)
ANSWERS: Final = {
    "yes": PeerAnswer(allowed=True, option_id="approve"),
    "no": PeerAnswer(allowed=False, reason="human"),
    "words": PeerAnswer(allowed=True, option_id="reply", text="blue", content={"text": "blue"}),
}
CASES: Final = [
    pytest.param(vector, id=f"{vector['dialect']}: {vector['says']}") for vector in VECTORS
]


def task_of(vector: JsonObject) -> JsonObject:
    return cast("JsonObject", vector["task"])


def show(prompt: PeerPrompt) -> JsonObject:
    shown: JsonObject = {
        "kind": prompt.kind,
        "nativeId": prompt.native_id,
        "options": [option.option_id for option in prompt.options],
    }
    if prompt.text:
        shown["text"] = prompt.text
    if prompt.kind == "permission" and prompt.subject:
        shown |= {"tool": prompt.subject["name"], "arguments": prompt.subject["arguments"]}
    return shown


def answer(prompts: list[PeerPrompt], given: PeerAnswer) -> JsonObject | None:
    replies = [
        DecidedQuestion(prompt, given, f"dec_{place}") for place, prompt in enumerate(prompts)
    ]
    return encode(replies, "T", "C")


def test_each_dialect_is_recorded() -> None:
    assert {str(vector["dialect"]) for vector in VECTORS} == {
        dialect.name for dialect in DIALECTS if dialect.name != "permission"
    }


@pytest.mark.parametrize("vector", CASES)
def test_question_is_read_as_recorded(vector: JsonObject) -> None:
    prompts = detect("peer", task_of(vector))
    assert {prompt.dialect for prompt in prompts} == {str(vector["dialect"])}
    assert [show(prompt) for prompt in prompts] == vector["asks"]


@pytest.mark.parametrize("vector", CASES)
def test_answer_is_written_as_recorded(vector: JsonObject) -> None:
    prompts = detect("peer", task_of(vector))
    for name, given_answer in ANSWERS.items():
        if name not in vector:
            continue
        message = answer(prompts, given_answer)
        if message is None:
            assert vector[name] is None
            continue
        ids = [f"dec_{place}" for place in range(len(prompts))]
        assert message.pop("messageId") == derive_message_id(ids)
        assert message.pop("role") == "ROLE_USER"
        assert message == vector[name]


@pytest.mark.parametrize("vector", CASES)
def test_the_same_question_is_one_occurrence_at_every_sight(vector: JsonObject) -> None:
    first = [prompt.occurrence for prompt in detect("peer", task_of(vector))]
    again = [prompt.occurrence for prompt in detect("peer", json.loads(json.dumps(vector["task"])))]
    elsewhere = [prompt.occurrence for prompt in detect("other", task_of(vector))]
    assert first == again
    assert len(set(first)) == len(first)
    assert not set(first) & set(elsewhere)


@pytest.mark.parametrize("vector", CASES)
def test_a_no_never_reads_as_a_yes(vector: JsonObject) -> None:
    """Literal booleans: the text "false" is true to some frameworks."""
    prompts = detect("peer", task_of(vector))
    message = json.dumps(answer(prompts, ANSWERS["no"]))
    for name in ("confirmed", "approved"):
        assert f'"{name}": true' not in message
    for yes in ('"decision": "approve"', '"response": "y"', '"approve"'):
        assert yes not in message
    assert '"false"' not in message


json_values = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["id", "name", "args", "interrupts", "value", "action_requests"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(st.sampled_from(VECTORS), st.data())
def test_half_a_form_raises_nothing_and_asks_something(
    vector: JsonObject, data: st.DataObject
) -> None:
    """Whatever a waiting peer shows, there is a question, if only in words."""
    broken: JsonObject = json.loads(json.dumps(vector["task"]))
    places: list[Callable[[Json], None]] = []

    def walk(value: Json) -> None:
        if isinstance(value, dict):
            for name, member in value.items():
                places.append(partial(value.__setitem__, name))
                walk(member)
        elif isinstance(value, list):
            for index, item in enumerate(value):
                places.append(partial(value.__setitem__, index))
                walk(item)

    walk(cast("JsonObject", broken["status"]).get("message"))
    walk(broken.get("artifacts"))
    if places:
        data.draw(st.sampled_from(places))(data.draw(json_values))
    prompts = detect("peer", broken)
    assert prompts
    for given_answer in ANSWERS.values():
        answer(prompts, given_answer)
