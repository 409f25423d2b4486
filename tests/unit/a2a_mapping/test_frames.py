"""Frames that the gateway creates itself."""

from __future__ import annotations

import pytest
from a2a.types.a2a_pb2 import ListTasksResponse, StreamResponse
from google.protobuf.json_format import ParseDict

from passerelle.a2a_mapping.frames import (
    STATUS_NOTE,
    artifact_frame,
    make_message,
    make_status,
    note_status,
    remark_frame,
    render_page,
    show_state,
    status_frame,
    task_frame,
)
from passerelle.a2a_mapping.states import FAILED, WORKING
from passerelle.core.wire.json import JsonObject

IDS = ("task_here", "ctx_here")
TIME = "2026-01-01T00:00:00.000Z"
MESSAGE = make_message("m", *IDS, [{"text": "wait"}], {"a": 1})
STATUS = make_status(WORKING, TIME, MESSAGE)


@pytest.mark.parametrize(
    "frame",
    [
        task_frame({"id": "task_here", "contextId": "ctx_here", "status": STATUS}),
        status_frame(*IDS, STATUS, note_status("waiting_resource", resource="worker")),
        status_frame(*IDS, make_status(FAILED, TIME)),
        artifact_frame(
            *IDS, {"artifactId": "a", "parts": [{"text": "x"}]}, append=True, last=False
        ),
        {"message": make_message("m", *IDS, [])},
    ],
)
def test_our_frames_fit_the_closed_schema_of_the_sdk(frame: JsonObject) -> None:
    assert ParseDict(frame, StreamResponse(), ignore_unknown_fields=False).WhichOneof("payload")


def test_a_note_of_the_gateway_is_in_the_metadata_only() -> None:
    note = note_status("lost", peer="echo")
    assert note == {STATUS_NOTE: {"reason": "lost", "peer": "echo"}}


def test_a_frame_can_show_another_state() -> None:
    shown = show_state(status_frame(*IDS, STATUS), FAILED)
    assert shown == status_frame(*IDS, {**STATUS, "state": FAILED})
    task: JsonObject = {"id": "task_here", "status": STATUS}
    assert show_state(task_frame(task), FAILED) == task_frame(
        {"id": "task_here", "status": {**STATUS, "state": FAILED}}
    )
    assert STATUS["state"] == WORKING


def test_a_frame_without_a_status_shows_none() -> None:
    frame = artifact_frame(*IDS, {"artifactId": "a", "parts": []})
    assert show_state(frame, FAILED) == frame


def test_an_empty_page_has_all_four_members() -> None:
    page = render_page([], 50, 0)
    assert page == {"tasks": [], "nextPageToken": "", "pageSize": 50, "totalSize": 0}
    ParseDict(page, ListTasksResponse(), ignore_unknown_fields=False)


@pytest.mark.requirement("LT-9")
def test_a_message_after_a_task_becomes_its_status_message() -> None:
    message: JsonObject = {"messageId": "m", "parts": [], "contextId": "ctx_here"}
    assert remark_frame("task_here", "ctx_here", message, "TASK_STATE_WORKING") == {
        "statusUpdate": {
            "taskId": "task_here",
            "contextId": "ctx_here",
            "status": {
                "state": "TASK_STATE_WORKING",
                "message": {
                    "messageId": "m",
                    "parts": [],
                    "taskId": "task_here",
                    "contextId": "ctx_here",
                },
            },
        }
    }
