"""The preview of content that is stored elsewhere."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from passerelle.a2a_mapping.long_task import PREVIEW_CHARS, preview_frame
from passerelle.core.wire.json import JsonObject
from tests.support.payloads import JSON

LONG = "word " * 100


def say(*parts: JsonObject) -> JsonObject:
    return {"status": {"message": {"parts": [*parts]}}}


@pytest.mark.requirement("PO-9")
@pytest.mark.parametrize(
    ("frame", "preview"),
    [
        ({"statusUpdate": say({"text": LONG})}, LONG[:PREVIEW_CHARS]),
        ({"task": say({"text": "done"})}, "done"),
        ({"task": {"artifacts": [{"parts": [{"text": "a report"}]}]}}, "a report"),
        ({"artifactUpdate": {"artifact": {"parts": [{"raw": "eA=="}, {"text": "x"}]}}}, "x"),
        ({"message": {"parts": [{"data": {"total": 3}}]}}, '{"total":3}'),
        ({"parts": [{"raw": "eHh4", "mediaType": "image/png"}]}, "image/png, 3 bytes"),
        ({"parts": [{"url": "https://a.example/f.pdf?key=secret"}]}, "https://a.example/f.pdf"),
        ({"statusUpdate": {}}, ""),
    ],
)
def test_preview_is_the_beginning_of_the_content(frame: JsonObject, preview: str) -> None:
    assert preview_frame(frame) == preview


@given(st.dictionaries(st.sampled_from(["status", "artifacts", "parts"]), JSON))
def test_preview_of_anything_is_short(frame: JsonObject) -> None:
    assert len(preview_frame({"task": frame})) <= PREVIEW_CHARS
