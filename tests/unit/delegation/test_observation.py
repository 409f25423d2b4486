"""Frames of an agent, one by one: the meaning of each, what callers see of it, and what no frame can do."""

from __future__ import annotations

import hashlib
from typing import cast

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from passerelle.a2a_mapping.content import fold
from passerelle.a2a_mapping.extensions import STATE
from passerelle.a2a_mapping.states import PEER_STATES
from passerelle.core.chunks import in_chunks
from passerelle.core.events import Event
from passerelle.core.machine import write_snapshot
from passerelle.core.payloads.run import ArtifactChanged, RunStatus
from passerelle.core.payloads.runtime import WarningRaised
from passerelle.core.payloads.task import TaskCancelled
from passerelle.core.task.status import ENDED, Status
from passerelle.core.wire.json import Json, JsonObject
from tests.unit.delegation.pump import (
    CONTEXT,
    OURS,
    REMOTE,
    TASK,
    Pump,
    artifact,
    make_running,
    message,
    status,
    task,
)

ENDS = {
    "COMPLETED": Status.COMPLETED,
    "FAILED": Status.FAILED,
    "REJECTED": Status.FAILED,
    "CANCELED": Status.CANCELLED,
}
STATES = {
    "SUBMITTED": Status.QUEUED,
    "WORKING": Status.RUNNING,
    "INPUT_REQUIRED": Status.WAITING_INPUT,
    "AUTH_REQUIRED": Status.WAITING_RESOURCE,
    **ENDS,
    "DREAMING": Status.UNKNOWN,
    "UNSPECIFIED": Status.UNKNOWN,
}


def warnings_of(events: list[Event]) -> list[str]:
    return [e.fact.payload.code for e in events if isinstance(e.fact.payload, WarningRaised)]


def artifacts_of(events: list[Event]) -> list[ArtifactChanged]:
    return [e.fact.payload for e in events if isinstance(e.fact.payload, ArtifactChanged)]


def test_every_state_of_the_protocol_has_a_row_here() -> None:
    assert {state.removeprefix("TASK_STATE_") for state in PEER_STATES} < set(STATES)


@pytest.mark.requirement("A2A-7", "ST-20", "ST-21")
@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("first", [True, False], ids=["first frame", "later frame"])
def test_each_state_of_an_agent_has_a_status_and_is_kept(state: str, *, first: bool) -> None:
    pump = Pump() if first else make_running()
    pump.receive(task(state) if first else status(state, at=9))
    record = pump.record
    assert record.status is STATES[state]
    assert record.attempts[-1].native_status == f"TASK_STATE_{state}"
    assert record.shown
    shown = cast("JsonObject", pump.shown[-1]["task" if first else "statusUpdate"])
    known = STATES[state] is not Status.UNKNOWN
    seen = state if known else "SUBMITTED" if first else "WORKING"
    assert cast("JsonObject", shown["status"])["state"] == f"TASK_STATE_{seen}"
    assert shown.get("metadata") == (None if known else {STATE: {"known": False}})


@pytest.mark.requirement("A2A-1", "A2A-3", "A2A-12")
@pytest.mark.parametrize("state", STATES)
def test_first_task_is_shown_in_our_ids_and_kept_in_the_peers(state: str) -> None:
    pump = Pump()
    pump.receive(task(state))
    (frame,) = pump.shown
    shown = cast("JsonObject", frame["task"])
    assert (shown["id"], shown["contextId"]) == (TASK.id, "ctx_1")
    assert REMOTE not in str(pump.shown)
    assert pump.record.attempts[-1].remote_task_id == REMOTE
    assert pump.record.attempts[-1].remote_context_id == CONTEXT


def test_history_of_a_task_has_our_message_also_when_the_peer_keeps_none() -> None:
    pump = Pump()
    pump.receive(task("SUBMITTED"))
    (frame,) = pump.shown
    history = cast("list[JsonObject]", cast("JsonObject", frame["task"])["history"])
    assert [item["messageId"] for item in history] == [OURS["messageId"]]


