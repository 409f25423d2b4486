"""Views: which events each reader sees, decided without decoding a payload."""

from __future__ import annotations

import orjson
import pytest

from passerelle.channels.views import (
    FullView,
    PlainView,
    TaskView,
    UnpairedView,
    View,
    is_dense,
    read_header,
    read_task,
    shows,
)
from passerelle.core.approval.paired_mark import mark_for_paired
from passerelle.core.events import EncodedEvent
from passerelle.core.ports.log import Entry
from tests.unit.channels.history import envelope


def make(kind: str, task: str | None) -> Entry:
    return Entry(1, "ev_1", kind, "00000000", envelope(1, "ev_1", kind, task))


@pytest.mark.parametrize(
    ("view", "shown"),
    [
        (FullView(), [True, True, True, True]),
        (PlainView(), [True, True, False, True]),
        (TaskView("task_x"), [True, False, False, False]),
    ],
)
def test_a_view_shows_its_events_and_no_others(view: View, shown: list[bool]) -> None:
    entries = [
        make("task.progress", "task_x"),
        make("task.progress", "task_y"),
        make("reasoning.delta", "task_x"),
        make("session.created", None),
    ]
    assert [shows(view, entry) for entry in entries] == shown
    assert is_dense(view) is isinstance(view, FullView)


def test_a_payload_is_not_looked_into() -> None:
    data = b'{"sequence":1,"toolCallId":"\\",\\"payload\\":\\"","taskId":"task_x","payload":{"taskId":"task_y" broken'
    assert read_task(data) == "task_x"
    assert read_header(b'{"sequence":1}') == {"sequence": 1}


def test_an_inbox_leaves_out_what_is_marked_for_paired_devices_and_takes_no_word_for_the_mark() -> (
    None
):
    said = b'{"eventId":"ev_1","type":"action.required","payload":{"devices":"paired","x":1}}'
    plain = EncodedEvent("ev_1", "action.required", said[1:])
    marked = mark_for_paired(plain)
    shown = {
        event.body: [shows(view, stored) for view in (UnpairedView(), FullView())]
        for event in (plain, marked)
        for stored in [Entry(7, "ev_1", event.type, "00000000", b'{"sequence":7,' + event.body)]
    }
    assert shown == {plain.body: [True, True], marked.body: [False, True]}
    assert orjson.loads(b'{"sequence":7,' + marked.body)["devices"] == "paired"
    assert not is_dense(UnpairedView())
