"""Which text of an agent may be shown: words, small numbers, fields and facade ids, but nothing that could be an id."""

from __future__ import annotations

import pytest

from passerelle.a2a_mapping.clean_text import CleanText, clean_text
from passerelle.a2a_mapping.identity import make_relabel

IDS = make_relabel("task_ours", "ctx_ours", {"remote-task": "task_ours", "c1": "ctx_ours"})


@pytest.mark.requirement("LT-10")
@pytest.mark.parametrize(
    "text",
    [
        "The amount must be positive",
        "message.parts[0].text: must not be empty (got 3 items, at most 2)",
        "pageSize is out of range: 1..100",
        "TaskNotFoundError (code -32001): it's read-only!",
        "Unsupported media type",
        "Unsupported content type(s): application/pdf. Supported: text/plain, image/*, audio/mp4",
        "application/vnd.ag2.tool-call+json; charset=x is not read by A2A agents",
        "Rate limit reached, try again in 20s; 10MB are 80% of it",
        "",
    ],
)
def test_ordinary_words_pass_as_they_are(text: str) -> None:
    assert clean_text(text, IDS) == CleanText(text, whole=True)


@pytest.mark.requirement("LT-10", "LT-13")
@pytest.mark.parametrize(
    "secret",
    [
        "2f1c0d3e-8c5b-4c0e-9d53-0a6d1f3f7b11",
        "abcdefab-cdef-abcd-efab-cdefabcdefab",
        "task_leak",
        "t-1",
        "job7",
        "QwErTyUi",
        "sess:leak",
        "http://10.0.0.7/a",
        "leak.example:8080",
        "10.0.0.7",
        "/srv/agent/main.py",
        "C:\\agent\\main.py",
        "user@leak",
        "ABCDEFGHJKMNPQRSTVWXYZ",
        "leak%20marker",
        "#leak",
        "läuft",
        "123456",
        "123456s",
        "20x",
        "application/2f1c0d3e",
        "image/registry/internal",
        "text/a-b-c-d-e-f-g-h",
        "build/plain",
        "/text/plain",
    ],
)
def test_a_possible_id_or_address_is_hidden_in_its_text(secret: str) -> None:
    for text in ("cannot find {} today", "Task '{}' is unknown.", "agent={}; see ({})"):
        cleaned = clean_text(text.replace("{}", secret), IDS)
        assert cleaned == CleanText(text.replace("{}", "…"), whole=False)
    for text in ("({})", "{}", "{}: {}"):
        assert clean_text(text.replace("{}", secret), IDS) == CleanText("", whole=False)


@pytest.mark.requirement("LT-10", "LT-13")
def test_known_ids_become_facade_ids_and_ids_that_the_caller_sent_are_kept() -> None:
    text = "Task remote-task in c1 has had m-17"
    cleaned = clean_text(text, IDS, own=["m-17"])
    assert cleaned.text == "Task task_ours in ctx_ours has had m-17"
    assert clean_text(text, IDS).text == "Task task_ours in ctx_ours has had …"
