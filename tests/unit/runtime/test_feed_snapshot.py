"""What the end of a feed proves about the rows after an id: all of them, or nothing."""

from __future__ import annotations

import pytest

from passerelle.core.events import EncodedEvent
from passerelle.core.ids import Shard
from passerelle.core.ports.projections import FeedRow, FeedTail
from passerelle.runtime.records.feed_snapshot import FeedSnapshot, find_after


def see(*ids: str, is_whole: bool, event: EncodedEvent | None = None) -> FeedSnapshot:
    rows = tuple(FeedRow(one, "se_one", 1, 1, 0) for one in ids)
    events = (event,) if event else ()
    return FeedSnapshot(Shard(0), "se_one", 7, 7, events, {}, FeedTail(lambda: rows, is_whole))


@pytest.mark.parametrize(
    ("after", "size", "found"),
    [
        ("9-0", "part", ["10-0", "10-1"]),
        ("10-0", "part", ["10-1"]),
        ("10-1", "part", []),
        # Numbers, not text: "9" is not behind "10".
        ("8-9", "part", []),
        ("8-9", "whole", ["9-0", "10-0", "10-1"]),
        (None, "part", []),
        (None, "whole", ["9-0", "10-0", "10-1"]),
    ],
)
def test_rows_behind_an_id_are_all_of_them_or_none(
    after: str | None, size: str, found: list[str]
) -> None:
    snapshot = see("9-0", "10-0", "10-1", is_whole=size == "whole")
    assert [row.id for row in find_after([snapshot], after)] == found


def test_latest_look_that_reaches_back_far_enough_counts() -> None:
    early = see("1-0", "2-0", is_whole=True)
    late = see("2-0", "3-0", is_whole=False)
    assert [row.id for row in find_after([early, late], "2-0")] == ["3-0"]
    assert [row.id for row in find_after([early, late], "1-0")] == ["2-0"]


def test_entries_are_the_bytes_that_the_store_has() -> None:
    body = b'"type":"task.status","payload":{"frame":{"a":1}}}'
    event = EncodedEvent("ev_1", "task.status", body[:-9], b'{"a":1}', "task_1")
    [entry] = see("1-0", is_whole=True, event=event).list_entries()
    assert entry.data == b'{"sequence":7,' + body
    assert entry.frame is not None
    offset, length = entry.frame
    assert entry.data[offset : offset + length] == b'{"a":1}'
