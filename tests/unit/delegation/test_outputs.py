"""What is redacted in text of agents, and what is never changed."""

from __future__ import annotations

from base64 import b64decode, b64encode, urlsafe_b64encode
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from passerelle.a2a_mapping.extensions import PERMISSION
from passerelle.core.wire.json import Json, JsonObject
from passerelle.delegation.runs.redaction import NO_REDACTION, Redaction
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
        (
            {"data": {"AKIA1234": ["AKIA1234"]}},
            {"data": {"[redacted: key]": ["[redacted: key]"]}},
        ),
        (
            {"metadata": {"AKIA1234": 1, "AKIA5678": 2, "[redacted: key] 2": 3}},
            {"metadata": {"[redacted: key]": 1, "[redacted: key] 3": 2, "[redacted: key] 2": 3}},
        ),
        (
            {"note": "AKIA1234", "x": [{"AKIA1234": 1}]},
            {"note": "[redacted: key]", "x": [{"[redacted: key]": 1}]},
        ),
        (
            {"raw": b64encode(b"AKIA1234").decode(), "mediaType": "text/plain"},
            {"raw": b64encode(b"[redacted: key]").decode(), "mediaType": "text/plain"},
        ),
        (
            {"raw": b64encode(b"\x89PNG AKIA1234").decode(), "mediaType": "image/png"},
            {"raw": b64encode(b"\x89PNG AKIA1234").decode(), "mediaType": "image/png"},
        ),
        (
            {"raw": "AKIA1234!", "mediaType": "text/plain"},
            {"raw": "AKIA1234!", "mediaType": "text/plain"},
        ),
        ({"metadata": {"a": {"b": "AKIA1234"}}}, {"metadata": {"a": {"b": "[redacted: key]"}}}),
        ({"taskId": "AKIA1234", "raw": "AKIA1234"}, {"taskId": "AKIA1234", "raw": "AKIA1234"}),
        ({"text": 3, "data": None}, {"text": 3, "data": None}),
    ],
)
def test_words_are_cleaned_and_ids_and_bytes_are_not(given: JsonObject, kept: JsonObject) -> None:
    assert RULES.clean({"message": {"parts": [given]}}) == {"message": {"parts": [kept]}}


QUESTION: JsonObject = {
    "action_id": "pay-AKIA1234",
    "rev": 1,
    "digest": "sha256:AKIA1234",
    "kind": "permission",
    "title": "Pay with AKIA1234",
    "subject": {"type": "tool_call", "name": "pay", "arguments": {"id": "AKIA1234"}},
    "options": [{"option_id": "AKIA1234", "name": "AKIA1234", "kind": "allow_once"}],
    "expires_at": "2026-11-29T00:00:00Z",
    "risk": "high",
}
UPDATES: list[tuple[str, JsonObject]] = [("task", {}), ("statusUpdate", {"taskId": "t-1"})]


@pytest.mark.requirement("EXT-10", "EVC-10")
@pytest.mark.parametrize(("form", "members"), UPDATES, ids=["a task", "an update"])
def test_what_an_answer_has_to_name_stays_in_a_question(form: str, members: JsonObject) -> None:
    """Otherwise a request that is to be approved would be read as a question in words."""
    rules = Redaction([("key", "AKIA[0-9]{4}"), ("day", r"\d{4}-\d\d-\d\d")])
    part: JsonObject = {"data": {PERMISSION: QUESTION, "action_id": "AKIA1234"}}
    message: JsonObject = {"messageId": "m-1", "parts": [{"text": "AKIA1234?"}, part]}
    status: JsonObject = {"state": "TASK_STATE_INPUT_REQUIRED", "message": message}
    text = str(rules.clean({form: {**members, "status": status}}))
    kept = (
        "'pay-AKIA1234'",
        "'sha256:AKIA1234'",
        "'option_id': 'AKIA1234'",
        "2026-11-29T00:00:00Z",
    )
    assert all(one in text for one in kept)
    for struck in ("title': 'Pay with ", "name': '", "text': '"):
        assert f"{struck}[redacted: key]" in text


def test_each_rule_is_counted_where_it_struck() -> None:
    clean = RULES.clean({"text": "AKIA1234, AKIA5678"})
    assert RULES.count(clean) == [("key", 2)]
    file: JsonObject = {"raw": b64encode(b"AKIA1234").decode(), "mediaType": "text/plain"}
    assert RULES.count(RULES.clean({"message": {"parts": [file]}})) == [("key", 1)]
    assert NO_REDACTION.count(clean) == []


def read_file(answer: JsonObject) -> bytes:
    """The file in the one part of a message."""
    parts = cast("list[JsonObject]", cast("JsonObject", answer["message"])["parts"])
    return b64decode(str(parts[0]["raw"]))


@pytest.mark.parametrize(
    ("media_type", "content", "cleaned"),
    [
        ("text/plain", b"AKIA1234", b"[redacted: key]"),
        ("application/octet-stream", b"AKIA1234", b"[redacted: key]"),
        ("", "ü AKIA1234".encode(), "ü [redacted: key]".encode()),
        ("Text/plain; charset=ISO-8859-1", b"\xfc AKIA1234", b"\xfc [redacted: key]"),
        ("application/JSON", b"\xff\0AKIA1234", b"\xff\0[redacted: key]"),
        ("image/png", b"\x89PNG AKIA1234", b"\x89PNG AKIA1234"),
        ("application/x-tar", b"AKIA1234\0", b"AKIA1234\0"),
    ],
)
def test_a_file_is_a_text_by_its_type_or_its_bytes(
    media_type: str, content: bytes, cleaned: bytes
) -> None:
    assert RULES.clean_file(content, media_type) == cleaned
    part: JsonObject = {"raw": b64encode(content).decode(), "mediaType": media_type}
    assert read_file(RULES.clean({"message": {"parts": [part]}})) == cleaned


@pytest.mark.parametrize("form", ["plain", "url-safe", "unpadded", "in lines"])
def test_a_file_is_cleaned_in_each_form_of_base64(form: str) -> None:
    content = b"???>>> AKIA1234 ?"
    raw = b64encode(content).decode()
    written = {
        "plain": raw,
        "url-safe": urlsafe_b64encode(content).decode(),
        "unpadded": raw.rstrip("="),
        "in lines": f"{raw[:8]}\n{raw[8:]}",
    }[form]
    cleaned = RULES.clean({"message": {"parts": [{"raw": written}]}})
    assert read_file(cleaned) == b"???>>> [redacted: key] ?"


def test_a_file_without_a_match_stays_as_it_was_written() -> None:
    part: JsonObject = {"raw": urlsafe_b64encode(b"???>>>??").decode().rstrip("=")}
    assert RULES.clean({"message": {"parts": [part]}}) == {"message": {"parts": [part]}}


@given(st.dictionaries(st.text(max_size=5), JSON))
def test_cleaning_twice_is_cleaning_once(answer: dict[str, Json]) -> None:
    once = RULES.clean(answer)
    assert RULES.clean(once) == once
    assert NO_REDACTION.clean(answer) is answer
