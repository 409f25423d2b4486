"""Content over the cap of a fact: stored before the fact that names it, which stays small (ENV-11)."""

from __future__ import annotations

import hashlib
from typing import cast

import orjson
import pytest

from passerelle.core.events import FRAME, Fact, encode_event
from passerelle.core.facts import Scope
from passerelle.core.machine import write_snapshot
from passerelle.core.payloads.run import ArtifactChanged, OutputSpilled, RunStatus
from passerelle.core.wire.json import JsonObject
from passerelle.runtime.records.blob_overflow import CAP, BlobOverflow, hold, show
from tests.unit.delegation.pump import Pump, artifact, make_running, message, status, task

FACT = Fact(Scope("se_1", "th_1", "turn_1", "task_1", "run_1"), RunStatus(text="hi"))
LARGE = "x" * (CAP + 1)


def frame_of(size: int) -> JsonObject:
    """A frame of exactly this number of bytes."""
    empty = len(orjson.dumps({"statusUpdate": ""}))
    return {"statusUpdate": "y" * (size - empty)}


@pytest.mark.requirement("ENV-11")
def test_frame_at_the_cap_stays_and_one_byte_more_goes() -> None:
    spill = BlobOverflow()
    (kept,) = show(spill, FACT, frame_of(CAP), "task_1", "status")
    assert kept.frame is not None
    assert spill.blobs == []
    spilled, shown = show(spill, FACT, frame_of(CAP + 1), "task_1", "status")
    content = orjson.dumps(frame_of(CAP + 1))
    assert spill.blobs == [content]
    assert isinstance(spilled.payload, OutputSpilled)
    assert spilled.payload.sha256 == hashlib.sha256(content).hexdigest()
    assert spilled.refs["output"] == shown.refs[FRAME]
    assert (shown.frame, shown.facade) == (None, "task_1")
    assert len(shown.refs[FRAME].preview or "") <= 200


def test_message_of_a_caller_is_held_only_when_it_is_large() -> None:
    spill = BlobOverflow()
    assert hold(spill, {"parts": [{"text": "small"}]}) is None
    ref = hold(spill, {"parts": [{"text": LARGE}]})
    assert ref is not None
    assert ref.size == len(spill.blobs[0])


@pytest.mark.requirement("ENV-11", "ENV-10")
@pytest.mark.parametrize(
    "frame",
    [
        task("COMPLETED", artifacts=[{"artifactId": "a", "parts": [{"text": LARGE}]}]),
        status("COMPLETED", LARGE, at=5),
        artifact(LARGE),
        message(LARGE),
    ],
    ids=["task", "status", "artifact", "message"],
)
def test_no_event_of_a_large_frame_is_over_the_cap(frame: JsonObject) -> None:
    pump = Pump()
    events = pump.receive(frame)
    assert max(len(encode_event(event).body) for event in events) < CAP + 4096
    named = {ref.blob for event in events for ref in event.fact.refs.values()}
    stored = {hashlib.sha256(blob).hexdigest() for blob in pump.blobs}
    assert named == stored
    spilled = [e for e in events if isinstance(e.fact.payload, OutputSpilled)]
    assert len(spilled) == 1


@pytest.mark.requirement("ID-11")
def test_large_artifact_is_stored_by_itself_and_the_record_has_only_its_name() -> None:
    pump = make_running()
    events = pump.receive(artifact(LARGE))
    (changed,) = [e for e in events if isinstance(e.fact.payload, ArtifactChanged)]
    blob = next(
        blob
        for blob in pump.blobs
        if hashlib.sha256(blob).hexdigest() == changed.fact.refs["artifact"].blob
    )
    assert cast("JsonObject", orjson.loads(blob))["artifactId"] == "a-1"
    (kept,) = pump.record.artifacts
    assert kept.blob == changed.fact.refs["artifact"].blob
    assert LARGE.encode() not in write_snapshot(pump.record)


def test_snapshot_stays_small_whatever_a_run_sends() -> None:
    pump = make_running()
    for number in range(200):
        pump.receive(status("WORKING", f"{number} {LARGE}", at=number % 60))
    assert len(write_snapshot(pump.record)) < CAP
