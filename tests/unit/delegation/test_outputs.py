"""What is redacted in text of agents, and what is never changed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from passerelle.core.wire.json import Json, JsonObject
from passerelle.delegation.runs.outputs import NO_REDACTION, Redaction
from tests.support.payloads import JSON

RULES = Redaction([("key", "AKIA[0-9]{4}"), ("mail", r"[a-z]+@example\.com")])


@pytest.mark.requirement("EXT-10")
@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (
            {"text": "AKIA1234 and ada@example.com"},
            {"text": "[redacted: key] and [redacted: mail]"},
        ),
        ({"data": {"AKIA1234": ["AKIA1234"]}}, {"data": {"AKIA1234": ["[redacted: key]"]}}),
        ({"metadata": {"a": {"b": "AKIA1234"}}}, {"metadata": {"a": {"b": "[redacted: key]"}}}),
        ({"taskId": "AKIA1234", "raw": "AKIA1234"}, {"taskId": "AKIA1234", "raw": "AKIA1234"}),
        ({"text": 3, "data": None}, {"text": 3, "data": None}),
    ],
)
def test_words_are_cleaned_and_ids_and_bytes_are_not(given: JsonObject, kept: JsonObject) -> None:
    assert RULES.clean({"message": {"parts": [given]}}) == {"message": {"parts": [kept]}}


def test_each_rule_is_counted_where_it_struck() -> None:
    clean = RULES.clean({"text": "AKIA1234, AKIA5678"})
    assert RULES.count(clean) == [("key", 2)]
    assert NO_REDACTION.count(clean) == []


@pytest.mark.parametrize(
    "media_type",
    [
        "text/plain",
        "application/json",
        "Text/plain; charset=UTF-8",
        " TEXT/html",
        "application/JSON",
    ],
)
def test_files_that_are_texts_are_cleaned_and_others_are_not(media_type: str) -> None:
    assert RULES.clean_file(b"AKIA1234", media_type) == b"[redacted: key]"
    assert RULES.clean_file(b"\xffAKIA1234", media_type) == b"\xffAKIA1234"
    assert RULES.clean_file(b"AKIA1234", "image/png") == b"AKIA1234"


@given(st.dictionaries(st.text(max_size=5), JSON))
def test_cleaning_twice_is_cleaning_once(answer: dict[str, Json]) -> None:
    once = RULES.clean(answer)
    assert RULES.clean(once) == once
    assert NO_REDACTION.clean(answer) is answer
