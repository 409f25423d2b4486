"""Content of a peer arrives unchanged, however large or unusual; stored records stay small."""

from __future__ import annotations

import base64
import hashlib
from typing import Final

import orjson
import pytest

from passerelle.core.wire.json import Json
from passerelle.demo.processes import GatewayProcess
from passerelle.runtime.records.blob_overflow import CAP
from tests.support.processes import Caller, read_entries, read_stored
from tests.support.scripted_behaviours import BIG_ARTIFACT_CHARS, BIG_STATUS_CHARS
from tests.support.scripted_peer import ScriptedPeer
from tests.support.scripted_tasks import Turn

ENVELOPE: Final = 2_048
"""Space for the ids around a payload of maximum size."""

pytestmark = pytest.mark.anyio


@pytest.mark.requirement("ID-16")
async def test_unknown_media_type_arrives_byte_for_byte(caller: Caller, peer: ScriptedPeer) -> None:
    content = bytes(range(256)) * 40
    parts: list[Json] = [
        {
            "raw": base64.b64encode(content).decode(),
            "mediaType": "application/x-nobody.knows+this;v=7",
            "filename": "ünïcode.bin",
        },
        {"data": {"count": 2**53 + 1, "deep": [None, {"x": 1.5}]}, "ofALaterVersion": ["kept"]},
    ]

    async def script(turn: Turn) -> None:
        (await turn.open()).artifact(parts)
        await turn.status("COMPLETED")

    peer.next(script, script)
    task = await caller.send("something strange")
    assert task["artifacts"][0]["parts"] == parts
    assert base64.b64decode(task["artifacts"][0]["parts"][0]["raw"]) == content
    frames = await caller.stream("something strange")
    (update,) = [frame["artifactUpdate"] for frame in frames if "artifactUpdate" in frame]
    assert update["artifact"]["parts"] == parts


@pytest.mark.requirement("ID-11")
async def test_large_artifact_is_kept_by_reference_and_hash_and_can_be_fetched(
    gateway: GatewayProcess, caller: Caller
) -> None:
    task = await caller.send("big")
    record = await caller.read_record(task["id"])
    assert len(orjson.dumps(record)) < CAP
    (ref,) = record["artifacts"]
    assert ref["size"] > BIG_ARTIFACT_CHARS
    fetched = (await caller.get_task(task["id"]))["artifacts"][0]
    assert fetched["parts"] == [{"text": "x" * BIG_ARTIFACT_CHARS}]
    assert hashlib.sha256(orjson.dumps(fetched)).hexdigest() == ref["sha256"]
    events = read_stored(gateway, record["sessionId"])
    (changed,) = [event for event in events if event["type"] == "artifact.changed"]
    assert changed["payload"]["sha256"] == ref["sha256"]
    assert changed["refs"]["artifact"]["blob"] == ref["sha256"]
    assert max(map(len, read_entries(gateway, record["sessionId"]))) <= CAP + ENVELOPE


@pytest.mark.requirement("ENV-11")
async def test_status_message_of_five_megabytes_leaves_one_reference_in_the_stream(
    gateway: GatewayProcess, caller: Caller
) -> None:
    frames = await caller.stream("big-status")
    said = [
        frame["statusUpdate"]["status"]["message"]["parts"][0]["text"]
        for frame in frames
        if "message" in frame.get("statusUpdate", {}).get("status", {})
    ]
    assert [len(text) for text in said] == [BIG_STATUS_CHARS]
    record = await caller.read_record(frames[0]["task"]["id"])
    assert max(map(len, read_entries(gateway, record["sessionId"]))) <= CAP + ENVELOPE
    events = read_stored(gateway, record["sessionId"])
    (spilled,) = [event for event in events if event["type"] == "output.spilled"]
    assert spilled["payload"]["size"] > BIG_STATUS_CHARS
    assert spilled["refs"]["output"]["blob"] == spilled["payload"]["sha256"]
    assert len(spilled["refs"]["output"]["preview"]) <= 200