@pytest.mark.requirement("EVC-14", "A2A-10")
@given(
    texts=st.lists(st.text(min_size=1, max_size=9), min_size=1, max_size=8),
    together=st.booleans(),
)
def test_chunks_are_one_artifact_with_the_hash_of_the_joined_parts(
    texts: list[str], *, together: bool
) -> None:
    pump = make_running()
    frames = [
        artifact(text, append=place > 0, last=place == len(texts) - 1)
        for place, text in enumerate(texts)
    ]
    events = pump.receive(*frames) if together else pump.receive_each(*frames)
    (changed,) = artifacts_of(events)
    whole = {
        "artifactId": "a-1",
        "name": "result",
        "parts": cast("Json", [{"text": text} for text in texts]),
    }
    assert changed.sha256 == hashlib.sha256(orjson.dumps(whole)).hexdigest()
    assert (changed.parts, changed.version) == (len(texts), 1)
    assert sum(event.type == "task.progress" for event in events) == len(texts) - 1


@pytest.mark.requirement("EVC-14")
def test_artifact_whose_last_chunk_is_never_marked_is_whole_at_the_end() -> None:
    pump = make_running()
    events = pump.receive_each(
        artifact("one", last=False),
        artifact("two", append=True, last=False),
        status("COMPLETED", at=5),
    )
    (changed,) = artifacts_of(events)
    assert changed.parts == 2
    assert pump.record.status is Status.COMPLETED


@pytest.mark.requirement("A2A-8")
def test_artifact_that_is_sent_again_keeps_its_id_and_its_version_unless_it_changed() -> None:
    pump = make_running()
    pump.receive_each(artifact("one"), artifact("two", name="a-2"))
    before = {one.name_at_peer: one.artifact_id for one in pump.record.artifacts}
    assert artifacts_of(pump.receive(artifact("one"))) == []
    (changed,) = artifacts_of(pump.receive(artifact("other")))
    assert (changed.artifact_id, changed.version) == (before["a-1"], 2)
    after = {one.name_at_peer: one.artifact_id for one in pump.record.artifacts}
    assert after == before


def test_append_to_what_was_never_opened_opens_it_with_a_warning() -> None:
    pump = make_running()
    events = pump.receive(artifact("out of the blue", append=True))
    assert warnings_of(events) == ["unopened_artifact"]
    assert len(artifacts_of(events)) == 1


@pytest.mark.requirement("A2A-12")
@pytest.mark.parametrize("other", ["nothing", TASK.id, "remote-task-2"])
@pytest.mark.parametrize("together", [True, False])
def test_updates_of_another_task_are_taken_as_of_this_one_and_noted_once(
    other: str, *, together: bool
) -> None:
    pump = make_running()
    foreign = [artifact("a"), artifact("b", name="a-2"), status("WORKING", at=7)]
    for frame in foreign:
        (update,) = frame.values()
        cast("JsonObject", update)["taskId"] = other
    events = pump.receive(*foreign) if together else pump.receive_each(*foreign)
    assert warnings_of(events) == ["foreign_task_id"]
    assert len(artifacts_of(events)) == 2
    assert all(other not in str(frame) or other == TASK.id for frame in pump.shown)


def test_updates_of_the_task_itself_record_no_warning() -> None:
    pump = make_running()
    events = pump.receive(artifact("a"), status("WORKING", at=7), task("COMPLETED"))
    assert warnings_of(events) == []


@pytest.mark.requirement("LT-1", "LT-6")
def test_bare_message_completes_the_turn_and_shows_no_task() -> None:
    pump = Pump()
    pump.receive(message("good day", taskId=REMOTE))
    assert (pump.record.status, pump.record.family) == (Status.COMPLETED, "message")
    assert not pump.record.shown
    (frame,) = pump.shown
    shown = cast("JsonObject", frame["message"])
    assert shown["contextId"] == "ctx_1"
    assert "taskId" not in shown
    assert pump.thread.active_turns == ()
    assert pump.context.answer == shown


@pytest.mark.requirement("LT-9", "A2A-9")
def test_message_after_a_task_is_a_warning_and_a_status_message() -> None:
    pump = make_running()
    events = pump.receive(message("by the way", taskId=REMOTE))
    assert warnings_of(events) == ["message_after_task"]
    update = cast("JsonObject", pump.shown[-1]["statusUpdate"])
    told = cast("JsonObject", update["status"])
    assert told["state"] == "TASK_STATE_WORKING"
    assert cast("JsonObject", told["message"])["taskId"] == TASK.id
    assert pump.record.status is Status.RUNNING
    assert artifacts_of(events) == []


MALFORMED: list[JsonObject] = [
    {},
    {"surprise": 1},
    {"task": {"id": ""}},
    {"task": 7},
    {"statusUpdate": {"taskId": REMOTE}},
    {"artifactUpdate": {"taskId": REMOTE, "artifact": {}}},
    {"task": {}, "message": {}},
    {"message": {"parts": "x"}},
]


