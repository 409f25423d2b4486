"""Messages that refer to earlier tasks: what the agent receives, and what the new task records."""

from __future__ import annotations

import hashlib
import itertools
from pathlib import Path
from typing import Final, cast

import orjson
import pytest

from passerelle.a2a_mapping.extensions import REFERENCE
from passerelle.core.commands import GetRecord
from passerelle.core.events import decode_event
from passerelle.core.payloads.context import ContextItem, ContextResolved, OmittedItem
from passerelle.core.payloads.runtime import WarningRaised
from passerelle.core.ports.log import StreamKind, StreamRef
from passerelle.core.principal import OWNER, Principal
from passerelle.core.wire.codec import to_wire
from passerelle.core.wire.json import Json, JsonObject
from passerelle.gateway.rpc.table import call
from passerelle.runtime.common.calls import Caller
from passerelle.runtime.records.references import MAX_REFERENCES
from tests.integration.a2a.rig import Answer, Rig, run_rig
from tests.support.engine import Server
from tests.support.scripted_peer import ScriptedPeer
from tests.support.scripted_tasks import Turn, TurnScript
from tests.support.waiting import wait_until

_OTHER: Final = Principal("other", OWNER.tenant, scopes=OWNER.scopes)

pytestmark = pytest.mark.anyio


async def ask_scribe(rig: Rig, *references: str) -> Answer:
    """Sends a message to the other agent; returns its task."""
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
    assert second["history"][0]["referenceTaskIds"] == [first["id"]]
    assert (await rig.call("GetTask", {"id": second["id"]}))["history"] == second["history"]
    assert (second["id"] != first["id"], second["contextId"]) == (True, context)
    record = cast("Answer", await rig.service.read(OWNER, GetRecord(second["id"])))
    edges = [edge for edge in record["relationships"] if edge["kind"] == "source_task"]
    assert [edge["target"] for edge in edges] == [first["id"]]
    assert await rig.call("GetTask", {"id": first["id"]}) == first


async def refer_back(turn: Turn) -> None:
    """Completes with a message that refers to the tasks of the caller's message, and to one of its own."""
    task = await turn.open()
    said = cast("list[Json]", turn.message.get("referenceTaskIds", []))
    words: JsonObject = {
        "messageId": "agents-words",
        "role": "ROLE_AGENT",
        "parts": [{"text": f"continues {said}"}],
        "referenceTaskIds": [*said, "echo-task-of-somebody"],
    }
    status: JsonObject = {"state": "TASK_STATE_COMPLETED", "message": words}
    task.record["status"] = status
    await turn.tell(
        {"statusUpdate": {"taskId": task.id, "contextId": task.context_id, "status": status}}
    )
    task.finished.set()


@pytest.mark.requirement("A2A-12", "LT-10")
@pytest.mark.parametrize("method", ["SendMessage", "SendStreamingMessage"])
async def test_references_of_the_agent_name_the_tasks_of_its_caller(rig: Rig, method: str) -> None:
    first = await rig.send("hello")
    rig.peer.next(refer_back)
    params = rig.message("again", referenceTaskIds=[first["id"]])
    if method == "SendMessage":
        status = (await rig.call(method, params))["task"]["status"]
    else:
        status = (await rig.collect(method, params))[-1].result["statusUpdate"]["status"]
    assert status["message"]["referenceTaskIds"] == [first["id"]]
    assert status["message"]["parts"] == [{"text": f"continues {[first['id']]}"}]


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
        own, described, *quoted = sent["parts"]
        assert own == {"text": "hello"}
        assert [part["text"] for part in quoted] == ["hello"]
        assert quoted[0]["metadata"][REFERENCE]["reference"] == 1
        mark = {"reference": 0, "omitted": "too_large", "artifact": "result"}
        assert described["metadata"] == {REFERENCE: mark}
        whole = (await rig.call("GetTask", {"id": big["id"]}))["artifacts"][0]
        assert described["data"] == {
            "name": "result",
            "version": 1,
            "size": len(orjson.dumps(whole)),
            "sha256": hashlib.sha256(orjson.dumps(whole)).hexdigest(),
        }
        assert "referenceTaskIds" not in sent
        assert not [known for known in (first["id"], "echo-task") if known in str(sent)]
        asked = [one for one in done["history"] if one["role"] == "ROLE_USER"]
        assert len(asked) == 1, "what went along does not make it another message"


