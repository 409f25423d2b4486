"""Messages that refer to earlier tasks: what their agent is told, and what the new task remembers."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Final, cast

import pytest

from passerelle.a2a_mapping.extensions import REFERENCE
from passerelle.core.commands import GetRecord
from passerelle.core.events import decode_event
from passerelle.core.payloads.runtime import WarningRaised
from passerelle.core.ports.log import StreamKind, StreamRef
from passerelle.core.principal import OWNER, Principal
from passerelle.runtime.records.references import MAX_REFERENCES
from tests.integration.a2a.rig import Answer, Rig, run_rig
from tests.support.engine import Server
from tests.support.scripted_peer import ScriptedPeer

_OTHER: Final = Principal("other", OWNER.tenant, scopes=OWNER.scopes)

pytestmark = pytest.mark.anyio


async def ask_scribe(rig: Rig, *references: str) -> Answer:
    """The task of a message to the other agent."""
    params = rig.message("hello", referenceTaskIds=list(references))
    task: Answer = (await rig.call("SendMessage", params, agent="scribe"))["task"]
    return task


@pytest.mark.requirement("LT-10", "LT-13", "GR-3")
async def test_reference_reaches_the_same_agent_under_its_own_id(rig: Rig) -> None:
    first = await rig.send("hello")
    context = first["contextId"]
    second = await rig.send("again", contextId=context, referenceTaskIds=[first["id"]])
    sent = rig.peer.messages[1]
    assert sent["referenceTaskIds"] == ["echo-task-1"]
    assert sent["parts"] == [{"text": "again"}]
    assert first["id"] not in str(sent)
    assert (second["id"] != first["id"], second["contextId"]) == (True, context)
    record = cast("Answer", await rig.service.read(OWNER, GetRecord(second["id"])))
    edges = [edge for edge in record["relationships"] if edge["kind"] == "source_task"]
    assert [edge["target"] for edge in edges] == [first["id"]]
    assert await rig.call("GetTask", {"id": first["id"]}) == first


@pytest.mark.requirement("LT-10")
async def test_another_agent_gets_the_artifacts_and_no_id(
    engine_server: Server, tmp_path: Path
) -> None:
    async with (
        ScriptedPeer("scribe") as scribe,
        run_rig(engine_server, tmp_path / "blobs", others=[scribe]) as rig,
    ):
        first, big = await rig.send("hello"), await rig.send("big")
        done = await ask_scribe(rig, big["id"], first["id"])
        assert len(scribe.messages) == 1
        sent = cast("Answer", scribe.messages[0])
        own, *quoted = sent["parts"]
        assert own == {"text": "hello"}
        assert [part["text"] for part in quoted] == ["hello"]
        assert quoted[0]["metadata"][REFERENCE]["reference"] == 1
        assert "referenceTaskIds" not in sent
        assert not [known for known in (first["id"], "echo-task") if known in str(sent)]
        asked = [one for one in done["history"] if one["role"] == "ROLE_USER"]
        assert len(asked) == 1, "what went along does not make it another message"


@pytest.mark.requirement("LT-10", "LT-13", "ANS-6")
async def test_reference_to_no_task_of_the_caller_is_left_out_with_a_note(rig: Rig) -> None:
    mine = await rig.send("hello")
    looks: list[str] = []
    for name, header in (("nothing", "owner-token"), (mine["id"], "other-key")):
        params = rig.message("hello", referenceTaskIds=[name])
        answer = await rig.post("SendMessage", params, Authorization=f"Bearer {header}")
        task = cast("Answer", answer.json())["result"]["task"]
        looks.append(task["status"]["state"])
        sent = rig.peer.messages[-1]
        assert "referenceTaskIds" not in sent
        assert name not in str(sent)
        noted = await read_warnings(rig, task["id"], header)
        assert noted == [
            "the message refers to a task that is not known here; the agent is not told"
        ]
    assert looks == ["TASK_STATE_COMPLETED"] * 2
    assert rig.counted() == 3


async def read_warnings(rig: Rig, task_id: str, token: str) -> list[str]:
    """What the runtime noted on a task about its references."""
    principal = OWNER if token == "owner-token" else _OTHER
    record = cast("Answer", await rig.service.read(principal, GetRecord(task_id)))
    stream = StreamRef(StreamKind.SESSION, record["sessionId"])
    entries = await rig.parts.writes.log.read_page(stream, 0)
    payloads = [decode_event(entry.data).fact.payload for entry in entries]
    return [
        one.message
        for one in payloads
        if isinstance(one, WarningRaised) and one.code == "reference_unknown"
    ]


async def test_message_with_too_many_references_is_refused(rig: Rig) -> None:
    names: list[str] = [f"task-{number}" for number in range(MAX_REFERENCES + 1)]
    error = await rig.refuse("SendMessage", rig.message("hello", referenceTaskIds=[*names]))
    assert error["code"] == -32602
    assert rig.counted() == 0


@pytest.mark.requirement("GR-8")
async def test_what_goes_along_is_consumed_here_and_leads_to_the_run_that_produced_it(
    engine_server: Server, tmp_path: Path
) -> None:
    async with (
        ScriptedPeer("scribe") as scribe,
        run_rig(engine_server, tmp_path / "blobs", others=[scribe]) as rig,
    ):
        first = await rig.send("hello")
        done = await ask_scribe(rig, first["id"])
        before = cast("Answer", await rig.service.read(OWNER, GetRecord(first["id"])))
        after = cast("Answer", await rig.service.read(OWNER, GetRecord(done["id"])))
        (produced,) = before["artifacts"]
        (edge,) = [one for one in after["relationships"] if one["kind"] == "consumed_artifact"]
        assert (edge["target"], edge["status"]) == (produced["artifactId"], "satisfied")
        assert edge["reason"] == f"version 1 of {produced['runId']}"
        assert [
            one["target"] for one in before["relationships"] if one["kind"] == "produced_artifact"
        ] == [edge["target"]]
        assert before["attempts"][-1]["runId"] == produced["runId"]


@pytest.mark.requirement("LT-14", "GR-8")
async def test_each_artifact_of_five_refinements_has_one_task_that_produced_it(rig: Rig) -> None:
    done: list[Answer] = [await rig.send("draft")]
    context = done[0]["contextId"]
    for step in range(4):
        before = str(done[-1]["id"])
        done.append(await rig.send(f"better {step}", contextId=context, referenceTaskIds=[before]))
    records = [cast("Answer", await rig.service.read(OWNER, GetRecord(one["id"]))) for one in done]
    produced: dict[str, list[str]] = {}
    for record in records:
        for artifact in record["artifacts"]:
            if artifact["direction"] == "produced":
                key = f"{artifact['artifactId']} {artifact['version']}"
                produced.setdefault(key, []).append(record["taskId"])
    assert len(produced) == len(records) == 5
    assert all(len(tasks) == 1 for tasks in produced.values())
    for earlier, later in itertools.pairwise(records):
        sources = [one["target"] for one in later["relationships"] if one["kind"] == "source_task"]
        assert sources == [earlier["taskId"]]
    assert len({record["taskId"] for record in records}) == 5
