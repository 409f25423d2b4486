"""The resume request of a subscriber, and the form of a mark (docs/protocol/resume.md)."""

from __future__ import annotations

import orjson
import pytest

from passerelle.a2a_mapping.extensions import RESUME
from passerelle.a2a_mapping.resume import (
    ResumeRequest,
    mark,
    mark_frame,
    read_resume_request,
    write_resumed,
)

ACTIVE = frozenset({RESUME})
NONE = frozenset[str]()


@pytest.mark.parametrize(
    ("headers", "query", "extensions", "wish"),
    [
        ({}, {}, ACTIVE, None),
        ({"last-event-id": "h"}, {}, NONE, None),
        ({"last-event-id": "h"}, {}, ACTIVE, ResumeRequest("h")),
        ({}, {"lastEventId": "q"}, NONE, ResumeRequest("q")),
        ({"last-event-id": "h"}, {"lastEventId": "q"}, NONE, ResumeRequest("h")),
        ({"last-event-id": ""}, {"lastEventId": ""}, ACTIVE, None),
        (
            {"last-event-id": "h", "a2a-stream-snapshot": " Always "},
            {},
            ACTIVE,
            ResumeRequest("h", snapshot=True),
        ),
        ({}, {"lastEventId": "q", "A2A-Stream-Snapshot": "always"}, NONE, ResumeRequest("q", True)),
        ({"a2a-stream-snapshot": "always"}, {}, ACTIVE, None),
        ({}, {"lastEventId": "q", "A2A-Stream-Snapshot": "gap"}, NONE, ResumeRequest("q")),
    ],
)
def test_r3_r4_r9_what_is_asked_for(
    headers: dict[str, str],
    query: dict[str, str],
    extensions: frozenset[str],
    wish: ResumeRequest | None,
) -> None:
    assert read_resume_request(headers, query, extensions) == wish


def test_r6_r7_how_a_cursor_was_answered_is_a_header() -> None:
    assert write_resumed(resumed=None) == {}
    assert write_resumed(resumed=True) == {"A2A-Stream-Resumed": "true"}
    assert write_resumed(resumed=False) == {"A2A-Stream-Resumed": "gap"}


@pytest.mark.parametrize("name", ["task", "statusUpdate", "artifactUpdate"])
def test_r11_mark_is_added_to_the_metadata_of_the_agent(name: str) -> None:
    frame = orjson.dumps({name: {"id": "t", "metadata": {"a": 9007199254740993}, "b": [1]}})
    marked = orjson.loads(mark_frame(frame, 7, "e.1.c"))
    said = {"generation": "7", "cursor": "e.1.c"}
    assert marked == {
        name: {"id": "t", "metadata": {"a": 9007199254740993, RESUME: said}, "b": [1]}
    }


def test_r11_message_stays_as_it_is_byte_for_byte() -> None:
    frame = b'{"message": {"messageId":"m"}}'
    assert mark_frame(frame, 0, "e.1.c") is frame


def test_the_mark_has_no_generation_if_none_was_counted() -> None:
    assert mark({}, 0, "e.1.c") == {"metadata": {RESUME: {"cursor": "e.1.c"}}}