@pytest.mark.requirement("EVC-19")
@pytest.mark.parametrize("frame", MALFORMED, ids=str)
def test_malformed_frame_is_one_warning_and_changes_nothing(frame: JsonObject) -> None:
    pump = make_running()
    before = pump.record
    events = pump.receive(frame)
    assert warnings_of(events) == ["malformed_frame"]
    assert len(events) == 1
    assert pump.record == before
    pump.receive(status("COMPLETED", at=5))
    assert pump.record.status is Status.COMPLETED


FRAMES = st.sampled_from(
    [
        *(status(state, "said", at=7) for state in STATES),
        *(task(state) for state in STATES),
        artifact("late"),
        artifact("later", append=True, last=False),
        message("late words"),
        *MALFORMED,
    ]
)


@pytest.mark.requirement("LT-12")
@pytest.mark.parametrize("end", ENDS)
@given(frames=st.lists(FRAMES, max_size=6))
def test_no_frame_after_the_end_changes_anything(end: str, frames: list[JsonObject]) -> None:
    pump = make_running()
    pump.receive(status(end, at=5))
    before, content, shown = pump.record, pump.context.content, len(pump.shown)
    events = pump.receive_each(*frames)
    assert pump.record == before
    assert pump.context.content == content
    assert len(pump.shown) == shown
    assert set(warnings_of(events)) <= {"late_frame", "malformed_frame"}
    assert len(events) == len(frames)


@given(frames=st.lists(FRAMES, max_size=14), together=st.booleans())
@pytest.mark.requirement("I4", "I5")
def test_any_frames_in_any_order_keep_the_record_and_what_callers_see_in_step(
    frames: list[JsonObject], *, together: bool
) -> None:
    pump = Pump()
    if together:
        for part in in_chunks(frames, 4):
            pump.receive(*part)
    else:
        pump.receive_each(*frames)
    record = pump.record
    assert len(write_snapshot(record)) < 16 * 1024
    if record.status is Status.COMPLETED:
        assert all(one.stored for one in record.artifacts)
        assert record.delivery
    assert record.status not in ENDED or pump.thread.active_turns == ()
    content: JsonObject | None = None
    for frame in pump.shown:
        content = fold(content, frame)
    assert _told(content) == _told(pump.context.content)


def _told(content: JsonObject | None) -> tuple[Json, Json]:
    return (None, None) if content is None else (content["status"], content.get("artifacts"))


def test_cancel_race_keeps_the_peers_word_and_its_artifacts_and_ends_cancelled() -> None:
    pump = make_running()
    pump.request_cancel()
    pump.receive_each(status("WORKING", "still at it", at=3), artifact("result"))
    assert pump.record.status is Status.CANCELLING
    events = pump.receive(status("COMPLETED", "done", at=5))
    record = pump.record
    assert record.status is Status.CANCELLED
    assert record.attempts[-1].native_status == "TASK_STATE_COMPLETED"
    assert len(record.artifacts) == 1
    (cancelled,) = [e.fact.payload for e in events if isinstance(e.fact.payload, TaskCancelled)]
    assert (cancelled.source, cancelled.native_status) == ("user", "TASK_STATE_COMPLETED")
    assert "TASK_STATE_CANCELED" in str(pump.shown[-1])
    assert pump.thread.active_turns == ()


@pytest.mark.parametrize("state", ["INPUT_REQUIRED", "AUTH_REQUIRED"])
def test_peer_that_asks_while_it_should_stop_opens_nothing(state: str) -> None:
    pump = make_running()
    pump.request_cancel()
    pump.receive(status(state, "may I?", at=4))
    assert pump.record.status is Status.CANCELLING
    assert pump.actions == []


@pytest.mark.requirement("A2A-4")
def test_context_that_the_agent_chose_instead_is_stored() -> None:
    pump = Pump()
    frame = task("SUBMITTED")
    cast("JsonObject", frame["task"])["contextId"] = "context-of-the-peer"
    pump.receive(frame)
    assert pump.record.attempts[-1].remote_context_id == "context-of-the-peer"
    assert pump.thread.remotes == {"echo": "context-of-the-peer"}
    assert "context-of-the-peer" not in str(pump.shown)