@pytest.mark.requirement("LT-10", "LT-13", "ANS-6")
async def test_reference_to_an_unknown_task_is_dropped_with_a_warning(rig: Rig) -> None:
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
        assert task["history"][0]["referenceTaskIds"] == [name], "its caller's own message"
        noted = await read_warnings(rig, task["id"], header)
        assert noted == ["the message refers to an unknown task; the agent gets no reference to it"]
    assert looks == ["TASK_STATE_COMPLETED"] * 2
    assert rig.counted() == 3


async def read_warnings(rig: Rig, task_id: str, token: str) -> list[str]:
    """Returns the warnings about the references of a task."""
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
async def test_quoted_artifact_is_recorded_as_consumed_with_the_run_that_produced_it(
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
async def test_each_artifact_of_five_refinements_has_one_producing_task(rig: Rig) -> None:
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


_FILE: Final[Json] = {"raw": "aGk=", "filename": "hi.txt", "mediaType": "text/plain"}
_LINK: Final[Json] = {"url": "https://files.example/plan.pdf", "mediaType": "application/pdf"}
_DATA: Final[Json] = {"data": {"rows": [1, 2]}}


def make(*parts: Json) -> TurnScript:
    """Returns an agent script that produces one artifact of these parts."""

    async def work(turn: Turn) -> None:
        task = await turn.open()
        task.artifact([*parts], name="plan")
        await turn.status("COMPLETED")

    return work


async def list_resolved(rig: Rig, task_id: str) -> list[ContextResolved]:
    """Returns the resolved contexts in the facts of a task."""
    record = cast("Answer", await rig.service.read(OWNER, GetRecord(task_id)))
    stream = StreamRef(StreamKind.SESSION, record["sessionId"])
    entries = await rig.parts.writes.log.read_page(stream, 0)
    facts = [decode_event(entry.data).fact for entry in entries]
    return [
        fact.payload
        for fact in facts
        if isinstance(fact.payload, ContextResolved) and fact.scope.task_id == record["taskId"]
    ]


def strip(parts: list[Answer]) -> list[Answer]:
    """Returns parts without the gateway's metadata."""
    return [{name: one for name, one in part.items() if name != "metadata"} for part in parts]


@pytest.mark.requirement("LT-10")
@pytest.mark.parametrize("binding", ["jsonrpc", "http", "0.3"])
async def test_files_data_and_links_are_quoted_for_every_kind_of_caller(
    engine_server: Server, tmp_path: Path, binding: str
) -> None:
    async with (
        ScriptedPeer("scribe") as scribe,
        run_rig(engine_server, tmp_path / "blobs", others=[scribe]) as rig,
    ):
        rig.peer.next(make(_FILE, _LINK, _DATA))
        first = await rig.send("draw a plan")
        params = rig.message("build it", referenceTaskIds=[first["id"]])
        if binding == "jsonrpc":
            await rig.call("SendMessage", params, agent="scribe")
        elif binding == "http":
            sent = await rig.http.post("/agents/scribe/message:send", json=params)
            assert sent.status_code == 200, sent.text
        else:
            sent_task = {
                "kind": "message",
                "role": "user",
                "messageId": "m-1",
                "parts": [{"kind": "text", "text": "build it"}],
                "referenceTaskIds": [first["id"]],
            }
            body = {
                "jsonrpc": "2.0",
                "id": 1,
                "method": "message/send",
                "params": {"message": sent_task},
            }
            headers = {"A2A-Version": "0.3"}
            answer = (await rig.http.post("/agents/scribe", json=body, headers=headers)).json()
            assert answer["result"]["kind"] == "task", answer
        (got,) = cast("list[Answer]", scribe.messages)
        assert strip(got["parts"]) == [{"text": "build it"}, _FILE, _LINK, _DATA]
        assert first["id"] not in str(got)


@pytest.mark.requirement("LT-10", "EVC-12")
async def test_fact_lists_what_was_quoted_and_what_was_not(
    engine_server: Server, tmp_path: Path
) -> None:
    async with (
        ScriptedPeer("scribe") as scribe,
        run_rig(engine_server, tmp_path / "blobs", others=[scribe]) as rig,
    ):
        small, big = await rig.send("hello"), await rig.send("big")
        sent_task = await ask_scribe(rig, small["id"], big["id"], "nobody's")
        own = await rig.send("again", contextId=small["contextId"], referenceTaskIds=[small["id"]])
        records = [
            cast("Answer", await rig.service.read(OWNER, GetRecord(one["id"])))
            for one in (small, big)
        ]
        (first, second) = (one["artifacts"][0] for one in records)
        (said,) = await list_resolved(rig, sent_task["id"])
        assert said == ContextResolved(
            "scribe",
            (ContextItem("artifact", first["artifactId"], first["size"]),),
            (
                OmittedItem("task", "nobody's", "missing"),
                OmittedItem("history", records[0]["turnId"], "other_peer"),
                OmittedItem("history", records[1]["turnId"], "other_peer"),
                OmittedItem("artifact", second["artifactId"], "too_large"),
            ),
        )
        assert await list_resolved(rig, own["id"]) == [
            ContextResolved("echo", (ContextItem("task", small["id"]),))
        ]
        assert await list_resolved(rig, small["id"]) == []


@pytest.mark.requirement("LT-10", "GR-3", "GR-8")
@pytest.mark.parametrize("asks", [False, True])
async def test_message_to_a_working_or_asking_task_brings_its_references(
    engine_server: Server, tmp_path: Path, *, asks: bool
) -> None:
    async with (
        ScriptedPeer("scribe") as scribe,
        run_rig(engine_server, tmp_path / "blobs", others=[scribe]) as rig,
    ):
        first = await rig.send("hello")
        started = rig.message(
            "ask which?" if asks else "silent", configuration={"returnImmediately": True}
        )
        task = (await rig.call("SendMessage", started, agent="scribe"))["task"]
        state = "TASK_STATE_INPUT_REQUIRED" if asks else "TASK_STATE_SUBMITTED"

        async def rests() -> bool:
            now = await rig.call("GetTask", {"id": task["id"]}, agent="scribe")
            return bool(now["status"]["state"] == state)

        await wait_until(rests, 10, "the agent has the task")
        params = rig.message(
            "take this",
            taskId=task["id"],
            referenceTaskIds=[first["id"], task["id"]],
            configuration={"returnImmediately": True},
        )
        await rig.call("SendMessage", params, agent="scribe")
        await wait_until(lambda: len(scribe.messages) == 2, 10, "the agent has the message")
        got = cast("Answer", scribe.messages[1])
        assert strip(got["parts"]) == [{"text": "take this"}, {"text": "hello"}]
        assert got["referenceTaskIds"] == [got["taskId"]]
        record = cast("Answer", await rig.service.read(OWNER, GetRecord(task["id"])))
        before = cast("Answer", await rig.service.read(OWNER, GetRecord(first["id"])))
        kinds = {(one["kind"], one["target"]) for one in record["relationships"]}
        assert ("source_task", first["id"]) in kinds
        assert ("consumed_artifact", before["artifacts"][0]["artifactId"]) in kinds
        assert ("source_task", task["id"]) not in kinds
        (said,) = await list_resolved(rig, task["id"])
        assert [one.kind for one in said.selected] == ["artifact", "task"]


@pytest.mark.requirement("SNAP-6", "EVC-12")
async def test_context_after_a_boundary_lists_what_was_quoted_and_what_is_missing(
    engine_server: Server, tmp_path: Path
) -> None:
    async with (
        ScriptedPeer("scribe") as scribe,
        run_rig(engine_server, tmp_path / "blobs", others=[scribe]) as rig,
    ):
        small, big = await rig.send("hello"), await rig.send("big")
        first = await ask_scribe(rig, small["id"])
        begun = cast("Answer", await rig.service.read(OWNER, GetRecord(first["id"])))
        thread, turn = begun["threadId"], begun["turnId"]
        caller = Caller(OWNER, "http", None)
        boundary = await call(
            rig.service,
            caller,
            "compact_thread",
            {"threadId": thread, "toTurn": turn, "text": "A plan was made."},
        )
        params = rig.message(
            "build it",
            contextId=first["contextId"],
            referenceTaskIds=[small["id"], big["id"], "nobody's"],
        )
        second = (await rig.call("SendMessage", params, agent="scribe"))["task"]
        shown = cast(
            "Answer", await call(rig.service, caller, "get_thread_context", {"threadId": thread})
        )
        (attached,) = shown["attached"]
        (said,) = await list_resolved(rig, second["id"])
        assert (attached["taskId"], attached["resolved"]) == (second["id"], to_wire(said))
        assert [one["kind"] for one in attached["resolved"]["selected"]] == ["artifact"]
        (summary,) = shown["summaries"]
        assert summary["sha256"] == boundary["sha256"]
        (warning,) = shown["warnings"]
        assert (warning["code"], warning["taskId"]) == ("reference_unknown", second["id"])
        (lost,) = [one for one in said.omitted if one.kind == "artifact"]
        assert f"artifact {lost.ref} was not sent to scribe: too_large" in shown["missing"]
        assert "task nobody's was not sent to scribe: missing" in shown["missing"]