@pytest.mark.requirement("ID-7")
def test_five_frames_are_five_steps_in_order() -> None:
    pump = Pump()
    pump.receive_each(
        task("SUBMITTED"),
        status("WORKING", "one", at=2),
        artifact("two"),
        status("WORKING", "three", at=4),
        status("COMPLETED", at=5),
    )
    steps = [e.fact.scope.step_id for e in pump.events if e.fact.scope.step_id]
    assert len(dict.fromkeys(steps)) == 5
    assert steps == sorted(steps)
    assert {e.fact.scope.run_id for e in pump.events if e.fact.scope.step_id} == {
        pump.record.attempts[-1].run_id
    }


@pytest.mark.requirement("EVC-5")
def test_words_of_a_peer_are_status_and_no_artifact() -> None:
    pump = make_running()
    events = pump.receive(status("WORKING", "half way", at=3))
    said = [e.fact.payload for e in events if isinstance(e.fact.payload, RunStatus)]
    assert [one.text for one in said] == ["half way"]
    assert pump.record.progress.summary == "half way"
    assert pump.record.artifacts == ()


def test_task_response_without_a_change_records_nothing() -> None:
    pump = make_running()
    again = task("WORKING")
    cast("JsonObject", cast("JsonObject", again["task"])["status"])["timestamp"] = (
        "2026-01-01T00:00:01.000Z"
    )
    assert pump.receive(again) == []


@pytest.mark.requirement("A2A-8")
def test_whole_task_after_a_gap_brings_only_what_was_missed() -> None:
    pump = make_running()
    pump.receive(artifact("one", last=False))
    parts: Json = [{"text": "one"}, {"text": "two"}]
    whole: Json = [{"artifactId": "a-1", "name": "result", "parts": parts}]
    pump.receive(task("COMPLETED", artifacts=whole))
    pieces = [
        cast("JsonObject", cast("JsonObject", frame["artifactUpdate"])["artifact"])["parts"]
        for frame in pump.shown
        if "artifactUpdate" in frame
    ]
    assert pieces == [[{"text": "one"}], [{"text": "two"}]]
    assert pump.record.status is Status.COMPLETED


@pytest.mark.requirement("EVC-5", "PO-2")
def test_status_of_an_agent_has_title_detail_phase_checkpoints_and_metadata() -> None:
    pump = make_running()
    metadata: JsonObject = {
        "title": "Building",
        "detail": "linking the last module",
        "phase": "linking",
        "checkpoints": ["fetched", "compiled"],
        "eta": 12,
    }
    frame = status("WORKING", at=3)
    cast("JsonObject", frame["statusUpdate"])["metadata"] = metadata
    events = pump.receive(frame)
    (said,) = [e.fact.payload for e in events if isinstance(e.fact.payload, RunStatus)]
    assert (said.title, said.detail) == ("Building", "linking the last module")
    assert (said.phase, said.checkpoints) == ("linking", ("fetched", "compiled"))
    assert said.metadata == metadata
    assert pump.record.progress.phase == "linking"


@pytest.mark.requirement("EVC-5")
@pytest.mark.parametrize(
    "metadata",
    [
        {"title": 7, "detail": [], "phase": "\n", "checkpoints": "one"},
        {"title": "", "phase": "x" * 65, "checkpoints": [1, None]},
    ],
)
def test_unreadable_members_of_a_status_stay_in_its_metadata(metadata: JsonObject) -> None:
    pump = make_running()
    frame = status("WORKING", "half way", at=3)
    cast("JsonObject", frame["statusUpdate"])["metadata"] = metadata
    (said,) = [e.fact.payload for e in pump.receive(frame) if isinstance(e.fact.payload, RunStatus)]
    assert (said.title, said.detail, said.phase, said.checkpoints) == (None, None, None, None)
    assert (said.text, said.metadata) == ("half way", metadata)


@pytest.mark.requirement("EVC-5")
def test_large_metadata_is_kept_in_the_frame_only() -> None:
    pump = make_running()
    frame = status("WORKING", "half way", at=3)
    checkpoints: list[Json] = ["c" for _ in range(99)]
    long: JsonObject = {"title": "t" * 500, "log": "x" * 4_000, "checkpoints": checkpoints}
    cast("JsonObject", frame["statusUpdate"])["metadata"] = long
    (said,) = [e.fact.payload for e in pump.receive(frame) if isinstance(e.fact.payload, RunStatus)]
    assert (said.title, said.metadata) == ("t" * 200, None)
    assert len(said.checkpoints or ()) == 32
